"""Views of arrays that are not reference-counted, for kernels that call another kernel once per cell.

numba 0.68 (not 0.65) counts references to the array arguments of a compiled function on every call: about 8 ns for each
array, more than a draw costs. Views without an owner have nothing to count.
"""

from __future__ import annotations

from numba.core import cgutils
from numba.extending import intrinsic, overload


def borrowed(array):
    """The same array without an owner, in a kernel (in Python: the array itself).

    The owner must outlive the view. Borrow only the *arguments* of the kernel that loops, whose caller owns them: a
    local array is freed after its last use by name, which would be the call of this function.
    """
    return array


@intrinsic
def _without_owner(_typing, array):
    def generate(context, builder, signature, arguments):
        view = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        return view._getvalue()

    return array(array), generate


@overload(borrowed)
def _compiled_borrowed(array):
    return lambda array: _without_owner(array)

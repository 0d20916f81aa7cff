"""A kernel that another calls by its address: machine code of its own, in a file of its own.

What a kernel calls is compiled together with it (`once`). Of a sweep that is half a minute in one piece, also where a
run takes only some of its steps. A large step that is called at an `Address` is compiled for itself: beside its caller,
by another process (`ahead`), and not at all where nobody calls it.

An address is good in one process, so it comes as an argument and is in no file. Its type knows the types of what the
kernel takes: a caller that would call it with others is not compiled. Of two kernels that take the same, a caller that
is compiled once calls either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numba
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model, unbox

from nmf_zoo.kernels.compile.cache import described


class AddressType(types.Type):
    """numba's type of an `Address`: the types that a kernel takes and the one that it returns, whichever it is."""

    def __init__(self, takes: tuple[Any, ...], returns: Any):
        self.takes, self.returns = takes, returns
        about = hashlib.sha256(described((*takes, returns)).encode()).hexdigest()
        super().__init__(f"Address({about[:32]})")  # names of types are a part of names in compiled code


class Address:
    """Where a kernel's code for some types begins in this process; 0 where it was not compiled. See `address_of`.

    Equal are those of one kernel for the same types, wherever its code lies.
    """

    def __init__(self, kernel: Any, takes: tuple[Any, ...], returns: Any, is_called: bool):
        self.kernel, self.value = kernel, 0
        self._about = takes, returns, is_called
        if numba.config.DISABLE_JIT:
            return
        self._numba_type_ = AddressType(takes, returns)
        if is_called:
            kernel.compile(takes)
            made = kernel.overloads[takes]
            if made.signature.return_type != returns:
                raise TypeError(f"{kernel.__qualname__} returns {made.signature.return_type}, not {returns}")
            self.value = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _address_in, (self.kernel.__module__, self.kernel.__qualname__, *self._about)


def _address_in(module: str, name: str, *about: Any) -> Address:
    return Address(getattr(import_module(module), name), *about)


def address_of(kernel: Any, arguments: tuple[Any, ...], returns: Any, is_called: bool = True) -> Address:
    """The address of a kernel, for the types of these arguments. It is compiled now, unless nobody calls it.

    ``returns`` : an example of what it returns, numbers and tuples of numbers: its callers are compiled without it
    """
    if numba.config.DISABLE_JIT:
        return Address(kernel, (), None, is_called)
    return Address(kernel, tuple(map(numba.typeof, arguments)), numba.typeof(returns), is_called)


@register_model(AddressType)
class _AddressModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: AddressType):
        super().__init__(manager, kind, cgutils.intp_t)


@unbox(AddressType)
def _unbox_address(kind: AddressType, given: Any, c: Any) -> Any:
    value = c.pyapi.object_getattr_string(given, "value")
    native = c.unbox(types.uintp, value)
    c.pyapi.decref(value)
    return native


def _call_at(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call the kernel at an `Address` with a tuple of arguments."""
    if not isinstance(address, AddressType) or tuple(arguments) != address.takes:
        raise TypingError(f"{address} is called with {arguments}")

    def generate(context: Any, builder: Any, signature: Any, given: tuple[Any, Any]) -> Any:
        kinds, convention = list(address.takes), context.call_conv
        pointer = convention.get_function_type(address.returns, kinds).as_pointer()
        values = [builder.extract_value(given[1], place) for place in range(len(kinds))]
        code = builder.inttoptr(given[0], pointer)
        status, returned = convention.call_function(builder, code, address.returns, kinds, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return returned

    return address.returns(address, arguments), generate


def _interpreted_call(address: Address, arguments: tuple[Any, ...]) -> Any:
    return address.kernel(*arguments)


call_at: Callable[[Any, Any], Any] = _interpreted_call if numba.config.DISABLE_JIT else intrinsic(_call_at)

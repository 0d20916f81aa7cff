"""More of :mod:`nmf_zoo.kernels.lanes`: products and sums of rows themselves; in Python rows are NumPy arrays."""

from __future__ import annotations

from llvmlite import ir

from nmf_zoo.kernels.lanes import Row, compiled, each_vector, llvm_intrinsic


def add_product(sums, one, other):
    """sums + one * other, element by element"""
    return sums + one * other


def total(row):
    """The sum of its elements."""
    return row.sum()


# -- the same in machine code ----------------------------------------------------------------------------------------


@compiled(add_product, lambda sums, one, other: sums if sums == one == other else None, Row, Row, Row)
def _add_product(context, builder, signature, arguments):
    row = context.get_value_type(signature.return_type)
    fma = llvm_intrinsic(builder, "fma", row.element, ir.FunctionType(row.element, [row.element] * 3))
    sums, one, other = arguments
    return each_vector(
        builder, row, lambda n: builder.call(fma, [builder.extract_value(value, n) for value in (one, other, sums)])
    )


@compiled(total, lambda row: row.dtype, Row)
def _total(context, builder, signature, arguments):
    row = context.get_value_type(signature.args[0])
    vector, scalar = row.element, row.element.element
    add = llvm_intrinsic(builder, "vector.reduce.fadd", vector, ir.FunctionType(scalar, [scalar, vector]))
    whole = builder.extract_value(arguments[0], 0)
    for n in range(1, row.count):
        whole = builder.fadd(whole, builder.extract_value(arguments[0], n))
    return builder.call(add, [ir.Constant(scalar, -0.0), whole], fastmath=("reassoc",))

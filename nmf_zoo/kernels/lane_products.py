"""More of :mod:`nmf_zoo.kernels.lanes`: arithmetic of two rows, element by element; in Python rows are NumPy arrays."""

from __future__ import annotations

from llvmlite import ir

from nmf_zoo.kernels.lanes import Row, compiled, each_vector, llvm_intrinsic


def times(row, other):
    """row * other"""
    return row * other


def over(row, other):
    """row / other"""
    return row / other


def fold_product(sums, one, other):
    """sums, a row of one vector, plus all vectors of one * other."""
    return sums + (one * other).reshape(-1, sums.size).sum(axis=0)


# -- the same in machine code ----------------------------------------------------------------------------------------


def _elementwise(function, instruction: str) -> None:
    @compiled(function, lambda row, other: row if row == other else None, Row, Row)
    def generate(context, builder, signature, arguments):
        combine = getattr(builder, instruction)
        return each_vector(
            builder,
            context.get_value_type(signature.return_type),
            lambda n: combine(*(builder.extract_value(value, n) for value in arguments)),
        )


_elementwise(times, "fmul")
_elementwise(over, "fdiv")


@compiled(fold_product, lambda sums, one, other: sums if one == other and sums.count == 1 else None, Row, Row, Row)
def _fold_product(context, builder, signature, arguments):
    folded, row = (context.get_value_type(signature.args[n]) for n in (0, 1))
    fma = llvm_intrinsic(builder, "fma", row.element, ir.FunctionType(row.element, [row.element] * 3))
    total = builder.extract_value(arguments[0], 0)
    for n in range(row.count):
        total = builder.call(fma, [*(builder.extract_value(value, n) for value in arguments[1:]), total])
    return builder.insert_value(ir.Constant(folded, ir.Undefined), total, 0)

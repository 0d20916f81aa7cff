"""Rows of a matrix in SIMD registers: what the kernels over non-zero cells are made of.

A row is a few vectors of 64 bytes (one AVX-512 register each; the compiler splits them on lesser machines) or, where
that wastes fewer lanes, of 32, so the matrices met at every cell are :class:`Padded`: with columns of zeros up to whole
vectors, on a boundary of 64 bytes. The number of vectors is the *length of a tuple* and thereby part of the type, known
to the compiler: no loop is left, and rows stay in registers. The type of the tuple's entries says which vectors. A row
that is too long for them is cut into tiles. In Python a row is a NumPy array, and the functions here are what they look
like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, models, register_model, type_callable

VECTOR_BYTES, PAGE_BYTES = 64, 4096
MOST_VECTORS = 8  # in a tile: with as many sums it fills half of the 32 registers
INDEX = ir.IntType(64)


class Padded(NamedTuple):
    """A matrix: values (rows, whole tiles), contiguous; width: of a tile, by :func:`width_for`."""

    values: Any
    width: tuple[int, ...]


def width_for(rank: int, dtype: Any) -> tuple[int, ...]:
    """An entry for each vector of a row of ``rank`` columns: 0 for one of 64 bytes, False for one of half that."""
    lanes = VECTOR_BYTES // np.dtype(dtype).itemsize
    halves = max(1, -(-2 * rank // lanes))
    return (False,) * halves if halves % 2 and halves < MOST_VECTORS else (0,) * -(-halves // 2)


def padded_zeros(rows: int, rank: int, dtype: Any, shift: int = 0) -> Padded:
    """Zeros with at least ``rank`` columns.

    ``shift``, in vectors, says where in a page of memory they begin: loads from one matrix wait for stores to another
    whose addresses agree in the lowest 12 bits.
    """
    dtype = np.dtype(dtype)
    width = width_for(rank, dtype)
    tiles = -(-len(width) // MOST_VECTORS)
    width = width[: -(-len(width) // tiles)]
    columns = tiles * len(width) * (_vector_bytes(width) // dtype.itemsize)
    raw = np.zeros((rows * columns + (PAGE_BYTES + shift * VECTOR_BYTES) // dtype.itemsize), dtype)
    start = (-raw.ctypes.data % PAGE_BYTES + shift * VECTOR_BYTES) // dtype.itemsize
    return Padded(raw[start : start + rows * columns].reshape(rows, columns), width)


def _vector_bytes(width: tuple[int, ...]) -> int:
    return VECTOR_BYTES // 2 if width[0] is False else VECTOR_BYTES


def tile_lanes(padded):
    """How many columns a tile has."""
    return len(padded.width) * (_vector_bytes(padded.width) // padded.values.itemsize)


def load(padded, i, k):
    """The tile that begins at column k of row i."""
    return padded.values[i, k : k + tile_lanes(padded)].copy()


def store(padded, i, k, row):
    """Overwrite the tile that begins at column k of row i."""
    padded.values[i, k : k + row.size] = row


def load_some(matrix, i, k, padded):
    """The tile that begins at column k of row i of any contiguous matrix, zeros beyond its last column, like padded."""
    some = matrix[i, k : k + tile_lanes(padded)]
    row = np.zeros(tile_lanes(padded), padded.values.dtype)
    row[: some.size] = some
    return row


def store_product(matrix, i, k, row, factor):
    """Overwrite matrix[i, k:], as far as there is room, with row * factor[i, k:], of contiguous matrices alike."""
    matrix[i, k : k + row.size] = row[: matrix.shape[1] - k] * factor[i, k : k + row.size]


def nothing(row):
    """Zeros like a row."""
    return np.zeros_like(row)


def add_scaled(row, x, other):
    """row + x * other"""
    return row + row.dtype.type(x) * other


def dot(row, other):
    """Their inner product."""
    return np.dot(row, other)


# -- the same in machine code ---------------------------------------------------------------------------------------


class Row(types.Type):
    """numba's type of a row: ``count`` vectors of ``lanes`` of ``dtype``."""

    def __init__(self, dtype: types.Type, lanes: int, count: int):
        self.dtype, self.lanes, self.count = dtype, lanes, count
        super().__init__(name=f"Row({dtype}, {lanes}, {count})")


@register_model(Row)
class _RowModel(models.PrimitiveModel):
    def __init__(self, manager, row: Row):
        scalar = ir.DoubleType() if row.dtype == types.float64 else ir.FloatType()
        super().__init__(manager, row, ir.ArrayType(ir.VectorType(scalar, row.lanes), row.count))


def row_of(padded: types.NamedTuple) -> Row:
    dtype, width = padded.types[0].dtype, padded.types[1]
    bits = 8 * VECTOR_BYTES // (2 if width.dtype == types.boolean else 1)
    return Row(dtype, bits // dtype.bitwidth, len(width))


def compiled(function: Callable, result: Callable, *kinds: Any) -> Callable:
    """Register what generates the code of a Python function; ``result``: its type from the arguments' types."""

    def register(generate: Callable) -> Callable:
        type_callable(function)(lambda context: result)
        lower_builtin(function, *kinds)(generate)
        return generate

    return register


@compiled(tile_lanes, lambda padded: types.intp, types.NamedTuple)
def _tile_lanes(context, builder, signature, arguments):
    row = row_of(signature.args[0])
    return INDEX(row.count * row.lanes)


@compiled(load, lambda padded, i, k: row_of(padded), types.NamedTuple, types.Integer, types.Integer)
def _load(context, builder, signature, arguments):
    row = context.get_value_type(signature.return_type)
    matrix = builder.extract_value(arguments[0], 0)
    at = _vectors_of(context, builder, signature, (signature.args[0].types[0], matrix), arguments, row.element)
    return each_vector(builder, row, lambda n: builder.load(at(n), align=8))


@compiled(store, lambda padded, i, k, row: types.none, types.NamedTuple, types.Integer, types.Integer, Row)
def _store(context, builder, signature, arguments):
    row = context.get_value_type(signature.args[3])
    matrix = builder.extract_value(arguments[0], 0)
    at = _vectors_of(context, builder, signature, (signature.args[0].types[0], matrix), arguments, row.element)
    for n in range(row.count):
        builder.store(builder.extract_value(arguments[3], n), at(n), align=8)
    return context.get_dummy_value()


@compiled(
    load_some,
    lambda matrix, i, k, padded: row_of(padded),
    types.Array,
    types.Integer,
    types.Integer,
    types.NamedTuple,
)
def _load_some(context, builder, signature, arguments):
    row = context.get_value_type(signature.return_type)
    read = _some(context, builder, signature, arguments[0], arguments, row.element.count)[0]
    return each_vector(builder, row, lambda n: _as_kind(builder, read(n), row.element))


@compiled(
    store_product,
    lambda matrix, i, k, row, factor: types.none if matrix == factor else None,
    types.Array,
    types.Integer,
    types.Integer,
    Row,
    types.Array,
)
def _store_product(context, builder, signature, arguments):
    row = context.get_value_type(signature.args[3])
    read = _some(context, builder, signature, arguments[4], arguments, row.element.count)[0]
    write = _some(context, builder, signature, arguments[0], arguments, row.element.count)[1]
    for n in range(row.count):
        factor = read(n)
        write(n, builder.fmul(_as_kind(builder, builder.extract_value(arguments[3], n), factor.type), factor))
    return context.get_dummy_value()


@compiled(nothing, lambda row: row, Row)
def _nothing(context, builder, signature, arguments):
    return ir.Constant(context.get_value_type(signature.return_type), None)


@compiled(add_scaled, lambda row, x, other: row, Row, types.Float, Row)
def _add_scaled(context, builder, signature, arguments):
    row = context.get_value_type(signature.return_type)
    sums, x, other = arguments
    scale = filled(builder, context.cast(builder, x, signature.args[1], signature.return_type.dtype), row.element)
    fma = llvm_intrinsic(builder, "fma", row.element, ir.FunctionType(row.element, [row.element] * 3))

    def vector(n: int):
        return builder.call(fma, [scale, builder.extract_value(other, n), builder.extract_value(sums, n)])

    return each_vector(builder, row, vector)


@compiled(dot, lambda row, other: row.dtype, Row, Row)
def _dot(context, builder, signature, arguments):
    row = context.get_value_type(signature.args[0])
    vector, scalar = row.element, row.element.element
    fma = llvm_intrinsic(builder, "fma", vector, ir.FunctionType(vector, [vector] * 3))
    add = llvm_intrinsic(builder, "vector.reduce.fadd", vector, ir.FunctionType(scalar, [scalar, vector]))
    total = ir.Constant(vector, None)
    for n in range(row.count):
        total = builder.call(fma, [*(builder.extract_value(value, n) for value in arguments), total])
    return builder.call(add, [ir.Constant(scalar, -0.0), total], fastmath=("reassoc",))


def _vectors_of(context, builder, signature, matrix, arguments, vector: ir.VectorType) -> Callable:
    """From a vector's number to where it lies, for the row that begins at matrix[i, k]; i, k the next two arguments."""
    array = context.make_array(matrix[0])(context, builder, matrix[1])
    i, k = (context.cast(builder, arguments[n], signature.args[n], types.intp) for n in (1, 2))
    columns = cgutils.unpack_tuple(builder, array.shape, 2)[1]
    first = builder.gep(array.data, [builder.add(builder.mul(i, columns), k)])
    return lambda n: builder.bitcast(builder.gep(first, [INDEX(n * vector.count)]), vector.as_pointer())


def _some(context, builder, signature, matrix, arguments, lanes: int) -> tuple[Callable, Callable]:
    """How to read and write the n-th vector of what begins at matrix[i, k], no further than the last column."""
    kind = signature.args[0]
    vector = ir.VectorType(context.get_value_type(kind.dtype), lanes)
    at = _vectors_of(context, builder, signature, (kind, matrix), arguments, vector)
    columns = cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, matrix).shape, 2)[1]
    left = builder.sub(columns, context.cast(builder, arguments[2], signature.args[2], types.intp))
    numbers, mask, align = ir.VectorType(INDEX, lanes), ir.VectorType(ir.IntType(1), lanes), ir.IntType(32)
    limit = filled(builder, left, numbers)
    reads = ir.FunctionType(vector, [vector.as_pointer(), align, mask, vector])
    writes = ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), align, mask])

    def is_inside(n: int):
        return builder.icmp_signed("<", ir.Constant(numbers, list(range(n * lanes, (n + 1) * lanes))), limit)

    def read(n: int):
        function = llvm_intrinsic(builder, "masked.load", vector, reads, ".p0")
        return builder.call(function, [at(n), align(4), is_inside(n), ir.Constant(vector, None)])

    def write(n: int, value):
        function = llvm_intrinsic(builder, "masked.store", vector, writes, ".p0")
        builder.call(function, [value, at(n), align(4), is_inside(n)])

    return read, write


def each_vector(builder, row: ir.ArrayType, vector: Callable):
    value = ir.Constant(row, ir.Undefined)
    for n in range(row.count):
        value = builder.insert_value(value, vector(n), n)
    return value


def filled(builder, x, vector: ir.VectorType):
    """A vector with x in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), x, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


def _as_kind(builder, value, vector: ir.VectorType):
    """A vector with its elements in another precision."""
    if value.type == vector:
        return value
    return (builder.fpext if vector.element == ir.DoubleType() else builder.fptrunc)(value, vector)


def llvm_intrinsic(builder, name: str, vector: ir.VectorType, function: ir.FunctionType, suffix: str = ""):
    """LLVM's intrinsic of this name for a vector type."""
    kind = f"v{vector.count}f{64 if vector.element == ir.DoubleType() else 32}"
    return cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}.{kind}{suffix}")


# -- products and sums of rows themselves ----------------------------------------------------------------------------


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

"""Sources of the counts, cell by cell: for all cells of a chunk, who emitted their units.

A unit of a cell of total weight t falls to the component whose interval of the running sums holds u t, u uniform. With
e_k = w_0 + ... + w_(k-1), the unit's component is the last k with e_k <= u t. A cell's running sums stay in SIMD
registers, one component to a lane, and a unit adds 1 to *every* lane with e_k <= u t: no branch on a random number, and
no random address. Statistics are therefore gathered as counts of "component k or later", and the counts of k are the
differences, taken once per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.numerics.arrays import copy_row
from nmf_zoo.kernels.random.counts import SMALL_TOTAL, SPLIT, allocate
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.simd.lanes import (
    Padded,
    Row,
    compiled,
    each_vector,
    filled,
    load,
    nothing,
    store,
    tile_lanes,
    width_for,
)
from nmf_zoo.kernels.simd.unowned_views import borrowed

NOWHERE = -1
BLOCK = 4  # lanes whose running sums wait for each other; blocks do not, until their totals are added


class AllocationWorkspace(NamedTuple):
    """Scratch for one chunk.

    Attributes
    ----------
    order : (non-zeros,) int32, the cells of each row in the order of their counts, numbered from the row's first:
        where one count follows its like, the loop over units ends as it did before, which processors guess right
    width : as of :class:`nmf_zoo.kernels.simd.lanes.Padded`, with a lane for each component, and one for a background
    row : (2, lanes) weights of the major side's row, and its counts of "component k or later"
    weights, cumulative, counts : (sources,) of a large count, which is drawn by binomials
    """

    order: np.ndarray
    width: tuple[int, ...]
    row: np.ndarray
    weights: np.ndarray
    cumulative: np.ndarray
    counts: np.ndarray


def make_scratch(layout, rank: int, order: np.ndarray) -> AllocationWorkspace:
    """Scratch of :func:`allocate_sources` for one chunk, whose cells come in ``order`` of their counts."""
    sources = rank + 1 if layout.offset.size else rank
    width = width_for(sources, np.float64)
    lanes = tile_lanes(Padded(np.empty(0), width))
    workspaces = np.zeros((2, lanes)), np.empty(sources), np.empty(sources), np.empty(sources, np.int64)
    return AllocationWorkspace(order, width, *workspaces)


@kernel
def allocate_sources(layout, major, minor, chunk, of_major, of_minor, scratch, key):
    """Draw the sources of every count of a chunk and count them by component.

    C[f, :, n] ~ Multinomial(x_fn, w_f * h_n / (w_f . h_n + offset)); the background's share is dropped. ``of_major``
    (major, K) is overwritten at the chunk's rows, ``of_minor`` (minor, K) is added to; ``scratch`` is the chunk's own.
    Returns the number of cells whose mean is 0 or not finite, where no allocation exists.
    """
    failures, has_offset = 0, layout.offset.size > 0
    padded_minor = Padded(_widened(minor, scratch.row.shape[1]), scratch.width)
    later_minor = Padded(np.zeros_like(padded_minor.values), scratch.width)
    row = Padded(scratch.row, scratch.width)
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        of_major[i] = 0.0
        copy_row(scratch.row[0], major[i])
        u = load(row, 0, 0)
        row_key, later = fold(key, i), nothing(u)
        first = np.uint64(layout.indptr[i])  # unsigned: no index counts from the end
        for place in range(first, np.uint64(layout.indptr[i + 1])):
            cell = first + np.uint64(scratch.order[place])
            j, x = np.uint64(layout.indices[cell]), np.int64(layout.values[cell])
            before, total = sums_before(u, load(padded_minor, j, 0))
            total += layout.offset[cell] if has_offset else 0.0
            if not SMALL_TOTAL < total < np.inf:
                failures += 1
            elif x > SPLIT * (scratch.weights.size - 1):
                offset = layout.offset[cell] if has_offset else 0.0
                _allocate_large((x, offset), major[i], minor[j], of_major[i], of_minor[j], scratch, fold(row_key, j))
            else:
                cell_key, counts = fold(row_key, j), nothing(before)
                for unit in range(x):
                    counts = count_at_most(counts, before, uniform(cell_key, unit) * total)
                store(later_minor, j, 0, plus(load(later_minor, j, 0), counts))
                later = plus(later, counts)
        store(row, 1, 0, later)
        _add_differences(of_major[i], scratch.row[1])
    for j in range(minor.shape[0]):
        _add_differences(of_minor[j], later_minor.values[j])
    return failures


@kernel
def _widened(matrix, columns):
    out = np.zeros((matrix.shape[0], columns))
    for i in range(matrix.shape[0]):
        copy_row(out[i], matrix[i])
    return out


@kernel
def _add_differences(out, later):
    """Add to out (K,) the counts of each component, from those of "component k or later" (lanes,)."""
    for k in range(out.size):
        out[k] += later[k] - (later[k + 1] if k + 1 < later.size else 0.0)


@kernel
def _allocate_large(cell, w, h, of_major, of_minor, scratch, key):
    """One cell (count, offset) by binomials."""
    for k in range(w.size):
        scratch.weights[k] = w[k] * h[k]
    if scratch.weights.size > w.size:
        scratch.weights[w.size] = cell[1]
    weights, cumulative, counts = borrowed(scratch.weights), borrowed(scratch.cumulative), borrowed(scratch.counts)
    allocate(cell[0], weights, cumulative, counts, key)
    for k in range(w.size):
        of_major[k] += counts[k]
        of_minor[k] += counts[k]


# -- rows in registers: in Python they are NumPy arrays ---------------------------------------------------------------


def sums_before(row, other):
    """(e, total): the sums of the products of two rows before each lane, and of all.

    They never fall from lane to lane, and stay as they are where the product is 0, so that such a lane gets no unit.
    """
    sums = np.cumsum(row * other)
    return np.concatenate([[0.0], sums[:-1]]), sums[-1]


def count_at_most(counts, sums, limit):
    """counts + 1 where sums <= limit"""
    return counts + (sums <= limit)


def plus(row, other):
    """Their sum."""
    return row + other


@compiled(sums_before, lambda row, other: types.Tuple((row, row.dtype)), Row, Row)
def _sums_before(context, builder, signature, arguments):
    """Blocks of lanes: in each, product after product is added to the lanes after it; then the totals before it."""
    row = context.get_value_type(signature.args[0])
    carry, sums = ir.Constant(row.element, None), []
    for n in range(row.count):
        products = builder.fmul(*(builder.extract_value(one, n) for one in arguments))
        inside = _sums_in_blocks(builder, products)
        ends = builder.fadd(inside, products)
        before = carry
        for block in range(row.element.count // BLOCK):
            before = carry if block == 0 else _chosen(builder, before, carry, lambda lane, b=block: lane // BLOCK < b)
            carry = builder.fadd(carry, _taken(builder, ends, lambda lane, b=block: b * BLOCK + BLOCK - 1))
        sums.append(builder.fadd(inside, before))
    total = builder.extract_element(carry, ir.IntType(32)(0))
    return context.make_tuple(builder, signature.return_type, [each_vector(builder, row, lambda n: sums[n]), total])


def _sums_in_blocks(builder, products):
    """The sums before each lane of its block, in the order of the lanes."""
    sums = None
    for step in range(1, BLOCK):

        def place(lane: int, step: int = step) -> int:
            return lane // BLOCK * BLOCK + step - 1 if lane % BLOCK >= step else NOWHERE

        shifted = _taken(builder, products, place)
        sums = shifted if sums is None else builder.fadd(sums, shifted)
    return sums


def _taken(builder, vector, place: Callable[[int], int]):
    """The vector whose every lane is that of ``place(lane)``, or 0 from NOWHERE."""
    lanes = [vector.type.count if place(lane) == NOWHERE else place(lane) for lane in range(vector.type.count)]
    zeros, numbers = ir.Constant(vector.type, None), ir.VectorType(ir.IntType(32), vector.type.count)
    return builder.shuffle_vector(vector, zeros, ir.Constant(numbers, lanes))


def _chosen(builder, one, other, is_one: Callable[[int], bool]):
    """The lanes of one vector where ``is_one(lane)``, else of the other."""
    bits = ir.VectorType(ir.IntType(1), one.type.count)
    return builder.select(ir.Constant(bits, [int(is_one(lane)) for lane in range(bits.count)]), one, other)


@compiled(count_at_most, lambda counts, sums, limit: counts, Row, Row, types.Float)
def _count_at_most(context, builder, signature, arguments):
    row = context.get_value_type(signature.return_type)
    limit, one = filled(builder, arguments[2], row.element), ir.Constant(row.element, [1.0] * row.element.count)

    def vector(n: int):
        count = builder.extract_value(arguments[0], n)
        is_before = builder.fcmp_ordered("<=", builder.extract_value(arguments[1], n), limit)
        return builder.select(is_before, builder.fadd(count, one), count)

    return each_vector(builder, row, vector)


@compiled(plus, lambda row, other: row, Row, Row)
def _plus(context, builder, signature, arguments):
    row = context.get_value_type(signature.return_type)
    return each_vector(builder, row, lambda n: builder.fadd(*(builder.extract_value(one, n) for one in arguments)))

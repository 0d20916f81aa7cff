"""Means of a grid of counts or powers and the data's part of a factor's gradient, eight rows of that factor at a time.

For rows i of a factor v and the cells c that they meet, with u the other factor and x the data::

    mean_ci = sum_k u_ck v_ki + mean_ci
    g_ki = sum_c u_ck x_ci / mean_ci                          of counts
    g_ki = sum_c u_ck (x_ci / mean_ci - 1) / mean_ci          of powers

Rows lie along the last axis, one in each SIMD lane. numba's loops would keep neither means nor sums in registers (the
compiler's vectoriser sees one loop at a time), so the inner loops are written in LLVM's vectors. Up to eight components
have code of their own, with v and the sums in registers; beyond, four cells at once share what is read of them.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from nmf_zoo.kernels.compile import kernel

LANES, CELLS, MOST_IN_REGISTERS = 8, 4, 8
_INT, _INT32, _VECTOR = ir.IntType(64), ir.IntType(32), ir.VectorType(ir.DoubleType(), LANES)


@kernel
def gradient_of_grid(other, counts, values, means, gradient):
    """Add other @ values to means (cells, rows) and overwrite gradient (K, rows) with other.T @ (counts / means).

    ``other`` (cells, K), ``counts`` (cells, rows), ``values`` (K, rows), contiguous; the rows are a multiple of eight.
    """
    for first in range(0, counts.shape[1], LANES):
        gradient_of_lanes(other, counts, values, means, gradient, first)


def gradient_of_lanes(other, counts, values, means, gradient, first):
    """What `gradient_of_grid` says, for the rows first, ..., first + 7."""
    lanes = slice(first, first + LANES)
    means[:, lanes] += other @ values[:, lanes]
    gradient[:, lanes] = other.T @ (counts[:, lanes] / means[:, lanes])


@kernel
def gradient_of_power_grid(other, powers, values, means, gradient):
    """The same with the slope of powers, other.T @ ((powers / means - 1) / means), and means become their inverses."""
    for first in range(0, powers.shape[1], LANES):
        gradient_of_power_lanes(other, powers, values, means, gradient, first)


def gradient_of_power_lanes(other, powers, values, means, gradient, first):
    """What `gradient_of_power_grid` says, for the rows first, ..., first + 7."""
    lanes = slice(first, first + LANES)
    means[:, lanes] = 1.0 / (means[:, lanes] + other @ values[:, lanes])
    gradient[:, lanes] = other.T @ ((powers[:, lanes] * means[:, lanes] - 1.0) * means[:, lanes])


def _count_and_mean(builder, count, mean):
    """(what is kept of the cell, its slope)"""
    return mean, builder.fdiv(count, mean)


def _power_and_mean(builder, power, mean):
    one = ir.Constant(_VECTOR, [1.0] * LANES)
    inverse = builder.fdiv(one, mean)
    surplus = builder.fsub(builder.fmul(power, inverse), one)
    return inverse, builder.fmul(surplus, inverse)


class _Grid:
    """The addresses and extents that the generated code reads, and what a cell gives."""

    def __init__(self, context, builder, kinds, arrays, first, slope):
        views = [context.make_array(kind)(context, builder, array) for kind, array in zip(kinds, arrays, strict=True)]
        self.other, self.counts, self.values, self.means, self.gradient = (view.data for view in views)
        self.n_cells, self.width = cgutils.unpack_tuple(builder, views[1].shape, 2)
        self.rank = cgutils.unpack_tuple(builder, views[0].shape, 2)[1]
        self.builder, self.first, self.slope = builder, first, slope

    def lanes(self, data, row):
        """Address of the eight lanes in a row of a (..., rows) array."""
        place = self.builder.add(self.builder.mul(row, self.width), self.first)
        return self.builder.bitcast(self.builder.gep(data, [place]), _VECTOR.as_pointer())

    def weight(self, cell, k):
        """other[cell, k] in every lane."""
        place = self.builder.add(self.builder.mul(cell, self.rank), k)
        scalar = self.builder.load(self.builder.gep(self.other, [place]))
        one = self.builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, _INT32(0))
        return self.builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_INT32, LANES), None))


def _generator(slope):
    """Writes the code for the arguments other, counts, values, means, gradient, first."""

    def generate(context, builder, signature, arguments):
        grid = _Grid(context, builder, signature.args[:5], arguments[:5], arguments[5], slope)
        general, done = builder.append_basic_block("general"), builder.append_basic_block("done")
        which = builder.switch(grid.rank, general)
        for rank in range(1, MOST_IN_REGISTERS + 1):
            which.add_case(_INT(rank), builder.append_basic_block(f"rank_{rank}"))
            builder.position_at_end(which.cases[-1][1])
            _sum_in_registers(builder, grid, rank)
            builder.branch(done)
        builder.position_at_end(general)
        _sum_in_memory(builder, grid)
        builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return generate


@intrinsic
def _generated(_typing, other, counts, values, means, gradient, first):
    return types.void(other, counts, values, means, gradient, first), _generator(_count_and_mean)


@intrinsic
def _generated_of_powers(_typing, other, powers, values, means, gradient, first):
    return types.void(other, powers, values, means, gradient, first), _generator(_power_and_mean)


def _sum_in_registers(builder, grid, rank):
    """All cells, for a rank known to the compiler."""
    components = [_INT(k) for k in range(rank)]
    values = [builder.load(grid.lanes(grid.values, k), align=8) for k in components]
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in components]
    for total in sums:
        builder.store(ir.Constant(_VECTOR, None), total)
    with cgutils.for_range(builder, grid.n_cells) as loop:
        weights = [grid.weight(loop.index, k) for k in components]
        mean = builder.load(grid.lanes(grid.means, loop.index), align=8)
        for weight, value in zip(weights, values, strict=True):
            mean = _multiply_add(builder, weight, value, mean)
        kept, ratio = grid.slope(builder, builder.load(grid.lanes(grid.counts, loop.index), align=8), mean)
        builder.store(kept, grid.lanes(grid.means, loop.index), align=8)
        for weight, total in zip(weights, sums, strict=True):
            builder.store(_multiply_add(builder, weight, ratio, builder.load(total)), total)
    for k, total in zip(components, sums, strict=True):
        builder.store(builder.load(total), grid.lanes(grid.gradient, k), align=8)


def _sum_in_memory(builder, grid):
    """All cells, for any rank."""
    with cgutils.for_range(builder, grid.rank) as loop:
        builder.store(ir.Constant(_VECTOR, None), grid.lanes(grid.gradient, loop.index), align=8)
    whole = builder.mul(builder.sdiv(grid.n_cells, _INT(CELLS)), _INT(CELLS))
    _sum_cells(builder, grid, _INT(0), whole, CELLS)
    _sum_cells(builder, grid, whole, grid.n_cells, 1)


def _sum_cells(builder, grid, start, stop, at_once):
    """The cells start, ..., stop - 1, ``at_once`` in each turn of the loop."""
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(at_once)]
    with cgutils.for_range_slice(builder, start, stop, _INT(at_once)) as (cell, _):
        cells = [builder.add(cell, _INT(n)) for n in range(at_once)]
        for mean, one in zip(sums, cells, strict=True):
            builder.store(builder.load(grid.lanes(grid.means, one), align=8), mean)
        with cgutils.for_range(builder, grid.rank) as loop:
            value = builder.load(grid.lanes(grid.values, loop.index), align=8)
            for mean, one in zip(sums, cells, strict=True):
                builder.store(_multiply_add(builder, grid.weight(one, loop.index), value, builder.load(mean)), mean)
        ratios = []
        for mean, one in zip(sums, cells, strict=True):
            value = builder.load(grid.lanes(grid.counts, one), align=8)
            kept, ratio = grid.slope(builder, value, builder.load(mean))
            builder.store(kept, grid.lanes(grid.means, one), align=8)
            ratios.append(ratio)
        with cgutils.for_range(builder, grid.rank) as loop:
            at = grid.lanes(grid.gradient, loop.index)
            total = builder.load(at, align=8)
            for ratio, one in zip(ratios, cells, strict=True):
                total = _multiply_add(builder, grid.weight(one, loop.index), ratio, total)
            builder.store(total, at, align=8)


def _multiply_add(builder, x, y, z):
    """x y + z, rounded once or twice as the processor likes."""
    return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))


@overload(gradient_of_lanes)
def _compiled_gradient_of_lanes(other, counts, values, means, gradient, first):
    return lambda other, counts, values, means, gradient, first: _generated(
        other, counts, values, means, gradient, first
    )


@overload(gradient_of_power_lanes)
def _compiled_gradient_of_power_lanes(other, powers, values, means, gradient, first):
    return lambda other, powers, values, means, gradient, first: _generated_of_powers(
        other, powers, values, means, gradient, first
    )

"""Hamiltonian trajectories of the rows of one factor, each on its own, given the other factor.

Rows are independent given the other factor, so each has a step, a mass and a Metropolis test of its own: the step does
not shrink with the size of the table. A row's coordinates are u, v = scale * softplus(u)
(:mod:`nmf_zoo.kernels.numerics.special`), its log density there, the Jacobian included, is::

    sum_c x_c log m_c - sum_k (rate_k + 1 / scale_k) v_k + sum_k (shape_k - 1) log v_k + sum_k u_k

where ``rate`` holds the prior's and the likelihood's; a half-normal prior of precision curve_k takes curve_k v_k^2 / 2
off, and has the shape 1 and no rate. Components that are known have no part in the mass, and stay.
Trajectories are those of :mod:`nmf_zoo.kernels.hmc.leapfrog`.

**The counts as the rows see them.** With u the other factor, of row i the log-likelihood is::

    sum_c x_ci log m_ci - sum_k rate_ki v_ki       m_ci = sum_k u_ck v_ki + offset_ci,  rate_ki = sum_c weight_ci u_ck

(weight = mask * exposure, offset = background / exposure): cells without counts enter through the rates alone. Its
gradient is g - rate with g_ki = sum_c u_ck x_ci / m_ci, the counts' part of it.

Rows are cut into blocks of equal width, a multiple of eight, one row in each SIMD lane; arrays of a block are
(K, width). The last block is filled up with rows that have no counts.

Counts of another law (:mod:`nmf_zoo.kernels.overdispersed.rows`) are another class of data, with kernels of its own
in `GRADIENTS`, `RATIOS`, `CURVATURES` and `PLAIN_CURVATURES`; ``rate`` is then what the law has not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, in_lanes, kernel, spliced, summing_signless
from nmf_zoo.kernels.hmc.leapfrog import SLOPES, TEST, decide, leap, set_off
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.numerics.special import fast_log, to_free, to_plain
from nmf_zoo.kernels.random.keyed_rng import fold
from nmf_zoo.kernels.simd.blocked_gradients import gradient_of_grid


class RowCounts(NamedTuple):
    """The data, by row. ``grid`` has cells if they are dense; else they are in ``layout``.

    Attributes
    ----------
    grid : (blocks, cells, width) the counts, 0 where not observed; or size 0
    offset : the same of background / exposure, or size 0 for none
    layout : a :class:`nmf_zoo.inference.shared.layout.Layout` whose major side are these rows
    """

    grid: np.ndarray
    offset: np.ndarray
    layout: Any


GRADIENTS: dict[type, Callable[..., None]] = {}  # by the class of data, as the other three
RATIOS: dict[type, Callable[..., None]] = {}
CURVATURES: dict[type, Callable[..., None]] = {}
PLAIN_CURVATURES: dict[type, Callable[..., None]] = {}


@kernel
def gradient_of_counts(data, other, block, values, means, gradient):
    """Overwrite means (the block's cells, flat) with those at ``values`` (K, width), and gradient (K, width).

    ``other`` is (cells, K), contiguous.
    """
    gradient_into(data, other, block, values, table_of(data, block, values.shape[1], means), gradient)


@chosen_by("data", GRADIENTS)
def gradient_into(data, other, block, values, table, gradient):
    """The same with the means as a :func:`table_of` the block, which callers may keep."""


@kernel
def _gradient_into(data, other, block, values, table, gradient):
    if data.grid.size > 0:
        if data.offset.size > 0:
            copy_table(table, data.offset[block])
        else:
            table[:] = 0.0
        gradient_of_grid(other, data.grid[block], values, table, gradient)
    else:
        _gradient_of_cells(data.layout, other, block, values, table[:, 0], gradient)


GRADIENTS[RowCounts] = _gradient_into


@spliced
def table_of(data, block, width, flat):
    """The beginning of a flat array as a table with a place for each cell of a block: (cells, width), or (cells, 1)."""
    if data.grid.size > 0:
        n_cells = data.grid.shape[1]
        return flat[: n_cells * width].reshape(n_cells, width)
    first, last = block_rows(data.layout, block, width)
    n_cells = data.layout.indptr[last] - data.layout.indptr[first]
    return flat[:n_cells].reshape(n_cells, 1)


@kernel
def block_rows(layout, block, width):
    """(first, last) row of a block."""
    return block * width, min((block + 1) * width, layout.indptr.size - 1)


@kernel
def _gradient_of_cells(layout, other, block, values, means, gradient):
    rank, width = values.shape
    first, last = block_rows(layout, block, width)
    v, sums, start = np.empty(rank), np.empty(rank), layout.indptr[first]
    gradient[:] = 0.0
    for i in range(first, last):
        for k in range(rank):
            v[k] = values[k, i - first]
        begin, end = layout.indptr[i], layout.indptr[i + 1]
        _gradient_of_row(layout, other, (begin, end), v, means[begin - start : end - start], sums)
        for k in range(rank):
            gradient[k, i - first] = sums[k]


@summing_signless
def _gradient_of_row(layout, other, cells, v, means, sums):
    first, last = cells
    has_offset = layout.offset.size > 0
    sums[:] = 0.0
    for cell in range(first, last):
        u = other[layout.indices[cell]]
        mean = layout.offset[cell] if has_offset else 0.0
        for k in range(v.size):
            mean += u[k] * v[k]
        means[cell - first] = mean
        ratio = layout.values[cell] / mean
        for k in range(v.size):
            sums[k] += ratio * u[k]


@chosen_by("data", RATIOS)
def add_log_ratios(data, block, means, before, out):
    """Add to out (width,) each row's sum of x log(means / before); both as :func:`gradient_of_counts` leaves them."""


@kernel
def _add_ratios_of_counts(data, block, means, before, out):
    if data.grid.size > 0:
        after, start = table_of(data, block, out.size, means), table_of(data, block, out.size, before)
        _add_log_ratios(data.grid[block], after, start, out)
        return
    layout = data.layout
    first, last = block_rows(layout, block, out.size)
    start = layout.indptr[first]
    for i in range(first, last):
        begin, end = layout.indptr[i], layout.indptr[i + 1]
        inside = slice(begin - start, end - start)
        out[i - first] += _sum_log_ratios(layout.values[begin:end], means[inside], before[inside])


RATIOS[RowCounts] = _add_ratios_of_counts


@summing_signless
def _add_log_ratios(counts, means, before, out):
    for c in range(counts.shape[0]):
        for b in range(out.size):
            out[b] += counts[c, b] * fast_log(means[c, b] / before[c, b])


@summing_signless
def _sum_log_ratios(counts, means, before):
    total = 0.0
    for c in range(counts.size):
        total += counts[c] * fast_log(means[c] / before[c])
    return total


@chosen_by("data", CURVATURES)
def add_curvature(data, other, block, means, slope, out):
    """Add slope_k slope_j sum_c (x / m^2) u_ck u_cj to out (K, K, width), k >= j.

    Means are as :func:`gradient_of_counts` leaves them. What is added is minus the second derivative of the
    log-likelihood in coordinates of which v has this slope (K, width), less what the bend of the coordinates adds.
    """


@kernel
def _add_curvature(data, other, block, means, slope, out):
    if data.grid.size > 0:
        _add_curvature_of_grid(data.grid[block], other, means, slope, out)
    else:
        _add_curvature_of_cells(data.layout, other, block, means, slope, out)


CURVATURES[RowCounts] = _add_curvature


@chosen_by("data", PLAIN_CURVATURES)
def add_plain_curvature(data, other, block, means, out):
    """Add sum_c (x / m^2) u_ck^2 to out (K, width)."""


@kernel
def _add_plain_curvature(data, other, block, means, out):
    rank, width = out.shape
    if data.grid.size > 0:
        counts, share = data.grid[block], np.empty(width)
        for c in range(counts.shape[0]):
            _divide_squared(counts[c], means[c * width : (c + 1) * width], share)
            for k in range(rank):
                add_scaled(out[k], other[c, k] * other[c, k], share)
        return
    layout = data.layout
    first, last = block_rows(layout, block, width)
    start = layout.indptr[first]
    for i in range(first, last):
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            u, mean = other[layout.indices[cell]], means[cell - start]
            for k in range(rank):
                out[k, i - first] += layout.values[cell] / (mean * mean) * u[k] * u[k]


PLAIN_CURVATURES[RowCounts] = _add_plain_curvature


@kernel
def _add_curvature_of_grid(counts, other, means, slope, out):
    rank, width = slope.shape
    share, sums = np.empty(width), np.zeros(out.shape)
    for c in range(counts.shape[0]):
        _divide_squared(counts[c], means[c * width : (c + 1) * width], share)
        for k in range(rank):
            for j in range(k + 1):
                add_scaled(sums[k, j], other[c, k] * other[c, j], share)
    for k in range(rank):
        for j in range(k + 1):
            add_product(out[k, j], sums[k, j], slope[k], slope[j])


@summing_signless
def _divide_squared(counts, means, out):
    for b in range(out.size):
        out[b] = counts[b] / (means[b] * means[b])


@summing_signless
def add_scaled(out, factor, x):
    for b in range(out.size):
        out[b] += factor * x[b]


@summing_signless
def add_product(out, x, y, z):
    for b in range(out.size):
        out[b] += x[b] * y[b] * z[b]


@kernel
def _add_curvature_of_cells(layout, other, block, means, slope, out):
    rank, width = slope.shape
    first, last = block_rows(layout, block, width)
    start = layout.indptr[first]
    for i in range(first, last):
        b = i - first
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            u, mean = other[layout.indices[cell]], means[cell - start]
            share = layout.values[cell] / (mean * mean)
            for k in range(rank):
                for j in range(k + 1):
                    out[k, j, b] += share * slope[k, b] * slope[j, b] * u[k] * u[j]


# -- trajectories ----------------------------------------------------------------------------------------------------


class FactorRows(NamedTuple):
    """A factor's rows and their gamma conditionals less the counts: (blocks, K, width) each, and ``chance``.

    Attributes
    ----------
    values, shape, rate : positive; the rate is the prior's plus the likelihood's
    chance : (blocks, width) acceptance probability of the last trajectory
    curve : precisions of half-normal priors; `NO_CURVE` for none
    free : (K,) bool, the components that are not known
    """

    values: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    chance: np.ndarray
    curve: np.ndarray
    free: np.ndarray


NO_CURVE = np.empty((1, 0, 0))


@spliced
def curve_of(rows, block):
    """A block's precisions, or size 0."""
    return rows.curve[block] if rows.curve.size > 0 else rows.curve[0]


class Stride(NamedTuple):
    """How rows move: adapted in warm-up, then fixed.

    Attributes
    ----------
    scale : (blocks, K, width) of the coordinates
    root : (blocks, K, K, width) lower triangular, root root^T the inverse mass; size 0: identity
    step : (blocks, width)
    length : (1,) leapfrog steps
    """

    scale: np.ndarray
    root: np.ndarray
    step: np.ndarray
    length: np.ndarray


class RowWorkspace(NamedTuple):
    """Scratch for one block, overwritten.

    Attributes
    ----------
    means, before : (cells,) at the end and at the start
    u, v, slope : (K, width) coordinates, values and dv / du
    momentum, gradient : (K, width) of the trajectory
    gain : (width,) log density less kinetic energy, end less start
    step : (width,) jittered
    """

    means: np.ndarray
    before: np.ndarray
    u: np.ndarray
    v: np.ndarray
    slope: np.ndarray
    momentum: np.ndarray
    gradient: np.ndarray
    gain: np.ndarray
    step: np.ndarray


def make_workspace(most_cells: int, rank: int, width: int) -> RowWorkspace:
    """Scratch for blocks of up to ``most_cells`` cells (a grid's, padding included, or non-zeros)."""
    tables = (np.empty((rank, width)) for _ in range(5))
    return RowWorkspace(np.empty(most_cells), np.empty(most_cells), *tables, np.empty(width), np.empty(width))


class CountsTarget(NamedTuple):
    """What the trajectories of a block of rows follow; ``means`` is the scratch of its cells."""

    data: RowCounts
    other: np.ndarray
    block: int
    scale: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    curve: np.ndarray
    means: np.ndarray


@kernel
def move_rows(data, other, rows, stride, workspace, block, key):
    """One trajectory for each row of a block, in place; ``other`` (cells, K) is the other factor."""
    values, shape, rate, scale = rows.values[block], rows.shape[block], rows.rate[block], stride.scale[block]
    root = stride.root[block] if stride.root.size > 0 else stride.root[0]
    u, v, momentum, width = workspace.u, workspace.v, workspace.momentum, workspace.step.size
    before, means = table_of(data, block, width, workspace.before), table_of(data, block, width, workspace.means)
    target = CountsTarget(data, other, block, scale, shape, rate, curve_of(rows, block), means)
    copy_table(v, values)
    to_free(u, workspace.slope, v, scale)
    set_off(workspace, stride.step[block], key)
    _set_gradient(target, workspace, before)
    _subtract_energy(workspace.gain, -1.0, u, v, momentum)
    _add_all_of_prior(target, workspace, -1.0)
    leap(target, workspace, root, stride.length[0])
    _subtract_energy(workspace.gain, 1.0, u, v, momentum)
    _add_all_of_prior(target, workspace, 1.0)
    add_log_ratios(data, block, workspace.means, workspace.before, workspace.gain)
    decide(values, v, workspace.gain, rows.chance[block], fold(key, TEST))


@kernel
def _slope_of_counts(target, workspace):
    to_plain(workspace.v, workspace.slope, workspace.u, target.scale)
    _set_gradient(target, workspace, target.means)


@kernel
def _set_gradient(target, workspace, means):
    gradient_into(target.data, target.other, target.block, workspace.v, means, workspace.gradient)
    _add_prior(workspace.gradient, workspace.v, workspace.slope, target.scale, target.shape, target.rate)
    if target.curve.size > 0:
        _add_curve(workspace.gradient, workspace.v, workspace.slope, target.curve)


@kernel
def _add_all_of_prior(target, workspace, sign):
    _add_log_prior(workspace.gain, sign, workspace.v, target.scale, target.shape, target.rate)
    if target.curve.size > 0:
        _add_log_curve(workspace.gain, sign, workspace.v, target.curve)


SLOPES[CountsTarget] = _slope_of_counts


# -- elementwise work in SIMD lanes ----------------------------------------------------------------------------------


@in_lanes
def _add_prior(gradient, v, slope, scale, shape, rate):
    """From the counts' part of the gradient in v to the gradient in u."""
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            inner = gradient[k, b] - rate[k, b] - 1.0 / scale[k, b] + (shape[k, b] - 1.0) / v[k, b]
            gradient[k, b] = slope[k, b] * inner + 1.0


@in_lanes
def _subtract_energy(gain, sign, u, v, momentum):
    """Add sign * (u - kinetic energy) of every row."""
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            gain[b] += sign * (u[k, b] - 0.5 * momentum[k, b] * momentum[k, b])


@in_lanes
def _add_log_prior(gain, sign, v, scale, shape, rate):
    """Add sign * the part of the log density that depends on v but not on the counts."""
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            bend = (shape[k, b] - 1.0) * fast_log(v[k, b])
            gain[b] += sign * (bend - (rate[k, b] + 1.0 / scale[k, b]) * v[k, b])


@in_lanes
def _add_curve(gradient, v, slope, curve):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            gradient[k, b] -= slope[k, b] * curve[k, b] * v[k, b]


@in_lanes
def _add_log_curve(gain, sign, v, curve):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            gain[b] -= 0.5 * sign * curve[k, b] * v[k, b] * v[k, b]


@in_lanes
def _add_bend(out, workspace, scale, shape, rate):
    """Add to the diagonals what the prior and the bend of the coordinates, v'' = v' (1 - v' / scale), contribute."""
    for k in range(scale.shape[0]):
        for b in range(scale.shape[1]):
            slope, relative = workspace.slope[k, b], workspace.slope[k, b] / workspace.v[k, b]
            bend = 1.0 - slope / scale[k, b]
            linear = slope * (rate[k, b] + 1.0 / scale[k, b] - workspace.gradient[k, b])
            out[k, k, b] += linear * bend + (shape[k, b] - 1.0) * relative * (relative - bend)


@kernel
def measure_rows(data, other, rows, stride, workspace, block, sums):
    """Add the curvature where the rows are to ``sums``: (K, K, width) in coordinates, or size 0, and (K, width) plain.

    The lower triangle of the first, minus the second derivative of the log density in u, is what the mass of a row
    should be like. The second is the counts' part in v.
    """
    in_coordinates, plain = sums
    copy_table(workspace.v, rows.values[block])
    to_free(workspace.u, workspace.slope, workspace.v, stride.scale[block])
    gradient_of_counts(data, other, block, workspace.v, workspace.means, workspace.gradient)
    if in_coordinates.size > 0:
        add_curvature(data, other, block, workspace.means, workspace.slope, in_coordinates)
        _add_bend(in_coordinates, workspace, stride.scale[block], rows.shape[block], rows.rate[block])
    add_plain_curvature(data, other, block, workspace.means, plain)

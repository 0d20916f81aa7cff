"""Gibbs sweeps over the activations of single columns of counts, W known: the expectation step of a stream.

For a column x of counts with weights w (F, K) and h_k ~ Gamma(shape_k, rate_k), a sweep draws::

    c_f ~ Multinomial(x_f, w_f * h / (w_f . h))        where x_f > 0
    h_k ~ Gamma(shape_k + sum_f c_fk, rate_k + sum_f w_fk)        over the observed f

and what is kept are averages of the conditional expectations E[c_fk | x, h] = x_f w_fk h_k / (w_f . h) and
E[h_k | c]. Where the means of a column are e times w_f . h, all of this holds for e h_k, whose prior has the rate
rate_k / e: that is what h stands for here, in the statistics too. A new column has no previous state, so h starts at a
fixed point of h = (shape + sum_f E[c | x, h]) / rate.

Only the proportions of a row w_f matter for c, so rows are divided by their largest weight, and h by its own: products
keep their size whatever the scale of W. Cells are drawn as in :mod:`nmf_zoo.kernels.counts.allocation`.

**Running statistics** S <- (1 - g) S + g s: s has few rows, and the decay must not touch the others. S is kept as
``scale`` times an array, and the decay is ``scale *= 1 - g``. New terms are divided by the scale, so that each sum is
one addition, with the rounding of one addition, however small the scale has become. Before it reaches
``SMALLEST_SCALE`` it is multiplied into the arrays, once in hundreds or thousands of steps, which also renews the sums
over the features.

Averages over steps are as lazy: ``clock[TIME]`` is the sum of the scales since the last renewal, and a row's share is
added before the row changes: row * (TIME - row_times).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.counts.allocation import count_at_most, plus, sums_before
from nmf_zoo.kernels.random.counts import SMALL_TOTAL, SPLIT, allocate
from nmf_zoo.kernels.random.draws import draw_log_gamma
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.simd.lanes import (
    VECTOR_BYTES,
    Padded,
    add_scaled,
    dot,
    load,
    nothing,
    store,
    tile_lanes,
    width_for,
)
from nmf_zoo.kernels.simd.unowned_views import borrowed

COLUMNS, STEPS, SCALE, MASS, TIME, AVERAGED = range(6)  # of the clock
SMALLEST_SCALE = 1e-6  # TIME - row_times loses as many digits as the scale has fallen by


NOTHING = np.zeros(0)


class Running(NamedTuple):
    """The statistics of a stream, owned and overwritten in place.

    Attributes
    ----------
    sources : (F, K), over the scale: mean of E[c | x]
    everywhere : (K,), over the scale: mean of E[h | x] of columns whose features were all observed
    some : (F, K), over the scale: the same of other columns, at the features observed; (0, K) until there are any
    totals : (K,) sums of ``sources`` over the features
    sums, some_sums, everywhere_sums : sums of the three over the averaged steps; (0, K) without averages
    row_times : (F,) when the rows of the sums were brought up to date; (0,) without averages
    clock : (6,) columns seen, steps made, scale, weight of the steps so far, time, averaged steps
    unexposed, unexposed_sums : as ``everywhere`` and its sums, not times the exposures; (0,) until a column has one
    """

    sources: np.ndarray
    everywhere: np.ndarray
    some: np.ndarray
    totals: np.ndarray
    sums: np.ndarray
    some_sums: np.ndarray
    everywhere_sums: np.ndarray
    row_times: np.ndarray
    clock: np.ndarray
    unexposed: np.ndarray = NOTHING
    unexposed_sums: np.ndarray = NOTHING


@kernel
def decay(running, gain):
    """Begin a step of this size; returns the weight of what it adds.

    Weights of columns sum to 1 at every time: with nothing there yet, the first step has weight 1 whatever its size.
    """
    clock = running.clock
    before = (1.0 - gain) * clock[MASS]
    clock[MASS] = before + gain
    if before > 0.0:
        clock[SCALE] *= before / clock[MASS]
    if clock[SCALE] < SMALLEST_SCALE:
        renew(running)
    return gain / clock[MASS]


@kernel
def renew(running):
    """Multiply the scale into the arrays, bring all averages up to date, and add the totals up afresh."""
    scale, rank = running.clock[SCALE], running.totals.size
    running.totals[:] = 0.0
    for f in range(running.sources.shape[0]):
        bring_up_to_date(running, f)
        for k in range(rank):
            running.sources[f, k] *= scale
            running.totals[k] += running.sources[f, k]
            if running.some.size:
                running.some[f, k] *= scale
    running.row_times[:] = 0.0
    for k in range(rank):
        running.everywhere[k] *= scale
    for k in range(running.unexposed.size):
        running.unexposed[k] *= scale
    running.clock[SCALE], running.clock[TIME] = 1.0, 0.0


@kernel
def bring_up_to_date(running, f):
    """Add to the sums of row f what it has been since it last changed."""
    if running.row_times.size == 0:
        return
    time = running.clock[TIME] - running.row_times[f]
    running.row_times[f] = running.clock[TIME]
    for k in range(running.totals.size):
        running.sums[f, k] += running.sources[f, k] * time
        if running.some.size:
            running.some_sums[f, k] += running.some[f, k] * time


@kernel
def add_columns(running, columns, first, last, shares, active, weight):
    """Add weight * E[c | x], and weight * E[h | x], of the columns first, ..., last - 1 to the decayed statistics."""
    base, scaled = columns.indptr[first], weight / running.clock[SCALE]
    for n in range(first, last):
        for cell in range(columns.indptr[n], columns.indptr[n + 1]):
            f = columns.rows[cell]
            bring_up_to_date(running, f)
            for k in range(running.totals.size):
                term = scaled * shares[cell - base, k]
                running.sources[f, k] += term
                running.totals[k] += term
                if not columns.complete[n]:
                    running.some[f, k] += scaled * active[n - first, k]
        if columns.complete[n]:
            for k in range(running.totals.size):
                running.everywhere[k] += scaled * active[n - first, k]
            for k in range(running.unexposed.size):
                running.unexposed[k] += scaled * active[n - first, k] / columns.exposure[n]


@kernel
def end_step(running, n_columns, is_averaged):
    """Count the step; if it is averaged, the statistics count as they are now."""
    clock = running.clock
    clock[COLUMNS] += n_columns
    clock[STEPS] += 1.0
    if is_averaged:
        for k in range(running.everywhere_sums.shape[0]):
            running.everywhere_sums[k] += running.everywhere[k] * clock[SCALE]
        for k in range(running.unexposed_sums.shape[0]):
            running.unexposed_sums[k] += running.unexposed[k] * clock[SCALE]
        clock[TIME] += clock[SCALE]
        clock[AVERAGED] += 1.0


@kernel
def take_step(running, columns, first, last, shares, active, gain, is_averaged):
    """A whole step from one chunk, in one call: an interruption finds it done or not begun."""
    weight = decay(running, gain)
    add_columns(running, columns, first, last, shares, active, weight / (last - first))
    end_step(running, last - first, is_averaged)


# -- sweeps ----------------------------------------------------------------------------------------------------------


FIXED_POINTS = 5  # rounds that bring h from its prior mean to where the sweeps begin
LOG_TINY = math.log(1e-300)  # a component that is so far below the largest takes no part in a sweep


class OnlineWeights(NamedTuple):
    """W as statistics hold it: w_fk = sources_fk * top_k / (bottom_k + some_fk).

    Attributes
    ----------
    sources : (F, K)
    some : (F, K), or (0, K) for zeros
    top, bottom : (K,)
    start : (F, K), W where the statistics say nothing: before the first maximisation (``is_start``), at a feature that
        no column has shown yet, and, for proportions, at one that had no count yet
    norms : (K,) sums of W over the features
    is_start : W is ``start``
    """

    sources: np.ndarray
    some: np.ndarray
    top: np.ndarray
    bottom: np.ndarray
    start: np.ndarray
    norms: np.ndarray
    is_start: bool


class ColumnPlan(NamedTuple):
    """The priors' shape and rate of h, (K,); how many sweeps, and how many of the last are kept."""

    shape: np.ndarray
    rate: np.ndarray
    sweeps: int
    keep: int


class ColumnWorkspace(NamedTuple):
    """What a chunk of columns gives, and scratch to get it.

    Attributes
    ----------
    width : as of :class:`nmf_zoo.kernels.simd.lanes.Padded`
    shares : (cells, lanes) E[c | x] of the chunk's cells
    active : (columns, K) E[h | x], times the exposure
    rows : (cells of the longest column, lanes) weights, each row divided by its largest
    row : (2, lanes) h over its largest cell; counts of "component k or later"
    small : (4, K) rate, logarithm of h, and two rows of scratch
    counts : (K,) int64, of a large count
    """

    width: tuple[int, ...]
    shares: np.ndarray
    active: np.ndarray
    rows: np.ndarray
    row: np.ndarray
    small: np.ndarray
    counts: np.ndarray


def make_workspace(n_cells: int, longest: int, n_columns: int, rank: int) -> ColumnWorkspace:
    """Scratch for a chunk of so many cells and columns."""
    width = width_for(rank, np.float64)
    lanes = tile_lanes(Padded(np.empty(0), width))
    shares, rows, row = (_aligned_zeros(size, lanes) for size in (n_cells, longest, 2))
    small, counts = np.empty((4, rank)), np.empty(rank, np.int64)
    return ColumnWorkspace(width, shares, np.empty((n_columns, rank)), rows, row, small, counts)


def _aligned_zeros(rows: int, lanes: int) -> np.ndarray:
    """Zeros (rows, lanes) that begin on a vector's boundary."""
    raw = np.zeros(rows * lanes + VECTOR_BYTES // 8)
    skipped = -raw.ctypes.data % VECTOR_BYTES // 8
    return raw[skipped : skipped + rows * lanes].reshape(rows, lanes)


@kernel
def expect_columns(columns, first, last, weights, plan, workspace, key):
    """Overwrite the workspace's shares and active for the columns first, ..., last - 1. Returns their counts, summed.

    Activations are times the exposure of their column. Draws are keyed by a column's number in the stream.
    """
    base, total = columns.indptr[first], 0.0
    for n in range(first, last):
        begin, end = columns.indptr[n], columns.indptr[n + 1]
        _gather(columns, begin, end, columns.complete[n], weights, workspace)
        for k in range(plan.rate.size):
            workspace.small[0, k] += plan.rate[k] / columns.exposure[n]
        x = columns.values[begin:end]
        shares = Padded(workspace.shares[begin - base : end - base], workspace.width)
        _begin(x, plan, workspace)
        active = workspace.active[n - first]
        active[:] = 0.0
        for i in range(x.size):
            workspace.shares[begin - base + i] = 0.0
            total += x[i]
        column_key = fold(key, columns.number + n)
        for sweep in range(plan.sweeps):
            is_kept = sweep >= plan.sweeps - plan.keep
            sweep_key = fold(column_key, sweep)
            _sweep(x, shares, plan, workspace, is_kept, sweep_key)
            if is_kept:
                for k in range(active.size):
                    active[k] += (plan.shape[k] + workspace.small[2, k]) / (workspace.small[0, k] * plan.keep)
        for i in range(x.size):
            for k in range(active.size):
                workspace.shares[begin - base + i, k] *= x[i] * workspace.rows[i, k] / plan.keep
    return total


@kernel
def fill_row(out, f, weights):
    """Overwrite out (K,) with row f of W; False where it is 0 although the feature was seen, and out is ``start``."""
    largest = 0.0
    for k in range(weights.top.size):
        below = weights.bottom[k] + (weights.some[f, k] if weights.some.size else 0.0)
        out[k] = weights.sources[f, k] * weights.top[k] / below if below > 0.0 else weights.start[f, k]
        if weights.is_start:
            out[k] = weights.start[f, k]
        largest = max(largest, out[k])
    if largest > 0.0:
        return True
    for k in range(weights.top.size):
        out[k] = weights.start[f, k]
    return False


@kernel
def _gather(columns, begin, end, is_complete, weights, workspace):
    """Rows of W at the cells, each over its largest; small[0]: sums of W over the observed features."""
    sums, row = workspace.small[0], workspace.small[1]
    for k in range(sums.size):
        sums[k] = weights.norms[k] if is_complete else 0.0
    for i in range(end - begin):
        is_known, largest = fill_row(row, columns.rows[begin + i], weights), 0.0
        for k in range(sums.size):
            largest = max(largest, row[k])
            if is_known and not is_complete:
                sums[k] += row[k]
        for k in range(sums.size):
            workspace.rows[i, k] = row[k] / largest


@kernel
def _begin(x, plan, workspace):
    """h near its conditional mode: a few rounds of h = (shape + sum_f x_f w_f h / (w_f . h)) / rate, from the prior."""
    rows, row, rank = Padded(workspace.rows, workspace.width), Padded(workspace.row, workspace.width), plan.shape.size
    for k in range(rank):
        workspace.row[0, k] = plan.shape[k] / workspace.small[0, k]
    for _ in range(FIXED_POINTS):
        h, numerator = load(row, 0, 0), nothing(load(row, 0, 0))
        for i in range(x.size):
            if x[i] > 0.0:
                w = load(rows, i, 0)
                numerator = add_scaled(numerator, x[i] / max(dot(w, h), SMALL_TOTAL), w)
        store(row, 1, 0, numerator)
        for k in range(rank):
            workspace.row[0, k] = (plan.shape[k] + workspace.row[1, k] * workspace.row[0, k]) / workspace.small[0, k]
    for k in range(rank):
        workspace.small[1, k] = math.log(workspace.row[0, k])
    _rescale(workspace)


@kernel
def _rescale(workspace):
    """row[0]: h over its largest cell."""
    largest = -np.inf
    for k in range(workspace.small.shape[1]):
        largest = max(largest, workspace.small[1, k])
    for k in range(workspace.small.shape[1]):
        workspace.row[0, k] = math.exp(max(workspace.small[1, k] - largest, LOG_TINY))


@kernel
def _sweep(x, shares, plan, workspace, is_kept, key):
    """Draw c given h, then h given c; add h / (w_f . h) to the shares if this h is kept. small[2]: counts by k."""
    rows, row, counts = (
        Padded(workspace.rows, workspace.width),
        Padded(workspace.row, workspace.width),
        workspace.small[2],
    )
    h = load(row, 0, 0)
    later, rank = nothing(h), plan.shape.size
    counts[:] = 0.0
    for i in range(x.size):
        if x[i] == 0.0:
            continue
        before, total = sums_before(h, load(rows, i, 0))
        cell_key = fold(key, i)
        if not SMALL_TOTAL < total < np.inf:
            _give_to_largest(x[i], i, shares.values, workspace, is_kept)
            continue
        if is_kept:
            store(shares, i, 0, add_scaled(load(shares, i, 0), 1.0 / total, h))
        if x[i] > SPLIT * (rank - 1):
            _allocate_large(x[i], i, workspace, cell_key)
        else:
            drawn = nothing(h)
            for unit in range(np.int64(x[i])):
                drawn = count_at_most(drawn, before, uniform(cell_key, unit) * total)
            later = plus(later, drawn)
    store(row, 1, 0, later)
    h_key = fold(key, x.size)
    for k in range(rank):
        counts[k] += workspace.row[1, k] - (workspace.row[1, k + 1] if k + 1 < workspace.row.shape[1] else 0.0)
        shape = plan.shape[k] + counts[k]
        workspace.small[1, k] = draw_log_gamma(shape, fold(h_key, k)) - math.log(workspace.small[0, k])
    _rescale(workspace)


@kernel
def _allocate_large(x, i, workspace, key):
    """One cell by binomials."""
    weights, rank = workspace.small[3], workspace.small.shape[1]
    cumulative = workspace.row[1, :rank]  # overwritten at the end of the sweep
    for k in range(rank):
        weights[k] = workspace.row[0, k] * workspace.rows[i, k]
    allocate(np.int64(x), borrowed(weights), borrowed(cumulative), borrowed(workspace.counts), key)
    for k in range(rank):
        workspace.small[2, k] += workspace.counts[k]


@kernel
def _give_to_largest(x, i, shares, workspace, is_kept):
    """A cell whose products all underflow: the largest takes it, beside which the others are nothing."""
    best, largest = 0, -np.inf
    for k in range(workspace.small.shape[1]):
        size = math.log(workspace.rows[i, k]) + workspace.small[1, k] if workspace.rows[i, k] > 0.0 else -np.inf
        if size > largest:
            best, largest = k, size
    workspace.small[2, best] += x
    if is_kept:
        shares[i, best] += 1.0 / workspace.rows[i, best]

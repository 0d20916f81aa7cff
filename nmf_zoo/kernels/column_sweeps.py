"""Gibbs sweeps over the activations of single columns of counts, W known: the expectation step of a stream.

For a column x of counts with weights w (F, K) and h_k ~ Gamma(shape_k, rate_k), a sweep draws::

    c_f ~ Multinomial(x_f, w_f * h / (w_f . h))        where x_f > 0
    h_k ~ Gamma(shape_k + sum_f c_fk, rate_k + sum_f w_fk)        over the observed f

and what is kept are averages of the conditional expectations E[c_fk | x, h] = x_f w_fk h_k / (w_f . h) and
E[h_k | c]. A new column has no previous state, so h starts at a fixed point of h = (shape + sum_f E[c | x, h]) / rate.

Only the proportions of a row w_f matter for c, so rows are divided by their largest weight, and h by its own: products
keep their size whatever the scale of W. Cells are drawn as in :mod:`nmf_zoo.kernels.allocation`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.allocation import count_at_most, plus, sums_before
from nmf_zoo.kernels.borrow import borrowed
from nmf_zoo.kernels.counts import SMALL_TOTAL, SPLIT, allocate
from nmf_zoo.kernels.draws import draw_log_gamma
from nmf_zoo.kernels.lanes import (
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
from nmf_zoo.kernels.streams import fold, kernel, uniform

FIXED_POINTS = 5  # rounds that bring h from its prior mean to where the sweeps begin
LOG_TINY = math.log(1e-300)  # a component that is so far below the largest takes no part in a sweep


class Weights(NamedTuple):
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


class Plan(NamedTuple):
    """The priors' shape and rate of h, (K,); how many sweeps, and how many of the last are kept."""

    shape: np.ndarray
    rate: np.ndarray
    sweeps: int
    keep: int


class Room(NamedTuple):
    """What a chunk of columns gives, and room to get it.

    Attributes
    ----------
    width : as of :class:`nmf_zoo.kernels.lanes.Padded`
    shares : (cells, lanes) E[c | x] of the chunk's cells
    active : (columns, K) E[h | x]
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


def make_room(n_cells: int, longest: int, n_columns: int, rank: int) -> Room:
    """Room for a chunk of so many cells and columns."""
    width = width_for(rank, np.float64)
    lanes = tile_lanes(Padded(np.empty(0), width))
    shares, rows, row = (_aligned_zeros(size, lanes) for size in (n_cells, longest, 2))
    small, counts = np.empty((4, rank)), np.empty(rank, np.int64)
    return Room(width, shares, np.empty((n_columns, rank)), rows, row, small, counts)


def _aligned_zeros(rows: int, lanes: int) -> np.ndarray:
    """Zeros (rows, lanes) that begin on a vector's boundary."""
    raw = np.zeros(rows * lanes + VECTOR_BYTES // 8)
    skipped = -raw.ctypes.data % VECTOR_BYTES // 8
    return raw[skipped : skipped + rows * lanes].reshape(rows, lanes)


@kernel
def expect_columns(columns, first, last, weights, plan, room, key):
    """Overwrite room.shares and room.active for the columns first, ..., last - 1; returns the sum of their counts.

    Draws are keyed by a column's number in the stream.
    """
    base, total = columns.indptr[first], 0.0
    for n in range(first, last):
        begin, end = columns.indptr[n], columns.indptr[n + 1]
        _gather(columns, begin, end, columns.complete[n], weights, room)
        for k in range(plan.rate.size):
            room.small[0, k] += plan.rate[k]
        x = columns.values[begin:end]
        shares = Padded(room.shares[begin - base : end - base], room.width)
        _begin(x, plan, room)
        active = room.active[n - first]
        active[:] = 0.0
        for i in range(x.size):
            room.shares[begin - base + i] = 0.0
            total += x[i]
        column_key = fold(key, columns.number + n)
        for sweep in range(plan.sweeps):
            is_kept = sweep >= plan.sweeps - plan.keep
            sweep_key = fold(column_key, sweep)
            _sweep(x, shares, plan, room, is_kept, sweep_key)
            if is_kept:
                for k in range(active.size):
                    active[k] += (plan.shape[k] + room.small[2, k]) / (room.small[0, k] * plan.keep)
        for i in range(x.size):
            for k in range(active.size):
                room.shares[begin - base + i, k] *= x[i] * room.rows[i, k] / plan.keep
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
def _gather(columns, begin, end, is_complete, weights, room):
    """Rows of W at the cells, each over its largest; small[0]: sums of W over the observed features."""
    sums, row = room.small[0], room.small[1]
    for k in range(sums.size):
        sums[k] = weights.norms[k] if is_complete else 0.0
    for i in range(end - begin):
        is_known, largest = fill_row(row, columns.rows[begin + i], weights), 0.0
        for k in range(sums.size):
            largest = max(largest, row[k])
            if is_known and not is_complete:
                sums[k] += row[k]
        for k in range(sums.size):
            room.rows[i, k] = row[k] / largest


@kernel
def _begin(x, plan, room):
    """h near its conditional mode: a few rounds of h = (shape + sum_f x_f w_f h / (w_f . h)) / rate, from the prior."""
    rows, row, rank = Padded(room.rows, room.width), Padded(room.row, room.width), plan.shape.size
    for k in range(rank):
        room.row[0, k] = plan.shape[k] / room.small[0, k]
    for _ in range(FIXED_POINTS):
        h, pull = load(row, 0, 0), nothing(load(row, 0, 0))
        for i in range(x.size):
            if x[i] > 0.0:
                w = load(rows, i, 0)
                pull = add_scaled(pull, x[i] / max(dot(w, h), SMALL_TOTAL), w)
        store(row, 1, 0, pull)
        for k in range(rank):
            room.row[0, k] = (plan.shape[k] + room.row[1, k] * room.row[0, k]) / room.small[0, k]
    for k in range(rank):
        room.small[1, k] = math.log(room.row[0, k])
    _rescale(room)


@kernel
def _rescale(room):
    """row[0]: h over its largest cell."""
    largest = -np.inf
    for k in range(room.small.shape[1]):
        largest = max(largest, room.small[1, k])
    for k in range(room.small.shape[1]):
        room.row[0, k] = math.exp(max(room.small[1, k] - largest, LOG_TINY))


@kernel
def _sweep(x, shares, plan, room, is_kept, key):
    """Draw c given h, then h given c; add h / (w_f . h) to the shares if this h is kept. small[2]: counts by k."""
    rows, row, counts = Padded(room.rows, room.width), Padded(room.row, room.width), room.small[2]
    h = load(row, 0, 0)
    later, rank = nothing(h), plan.shape.size
    counts[:] = 0.0
    for i in range(x.size):
        if x[i] == 0.0:
            continue
        before, total = sums_before(h, load(rows, i, 0))
        cell_key = fold(key, i)
        if not SMALL_TOTAL < total < np.inf:
            _give_to_largest(x[i], i, shares.values, room, is_kept)
            continue
        if is_kept:
            store(shares, i, 0, add_scaled(load(shares, i, 0), 1.0 / total, h))
        if x[i] > SPLIT * (rank - 1):
            _allocate_large(x[i], i, room, cell_key)
        else:
            drawn = nothing(h)
            for unit in range(np.int64(x[i])):
                drawn = count_at_most(drawn, before, uniform(cell_key, unit) * total)
            later = plus(later, drawn)
    store(row, 1, 0, later)
    h_key = fold(key, x.size)
    for k in range(rank):
        counts[k] += room.row[1, k] - (room.row[1, k + 1] if k + 1 < room.row.shape[1] else 0.0)
        shape = plan.shape[k] + counts[k]
        room.small[1, k] = draw_log_gamma(shape, fold(h_key, k)) - math.log(room.small[0, k])
    _rescale(room)


@kernel
def _allocate_large(x, i, room, key):
    """One cell by binomials."""
    weights, rank = room.small[3], room.small.shape[1]
    cumulative = room.row[1, :rank]  # overwritten at the end of the sweep
    for k in range(rank):
        weights[k] = room.row[0, k] * room.rows[i, k]
    allocate(np.int64(x), borrowed(weights), borrowed(cumulative), borrowed(room.counts), key)
    for k in range(rank):
        room.small[2, k] += room.counts[k]


@kernel
def _give_to_largest(x, i, shares, room, is_kept):
    """A cell whose products all underflow: the largest takes it, beside which the others are nothing."""
    best, largest = 0, -np.inf
    for k in range(room.small.shape[1]):
        size = math.log(room.rows[i, k]) + room.small[1, k] if room.rows[i, k] > 0.0 else -np.inf
        if size > largest:
            best, largest = k, size
    room.small[2, best] += x
    if is_kept:
        shares[i, best] += 1.0 / room.rows[i, best]

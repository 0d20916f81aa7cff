"""Exact sums over all sources of a sample's counts, by dynamic programming over the components' totals.

Given W, the counts x_f of one GaP sample have the sources c_fk with sum_k c_fk = x_f, and what their sum over all
admissible C depends on beside the features is the totals L_k = sum_f c_fk alone (Filstroff et al. 2018, eq. 28)::

    sum_C prod_f x_f! / prod_k c_fk! q_fk^c_fk  prod_k r_k(0) r_k(1) ... r_k(L_k - 1),     r_k(l) = alpha_k + slope_k l

(slope 1 for a Gamma-distributed activation; slope 0 and alpha 1 for a known background). So the counts are added one at
a time, state (L_1, ..., L_K) -> value, whatever their feature was::

    new[L + e_k] += q_fk r_k(L_k) / (A + m) old[L]                A = sum alpha, m = counts so far

All terms are positive: nothing cancels, each value keeps about 15 digits, and a scale keeps them in range. Work:
binomial(n + K, K), about n^K / K! updates for n counts; memory: binomial(n + K - 1, K - 1) values.

**Layout.** The last total follows from the others. A row holds all values of the one before it (the inner component),
contiguous and from its largest to 0, for fixed totals of the first K - 2 (the outer ones); rows lie in the order of
their outer sum. So a count is added in place, row by row from the last, and within a row from the first cell on:
whatever a cell needs lies behind it. Each row ends in cells that stay 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from nmf_zoo.kernels.borrow import borrowed
from nmf_zoo.kernels.cell_rows import LANES, add_row, advance_row, advance_row_from
from nmf_zoo.kernels.streams import kernel

FULL = 1e290  # the state's sum after a rescaling: sums only fall, so this leaves the widest range below
RESCALE = 8  # counts between two rescalings

summed = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


class Rows(NamedTuple):
    """Where the state of n counts lies.

    Attributes
    ----------
    start : (rows + 1,) its first cell
    used : (rows,) sum of the outer totals; the inner total goes from n - used down to 0
    outer : (rows, K - 2) the outer totals
    below : (rows, K - 2) the row with one less in this component, or -1
    active : (n + 1,) how many rows have a sum of at most m
    """

    start: np.ndarray
    used: np.ndarray
    outer: np.ndarray
    below: np.ndarray
    active: np.ndarray


@kernel
def _binomial(n, k):
    """n over k, exact as long as it is below 2^53."""
    result = 1
    for i in range(1, k + 1):
        result = result * (n - k + i) // i
    return result


@kernel
def lay_out(n, rank):
    """The :class:`Rows` of n counts and ``rank`` >= 2 components."""
    depth = rank - 2
    n_rows = _binomial(n + depth, depth)
    start, used = np.zeros(n_rows + 1, np.int64), np.zeros(n_rows, np.int64)
    outer, below = np.zeros((n_rows, depth), np.int64), np.full((n_rows, depth), -1, np.int64)
    active = np.zeros(n + 1, np.int64)
    sums = np.zeros(depth, np.int64)  # of the outer totals up to each: row = sum_i binomial(sums_i + i, i + 1)
    for row in range(n_rows):
        total = sums[depth - 1] if depth > 0 else 0
        used[row], active[total] = total, row + 1
        start[row + 1] = start[row] + n - total + 1 + 2 * LANES
        earlier = 0  # how many rows further down the one with one less in d lies
        for d in range(depth - 1, -1, -1):
            earlier += _binomial(sums[d] + d - 1, d)
            outer[row, d] = sums[d] - (sums[d - 1] if d > 0 else 0)
            if outer[row, d] > 0:
                below[row, d] = row - earlier
        _advance(sums)
    for m in range(1, n + 1):
        active[m] = max(active[m], active[m - 1])
    return Rows(start, used, outer, below, active)


@kernel
def _advance(sums):
    """The next partial sums in the rows' order: the first moves fastest, none above the one after it."""
    for d in range(sums.size):
        if d == sums.size - 1 or sums[d] < sums[d + 1]:
            sums[d] += 1
            return
        sums[d] = 0


@kernel
def add_count(state, rows, m, q, shape, slope):
    """Add one count of shares q (K,), scaled as the caller likes, to the state of m, in place."""
    state, (inner, final) = borrowed(state), (q.size - 2, q.size - 1)
    of_last = q[final] * shape[final], q[final] * slope[final]
    of_inner = q[inner] * shape[inner], q[inner] * slope[inner]
    first = rows.active.size - m - 2  # where the largest inner total stands in a row
    for row in range(rows.active[m + 1] - 1, -1, -1):
        begin, length, is_advanced = rows.start[row] + first, m + 2 - rows.used[row], False
        for d in range(inner):
            below = rows.below[row, d]
            if below >= 0:
                source, weight = rows.start[below] + first + 1, q[d] * (shape[d] + slope[d] * (rows.outer[row, d] - 1))
                if is_advanced:
                    add_row(state, begin, length, source, weight)
                else:
                    advance_row_from(state, begin, length, of_last, of_inner, source, weight)
                is_advanced = True
        if not is_advanced:
            advance_row(state, begin, length, of_last, of_inner)


@summed
def sum_state(state, rows, n, m):
    """Sum of the state of m counts."""
    total, state = 0.0, borrowed(state)
    for row in range(rows.active[m]):
        begin = rows.start[row] + n - m
        cells = state[begin : rows.start[row + 1] - 2 * LANES]
        for j in range(cells.size):
            total += cells[j]
    return total


@kernel
def run_forward(state, rows, order, q, shape, slope):
    """log of the sum over all sources of counts with the shares q[order[0]], q[order[1]], ...; overwrites the state."""
    n, total_shape, shares = order.size, shape.sum(), np.empty(q.shape[1])
    state[:] = 0.0
    state[rows.start[0] + n] = FULL
    log_scale, scale = -math.log(FULL), 1.0
    for m in range(n):
        factor = scale / (total_shape + m)
        for k in range(shares.size):
            shares[k] = factor * q[order[m], k]
        add_count(state, rows, m, shares, shape, slope)
        log_scale -= math.log(factor)
        scale = FULL / sum_state(state, rows, n, m + 1) if m % RESCALE == RESCALE - 1 else 1.0
    return log_scale + math.log(sum_state(state, rows, n, n))


@kernel
def golden_order(counts, n):
    """(n,) the cell of each single count, in an order whose every beginning looks like the whole.

    So no value that matters in the end is ever negligible beside the state's sum.
    """
    units, place = np.empty(n, np.int64), 0
    for cell in range(counts.size):
        for _ in range(counts[cell]):
            units[place] = cell
            place += 1
    stride = max(1, int(0.6180339887498949 * n))
    while math.gcd(stride, n) > 1:
        stride += 1
    order = np.empty(n, np.int64)
    for i in range(n):
        order[i] = units[i * stride % n]
    return order

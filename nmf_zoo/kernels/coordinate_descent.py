"""Rows of a factor, one cell after the other, each by a Newton step: Poisson data in a list of cells.

Given the other factor the rows u of a factor are independent, and each minimises the convex function::

    drag . u - sum_c x_c log(m_c) - power . log(u),      m_c = u . v_c + offset_c,    u >= 0

over the row's non-zero cells c (zeros, missing cells and a prior's rate are in ``drag``; a prior's shape in ``power``).
A cell w with slope pull(w) = sum x v / m + power / w, falling in w, and bend = -pull' is moved to the root of the line
through 1 / pull = 1 / drag, whose left side is concave in w (Cauchy-Schwarz)::

    w + (pull - drag) / bend * pull / drag

Upwards this never overshoots and is longer than Newton's own step. Downwards it may: then it is cut to
(drag - pull) / (bend + (drag - pull) / w), along which the function, being self-concordant, can't rise (Hien and Gillis
2021, section 3.2, where the scalar Newton method is due). Where the slope at 0 still points below 0, w becomes FLOOR at
once. Unlike a multiplicative update this leaves FLOOR again when the data want it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from nmf_zoo.kernels.special import fast_log

FLOOR = 1e-100  # stands for 0: a mean of 0 would forbid its counts
LEAST_SHARE = 1e-3  # a step shrinks a cell to no less, unless to FLOOR: means are updated, and keep their digits
SMALLEST = 1e-150  # means below it are divided by as if they were it: the squared reciprocal must exist
LEAST_NORMAL = 1e-300
SUMS = {"reassoc", "contract"}  # let sums run in SIMD lanes; NaN and infinity keep their meaning


@njit(cache=True, nogil=True)
def descend(layout, factor, other, drag, power, largest, chunk):
    """Move the chunk's rows of ``factor`` (major, K), in place, at ``other`` (minor, K).

    ``drag`` and ``power`` are (major or 1, K), ``largest`` (K,) the columns' largest cells. Returns (sum x log m at the
    new rows, KKT residual of the cells as they were met).
    """
    rank, longest = factor.shape[1], 0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        longest = max(longest, layout.indptr[i + 1] - layout.indptr[i])
    met, means = np.empty(rank * longest), np.empty(longest)
    total, residual = 0.0, 0.0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        first, count = layout.indptr[i], layout.indptr[i + 1] - layout.indptr[i]
        v, m, x = met[: rank * count].reshape(rank, count), means[:count], layout.values[first : first + count]
        _meet(v, other, layout.indices[first : first + count])
        _fill_means(m, factor[i], v, layout.offset, first)
        row_drag = drag[i if drag.shape[0] > 1 else 0]
        row_power = power[i if power.shape[0] > 1 else 0]
        residual = max(residual, _descend_row(factor[i], x, m, v, row_drag, row_power, largest))
        _fill_means(m, factor[i], v, layout.offset, first)
        total += sum_logs(x, m)
    return total, residual


@njit(cache=True, nogil=True)
def _meet(v, other, indices):
    """The other factor's rows that a row meets, component by component."""
    for c in range(indices.size):
        row = other[indices[c]]
        for k in range(row.size):
            v[k, c] = row[k]


@njit(cache=True, nogil=True, fastmath=SUMS)
def _fill_means(m, u, v, offset, first):
    for c in range(m.size):
        m[c] = offset[first + c] if offset.size > 0 else 0.0
    for k in range(u.size):
        w, row = u[k], v[k]
        for c in range(m.size):
            m[c] += w * row[c]


@njit(cache=True, nogil=True)
def _descend_row(u, x, m, v, drag, power, largest):
    """One round over the cells of a row; m follows. Returns the residual."""
    residual, moved, before = 0.0, 0.0, v[0]
    for k in range(u.size):
        w, d, p = u[k], drag[k], power[k]
        pull, bend = _slope_after(x, m, before, moved, v[k])
        pull, bend = pull + p / w, bend + p / w / w
        before, moved = v[k], 0.0
        if d > 0.0:
            share = w / largest[k] if largest[k] > 0.0 else 0.0
            residual = max(residual, abs(min(share, 1.0 - pull / d)))
            u[k] = _move(w, d, p, pull, bend, x, m, v[k])
            moved = u[k] - w
    return residual


@njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
def _slope_after(x, m, before, moved, v):
    """Add the last step to the means; then the slope and bend of the log-likelihood in the next cell."""
    pull, bend = 0.0, 0.0
    for c in range(x.size):
        mean = m[c] + moved * before[c]
        m[c] = mean
        share = v[c] / (mean if mean > SMALLEST else SMALLEST)
        part = x[c] * share
        pull += part
        bend += part * share
    return pull, bend


@njit(cache=True, nogil=True, error_model="numpy")
def _move(w, d, p, pull, bend, x, m, v):
    """Where a cell goes."""
    if bend <= 0.0:
        return FLOOR
    step = (pull - d) / bend * (pull / d)
    if step >= 0.0:
        return w + step
    shrink, excess = -step / w, d - pull
    if p == 0.0 and shrink > 0.5 and _slope_at_zero(x, m, v, w) <= d:
        return FLOOR
    if shrink >= 1.0 or excess * shrink < bend * w * (-math.log1p(-shrink) - shrink):
        step = -excess / (bend + excess / w)
    return max(w + step, w * LEAST_SHARE, FLOOR)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
def _slope_at_zero(x, m, v, w):
    """The slope with this cell at 0; of a mean that is hardly more than this cell a tiny share is left."""
    pull = 0.0
    for c in range(x.size):
        rest, least = m[c] - w * v[c], 1e-9 * m[c] + SMALLEST
        pull += x[c] * v[c] / (rest if rest > least else least)
    return pull


@njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
def sum_logs(x, m):
    """sum x log m with 0 log 0 := 0."""
    total, bad = 0.0, 0
    for c in range(x.size):
        total += x[c] * fast_log(m[c])
        bad += 0 if m[c] >= LEAST_NORMAL else 1
    if bad > 0:  # out of fast_log's range
        total = 0.0
        for c in range(x.size):
            if x[c] > 0.0:
                total += x[c] * (math.log(m[c]) if m[c] > 0.0 else -math.inf)
    return total

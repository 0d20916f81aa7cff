"""Rows of a factor all at once, each by a damped Newton step: Poisson data in a dense matrix.

Given the other factor V (cols, K) each row u minimises the convex function that
:mod:`nmf_zoo.kernels.coordinate_descent` states. Its second derivative is V^T diag(b_i) V + diag(power / u^2) with
b_ij = x_ij / m_ij^2, of which some neighbouring rows share one approximation, b being nearly an outer product::

    (sum_j b_ij) gram,      gram = V^T diag(b_j) V,     b_j = sum_i b_ij / sum_ij b_ij

The quadratic is minimised over u + step >= 0 by coordinate descent. Along the step, Newton's length for the true
function is taken, cut where the function, being self-concordant, might rise: the approximation costs speed, never
monotony.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nmf_zoo.kernels.coordinate_descent import FLOOR, SMALLEST, SUMS

LANES = 32  # rows solved side by side: loops over them run in SIMD lanes, and their buffers stay in cache
SAFE = 0.68  # times the distance to the nearest pole, a Newton step of a self-concordant function can't rise


@njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
def fill_bends(ratios, bends, x, means):
    """Overwrite ratios (rows, cols) with x / m and bends with x / m^2."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            inverse = 1.0 / (means[i, j] if means[i, j] > SMALLEST else SMALLEST)
            ratio = x[i, j] * inverse
            ratios[i, j] = ratio
            bends[i, j] = ratio * inverse


@njit(cache=True, nogil=True, error_model="numpy")
def solve_quadratic(steps, factor, slopes, row_bends, gram, own, most):
    """Overwrite steps (rows, K) with the minimisers of slopes . s + s (row_bend gram + diag(own)) s / 2.

    They keep factor + s >= 0. At most ``most`` rounds over the cells. ``own`` is (rows, K), or (0, 0) when it is 0.
    """
    rank = factor.shape[1]
    gradient, moved, cells = np.empty((rank, LANES)), np.empty((rank, LANES)), np.empty((rank, LANES))
    extra = np.zeros((rank, LANES))
    for start in range(0, factor.shape[0], LANES):
        count = min(LANES, factor.shape[0] - start)
        for r in range(LANES):
            i = start + min(r, count - 1)
            for k in range(rank):
                gradient[k, r] = slopes[i, k] / row_bends[i]
                cells[k, r], moved[k, r] = factor[i, k], 0.0
                if own.size > 0:
                    extra[k, r] = own[i, k] / row_bends[i]
        first = 0.0
        for _ in range(most):
            largest = _round(gradient, moved, cells, extra, gram)
            first = max(first, largest)
            if largest <= 1e-24 * first:
                break
        for r in range(count):
            for k in range(rank):
                steps[start + r, k] = max(moved[k, r], -factor[start + r, k])  # rounding may have gone below


@njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
def _round(gradient, moved, cells, extra, gram):
    """One round over the cells of some rows; returns the largest move, in the metric of the quadratic."""
    rank, lanes = cells.shape
    step, largest = np.empty(lanes), 0.0
    for k in range(rank):
        size = 0.0
        for r in range(lanes):
            bend, g = gram[k, k] + extra[k, r], gradient[k, r]
            newton = -g / bend if bend > 0.0 else (-np.inf if g > 0.0 else 0.0)  # without a bend, as far as it goes
            room = -(cells[k, r] + moved[k, r])
            step[r] = newton if newton > room else room
            moved[k, r] += step[r]
            gradient[k, r] += step[r] * extra[k, r]
            size += step[r] * step[r] * bend
        if size > 0.0:
            largest = max(largest, size)
            for j in range(rank):
                g = gram[k, j]
                for r in range(lanes):
                    gradient[j, r] += g * step[r]
    return largest


@njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS | {"nnan", "nsz"})
def _along(bends, changes, means):
    """Second derivative of a row's log-likelihood along its step, and 1 / the distance to the nearest pole."""
    bend, pole = 0.0, 0.0
    for j in range(means.size):
        bend += bends[j] * changes[j] * changes[j]
        nearness = -changes[j] / (means[j] if means[j] > SMALLEST else SMALLEST)
        pole = nearness if nearness > pole and bends[j] > 0.0 else pole  # no logarithm where there is no count
    return bend, pole


@njit(cache=True, nogil=True, error_model="numpy")
def step_lengths(lengths, factor, steps, slopes, power, bends, changes, means):
    """Overwrite lengths (rows,) with how far each row goes along its step; ``changes`` are the steps' means."""
    for i in range(lengths.size):
        bend, pole = _along(bends[i], changes[i], means[i])
        p, gain, room = power[i if power.shape[0] > 1 else 0], 0.0, np.inf
        for k in range(factor.shape[1]):
            w, s = factor[i, k], steps[i, k]
            gain -= slopes[i, k] * s
            bend += p[k] * (s / w) * (s / w)
            if s < 0.0:
                room = min(room, -w / s)
                pole = max(pole, -s / w) if p[k] > 0.0 else pole
        newton = gain / bend if bend > 0.0 else np.inf
        safe = newton if newton * pole <= SAFE else gain / (bend + gain * pole)
        length = min(safe, room) if gain > 0.0 else 0.0
        lengths[i] = length if length < np.inf else 0.0


@njit(cache=True, nogil=True)
def advance(factor, means, steps, changes, lengths):
    """Go: factor and means (rows, cols) follow, in place."""
    for i in range(lengths.size):
        length = lengths[i]
        for k in range(factor.shape[1]):
            w = factor[i, k] + length * steps[i, k]
            factor[i, k] = w if w > FLOOR else FLOOR
        for j in range(means.shape[1]):
            means[i, j] += length * changes[i, j]

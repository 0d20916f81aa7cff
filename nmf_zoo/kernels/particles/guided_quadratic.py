"""The log-likelihood of one sample as a quadratic of its activations, and where to expand it.

log g(h) = sum_c x_c log rate_c(h) - sum_k drag_k h_k is concave, and close to h' shift - h' precision h / 2 around any
point, with::

    precision = sum_c x_c w_c w_c' / rate_c^2,      shift = sum_c x_c w_c / rate_c - drag + precision point

Where counts are large that holds over the whole posterior; a proposal built on it stays exact where it does not, for
it is corrected by its weights. The point is the mode of g times independent normals, one for each component, that
the particles' own laws add up to, within 0 and a largest activation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.basis_states import in_lanes
from nmf_zoo.kernels.streams import kernel

STEPS, CYCLES, HALVINGS = 8, 12, 6
SMALLEST_RATE = 1e-100  # its inverse square is far from overflow


class Normals(NamedTuple):
    """means, variances : (K,) of independent normal laws; largest : the largest value, 0 being the smallest."""

    means: Any
    variances: Any
    largest: float


@in_lanes
def expand(precision, shift, point, target, t):
    """Overwrite precision (K, K) and shift (K,) with those of log g around the point (K,)."""
    counts, W, rank = target.counts, target.W, point.size
    row = t if counts.drag.shape[0] > 1 else 0
    precision[:] = 0.0
    for k in range(rank):
        shift[k] = -counts.drag[row, k]
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        f, x = counts.indices[c], counts.values[c]
        rate = rate_at(point, target, c)
        if rate < SMALLEST_RATE:  # no particle can make this count
            continue
        for k in range(rank):
            slope = x * W[f, k] / rate
            shift[k] += slope
            for j in range(k + 1):
                precision[k, j] += slope * (W[f, j] / rate)
    for k in range(rank):
        for j in range(k):
            precision[j, k] = precision[k, j]
    for k in range(rank):
        for j in range(rank):
            shift[k] += precision[k, j] * point[j]


@kernel
def rate_at(point, target, c):
    """The rate of the listed cell c at the activations ``point`` (K,)."""
    counts, f = target.counts, target.counts.indices[c]
    rate = target.base[f] + (counts.offset[c] if counts.offset.size > 0 else 0.0)
    for k in range(point.size):
        rate += target.W[f, k] * point[k]
    return rate


@kernel
def find_point(point, precision, shift, target, t, normals):
    """Move the point (K,), inside its bounds, to the mode of g times the normals, and expand there.

    Newton's method on the bounded quadratic, its steps halved until the target grows.
    """
    trial = np.empty(point.size)
    here = log_target(point, target, t, normals)
    expand(precision, shift, point, target, t)
    for _ in range(STEPS):
        for k in range(point.size):
            trial[k] = point[k]
        solve_bounded(trial, precision, shift, normals)
        there = log_target(trial, target, t, normals)
        for _ in range(HALVINGS):
            if there >= here:
                break
            for k in range(point.size):
                trial[k] = 0.5 * (trial[k] + point[k])
            there = log_target(trial, target, t, normals)
        if not there > here:
            break
        gain, here = there - here, there
        for k in range(point.size):
            point[k] = trial[k]
        expand(precision, shift, point, target, t)
        if gain < 1e-2:
            break


@kernel
def log_target(point, target, t, normals):
    """log g at the point plus the log-density of the normals, up to a constant."""
    counts, total = target.counts, 0.0
    row = t if counts.drag.shape[0] > 1 else 0
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        rate = rate_at(point, target, c)
        if rate < SMALLEST_RATE:
            return -math.inf
        total += counts.values[c] * math.log(rate)
    for k in range(point.size):
        off = point[k] - normals.means[k]
        total -= counts.drag[row, k] * point[k] + 0.5 * off * off / normals.variances[k]
    return total


@kernel
def solve_bounded(point, precision, shift, normals):
    """Move the point to the top of the quadratic plus the normals within the bounds, one coordinate after the other."""
    for _ in range(CYCLES):
        moved = 0.0
        for k in range(point.size):
            tightness = 1.0 / normals.variances[k]
            slope = shift[k] + (normals.means[k] - point[k]) * tightness
            for j in range(point.size):
                slope -= precision[k, j] * point[j]
            step = slope / (precision[k, k] + tightness)
            new = min(max(point[k] + step, 0.0), normals.largest)
            moved = max(moved, abs(new - point[k]) * (precision[k, k] + tightness) ** 0.5)
            point[k] = new
        if moved < 1e-2:
            break

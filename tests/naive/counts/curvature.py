"""Slow, obvious twins of Newton steps from sums over cells: plain NumPy, one row at a time, on a full matrix."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.counts.curvature import CLOSE, MOST_SHRINK, ROUNDS
from nmf_zoo.kernels.counts.newton import FLOOR


def curvature(u, x, V, active, known=(), offset=0.0):
    """Of a row u (K,) with counts x (N,) at V (N, K), over its active components; known ones don't move."""
    means = V @ u + offset
    others = np.setdiff1d(np.arange(len(u)), [*active, *known])
    left = 1.0 - V[:, others] @ u[others] / means
    return np.einsum("n,nk,nl->kl", x / means**2 / left, V[:, active], V[:, active])


def step(u, sources, square, active, linear, power, curve):
    """Where the Newton step of a row's active cells leads; others stay."""
    slopes = linear + curve * u - (sources + power) / u
    square = square + np.diag((power / u**2 + curve)[active])
    slopes, least, s, first = slopes[active], -MOST_SHRINK * u[active], np.zeros(len(active)), 0.0
    for _ in range(ROUNDS):
        largest = 0.0
        for k in range(len(active)):
            if square[k, k] <= 0.0:
                s[k] = -u[active[k]] if slopes[k] > 0 else 0.0
                continue
            move = max(-(slopes + square @ s)[k] / square[k, k], least[k] - s[k])
            s[k] += move
            largest = max(largest, move**2 * square[k, k])
        first = max(first, largest)
        if largest <= CLOSE * first:
            break
    rise, gain = (slopes + square @ s) @ s, -slopes @ s
    new = u.copy()
    new[active] = np.maximum(u[active] + (gain / (gain + rise) if rise > 0 else 1.0) * s, FLOOR)
    return new

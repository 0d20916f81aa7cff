"""Shears along the orbit of equal W H under inverse-gamma priors: w_k += e w_j, h_j -= e h_k.

As in :func:`nmf_zoo.kernels.gibbs.move_shears`, where the priors are gamma: both factors stay positive on an interval
of e, whose density there is the prior's at the sheared factors (the Jacobian is 1), drawn from by a slice. With
r = w_j / w_k a cell's part of its logarithm is::

    -(a + 1) log(1 + e r) - (b / w_k) (1 / (1 + e r) - 1)

The shear leaves W H alone but not the components' powers, so it belongs after the factors and before the next powers.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from nmf_zoo.kernels.draws import draw_exponential
from nmf_zoo.kernels.gibbs import BRACKET, MAX_SHRINKS, ROUNDING, add_row, divide_rows, log_logistic_density
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import fold, kernel, uniform

sums_in_lanes = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})


@sums_in_lanes
def _log_change(ratios, shape, pull, step):
    """Change of the log prior of a row whose cells v become v (1 + step ratio); ``pull`` is scale / v."""
    total = 0.0
    for i in range(ratios.size):
        growth = max(1.0 + step * ratios[i], ROUNDING)
        total -= (shape[i] + 1.0) * fast_log(growth) + pull[i] * (1.0 / growth - 1.0)
    return total


@kernel
def _draw_step(lower, upper, of_w, of_h, key):
    """Slice draw of the step on (lower, upper), as `_draw_shear_step` of :mod:`nmf_zoo.kernels.gibbs`.

    ``of_w`` and ``of_h``: (ratios, shape, pull).
    """
    start = math.log(-lower) - math.log(upper)
    level = log_logistic_density(start) - draw_exponential(fold(key, 0))
    stream = fold(key, 1)
    left = start - BRACKET * uniform(stream, 0)
    right = left + BRACKET
    for attempt in range(1, MAX_SHRINKS):
        u = left + (right - left) * uniform(stream, attempt)
        step = lower / (1.0 + math.exp(u)) + upper / (1.0 + math.exp(-u))
        change = _log_change(of_w[0], of_w[1], of_w[2], step) + _log_change(of_h[0], of_h[1], of_h[2], -step)
        if change + log_logistic_density(u) >= level:
            return step
        if u < start:
            left = u
        else:
            right = u
    return 0.0


@kernel
def move_inverse_shears(W, H, shape_w, scale_w, shape_h, scale_h, key):
    """Shear every ordered pair (k, j), each step from its exact conditional given W H.

    W is (K, F) and H is (K, N), components as rows; shapes and scales of the priors alike. Leaves W^T H as it is.
    """
    ratios_w, ratios_h = np.empty(W.shape[1]), np.empty(H.shape[1])
    pull_w, pull_h = np.empty(W.shape[1]), np.empty(H.shape[1])
    for k in range(W.shape[0]):
        for j in range(W.shape[0]):
            if j == k:
                continue
            for f in range(W.shape[1]):
                pull_w[f] = scale_w[k, f] / W[k, f]
            for n in range(H.shape[1]):
                pull_h[n] = scale_h[j, n] / H[j, n]
            lower, upper = -divide_rows(W[j], W[k], ratios_w), divide_rows(H[k], H[j], ratios_h)
            of_w, of_h = (ratios_w, shape_w[k], pull_w), (ratios_h, shape_h[j], pull_h)
            step = _draw_step(lower, upper, of_w, of_h, fold(fold(key, k), j))
            add_row(W[k], W[j], step)
            add_row(H[j], H[k], -step)

"""Draws of the modified half-normal law: what a half-normal prior and a count leave of a factor's cell.

The density is proportional to w^(s - 1) exp(-c w - q w^2 / 2), with s >= 1 (Sun, Kong, Pal 2021, The modified
half-normal distribution, Communications in Statistics). Its mode in log w is m, the root of q m^2 + c m = s, and
t = log(w / m) has a density proportional to exp(psi(t)),

    psi(t) = -a (e^t - 1 - t) - b (e^(2 t) - 1 - 2 t) / 2,      a = c m, b = q m^2, a + b = s,

concave with its maximum psi(0) = 0 and the curvature -(a + 2 b) there. The hat is 1 in the middle and the tangents at
t = +-sqrt(2 / (a + 2 b)) outside. Since a + b >= 1, psi is between -0.56 and -2.2 at both, so that the share of
proposals that are accepted is bounded for all parameters: three in four or so (a test has it).
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.random.draws import TINY, exponential_from
from nmf_zoo.kernels.random.keyed_rng import ONE, fold, uniform

ZERO = np.uint64(0)


@kernel
def _psi(t, a, b):
    return -a * (math.expm1(t) - t) - 0.5 * b * (math.expm1(2.0 * t) - 2.0 * t)


@kernel
def _psi_slope(t, a, b):
    return -a * math.expm1(t) - b * math.expm1(2.0 * t)


@kernel
def propose_until_accepted(a, b, key):
    """(a draw of t, how many were proposed)"""
    at = math.sqrt(2.0 / (a + 2.0 * b))
    psi_right, slope_right = _psi(at, a, b), -_psi_slope(at, a, b)
    psi_left, slope_left = _psi(-at, a, b), _psi_slope(-at, a, b)
    end_right, end_left = at + psi_right / slope_right, at + psi_left / slope_left  # where the tangents reach 0
    middle = end_left + end_right
    area = middle + 1.0 / slope_left + 1.0 / slope_right
    i, proposed = ZERO, 0
    while True:
        u = uniform(key, i) * area
        tail, i = exponential_from(key, i + ONE)
        drop, i = exponential_from(key, i)
        proposed += 1
        if u < middle:
            t, log_hat = u - end_left, 0.0
        elif u < middle + 1.0 / slope_right:
            t, log_hat = end_right + tail / slope_right, -tail
        else:
            t, log_hat = -end_left - tail / slope_left, -tail
        if log_hat - drop <= _psi(t, a, b):
            return t, proposed


@kernel
def draw_modified_half_normal(shape, rate, curve, key):
    """A draw with density proportional to w^(shape - 1) exp(-rate w - curve w^2 / 2).

    shape >= 1, rate >= 0, curve > 0, all finite; else NaN.
    """
    if not (1.0 <= shape < np.inf and 0.0 <= rate < np.inf and 0.0 < curve < np.inf):
        return np.nan
    mode = 2.0 * shape / (rate + math.hypot(rate, 2.0 * math.sqrt(curve) * math.sqrt(shape)))
    a = rate * mode
    return math.exp(propose_until_accepted(a, max(shape - a, 0.0), key)[0]) * mode


@kernel
def draw_half_normal_factor(out, shape, rate, curve, first, last, key):
    """Overwrite rows first..last of out (rows, K): density ~ w^(shape - 1) exp(-rate w - curve w^2 / 2), never 0."""
    for i in range(first, last):
        row_key = fold(key, i)
        for k in range(out.shape[1]):
            drawn = draw_modified_half_normal(shape[i, k], rate[i, k], curve[i, k], fold(row_key, k))
            out[i, k] = max(drawn, TINY)

"""Generalised inverse Gaussian draws from a keyed stream.

The density is proportional to x^(p - 1) exp(-(a x + b / x) / 2). With w = sqrt(a b), p >= 0 and
x = e^t (p + sqrt(p^2 + w^2)) / a, the density of t is proportional to exp(psi(t)),

    psi(t) = -c (cosh t - 1) - p (e^t - t - 1),    c = sqrt(p^2 + w^2) - p,

concave with its maximum psi(0) = 0. The hat is 1 in the middle and the tangents at t = right and t = -left outside,
placed so that the rejection rate is bounded for all parameters (Devroye 2014, Random variate generation for the
generalized inverse Gaussian distribution). For p < 0, 1 / x has the law with -p and with a and b exchanged.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.draws import ZERO, draw_gamma, exponential_from
from nmf_zoo.kernels.streams import ONE, kernel, uniform

SMALLEST, LARGEST = np.finfo(np.float64).tiny, np.finfo(np.float64).max


@kernel
def _psi(t, c, p):
    half = math.sinh(0.5 * t)
    return -2.0 * c * half * half - p * (math.expm1(t) - t)


@kernel
def _psi_slope(t, c, p):
    return -c * math.sinh(t) - p * math.expm1(t)


@kernel
def _tangent_points(c, p):
    """(right, left): where the hat's tangents touch, chosen so that psi is about -1 there."""
    right, left = 1.0, 1.0
    if -_psi(1.0, c, p) > 2.0:
        right = math.sqrt(2.0 / (c + p))
    elif -_psi(1.0, c, p) < 0.5:
        right = math.log(4.0 / (c + 2.0 * p))
    if -_psi(-1.0, c, p) > 2.0:
        left = math.sqrt(4.0 / (c * math.cosh(1.0) + p))
    elif -_psi(-1.0, c, p) < 0.5:
        left = math.log(1.0 + 1.0 / c + math.sqrt(1.0 / c + 2.0) / math.sqrt(c))
        left = min(left, 1.0 / p) if p > 0.0 else left
    return right, left


@kernel
def _draw_log_ratio(c, p, key):
    """A draw of t with density proportional to exp(psi(t)), for c > 0 and p >= 0."""
    right, left = _tangent_points(c, p)
    psi_right, slope_right = _psi(right, c, p), -_psi_slope(right, c, p)
    psi_left, slope_left = _psi(-left, c, p), _psi_slope(-left, c, p)
    end_right, end_left = right + psi_right / slope_right, left + psi_left / slope_left  # where the tangents reach 0
    middle = end_left + end_right
    area = middle + 1.0 / slope_left + 1.0 / slope_right
    i = ZERO
    while True:
        u = uniform(key, i) * area
        tail, i = exponential_from(key, i + ONE)
        drop, i = exponential_from(key, i)
        if u < middle:
            t, log_hat = u - end_left, 0.0
        elif u < middle + 1.0 / slope_right:
            t, log_hat = end_right + tail / slope_right, -tail
        else:
            t, log_hat = -end_left - tail / slope_left, -tail
        if log_hat - drop <= _psi(t, c, p):
            return t


@kernel
def _draw_positive(p, a, b, key):
    """The draw for p >= 0 and a > 0."""
    if b == 0.0:
        return draw_gamma(p, key) / (0.5 * a)
    root = math.hypot(p, math.sqrt(a) * math.sqrt(b))
    c = max(a * (b / (root + p)), SMALLEST)  # without the floor an endless loop where a * b underflows
    return math.exp(_draw_log_ratio(c, p, key)) * ((p + root) / a)


@kernel
def draw_gig(p, a, b, key):
    """A draw with density proportional to x^(p - 1) exp(-(a x + b / x) / 2), positive and finite.

    a, b >= 0, finite; a = 0 needs p < 0 (inverse gamma), b = 0 needs p > 0 (gamma): else, there is no such law and the
    result is NaN. Results beyond the range of float64 are its ends.
    """
    if not (abs(p) < np.inf and 0.0 <= a < np.inf and 0.0 <= b < np.inf):
        return np.nan
    if (a == 0.0 and p >= 0.0) or (b == 0.0 and p <= 0.0):
        return np.nan
    x = _draw_positive(p, a, b, key) if p >= 0.0 else 1.0 / _draw_positive(-p, b, a, key)
    return min(max(x, SMALLEST), LARGEST)

"""Positive numbers as v = scale * softplus(u), u any number: like a logarithm below the scale, linear above it.

With the scale at a posterior's width in v, its curvature in u is about 1 from end to end: where v is known to within
a fraction u is linear in v, and where all that is known is that v is small u is its logarithm. The loops run in SIMD
lanes.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from nmf_zoo.kernels.special import fast_log

LOG2_E = 1.0 / math.log(2.0)
LN_2_HIGH, LN_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # LN_2_HIGH has 32 bits: n * it is exact
ROUNDER = 1.5 * 2.0**52  # x + ROUNDER has round(x) in its lowest bits
LARGEST_POWER = 700.0  # of e: beyond it results are no longer normal numbers
SMALL = 1e-2  # below it a series, whose first missing term is below rounding

_2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13 = (1.0 / math.factorial(i) for i in range(2, 14))


@njit(cache=True, nogil=True, inline="always")
def fast_exp(x):
    """e^x within two units in the last place, of x clipped to +-700. Not for code that may reassociate sums."""
    x = min(max(x, -LARGEST_POWER), LARGEST_POWER)
    shifted = x * LOG2_E + ROUNDER
    n = shifted - ROUNDER
    r = (x - n * LN_2_HIGH) - n * LN_2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (_2 + r * _3) + r2 * (_4 + r * _5)
    high = (_6 + r * _7) + r2 * (_8 + r * _9) + r4 * ((_10 + r * _11) + r2 * (_12 + r * _13))
    power = (1.0 + r) + r2 * (low + r4 * high)
    bits = np.int64(np.float64(shifted).view(np.int64) << np.int64(52)) + np.float64(power).view(np.int64)
    return np.int64(bits).view(np.float64)


@njit(cache=True, nogil=True, inline="always")
def artanh_series(z):
    """artanh(s) / s of z = s^2 <= 1/9, to rounding."""
    z2 = z * z
    z4 = z2 * z2
    first = (1.0 + z * (1 / 3)) + z2 * (1 / 5 + z * (1 / 7))
    second = (1 / 9 + z * (1 / 11)) + z2 * (1 / 13 + z * (1 / 15))
    third = (1 / 17 + z * (1 / 19)) + z2 * (1 / 21 + z * (1 / 23))
    fourth = (1 / 25 + z * (1 / 27)) + z2 * (1 / 29 + z * (1 / 31))
    return (first + z4 * second) + z4 * z4 * (third + z4 * fourth)


in_lanes = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})


@in_lanes
def to_plain(v, slope, u, scale):
    """Overwrite v with scale * softplus(u) and slope with dv / du; all (K, D).

    With e = exp(-|u|): log(1 + e) = 2 artanh(e / (2 + e)), and one division serves it and the slope.
    """
    for k in range(u.shape[0]):
        for d in range(u.shape[1]):
            e = fast_exp(-abs(u[k, d]))
            inverse = 1.0 / ((1.0 + e) * (2.0 + e))
            s = e * (1.0 + e) * inverse
            v[k, d] = scale[k, d] * (max(u[k, d], 0.0) + 2.0 * s * artanh_series(s * s))
            slope[k, d] = scale[k, d] * ((1.0 if u[k, d] > 0.0 else e) * (2.0 + e) * inverse)


@in_lanes
def to_free(u, slope, v, scale):
    """Overwrite u with the inverse, log(exp(v / scale) - 1), of v > 0, and slope with dv / du there; all (K, D)."""
    for k in range(v.shape[0]):
        for d in range(v.shape[1]):
            t = v[k, d] / scale[k, d]
            rest = 1.0 - fast_exp(-max(t, SMALL))
            small_rest = t * (1.0 - t * (1 / 2 - t * (1 / 6 - t * (1 / 24 - t * (1 / 120 - t / 720)))))
            small_log = fast_log(t) + t * (-1 / 2 + t * (1 / 24 - t * t * (1 / 2880)))
            u[k, d] = t + (small_log if t < SMALL else fast_log(rest))
            slope[k, d] = scale[k, d] * (small_rest if t < SMALL else rest)

"""Special functions fast enough to be called at every non-zero cell and every cell of a factor.

Branch-free, so that the compiler can run them in SIMD lanes.

**Softplus**: positive numbers as v = scale * softplus(u), u any number: like a logarithm below the scale, linear above
it. With the scale at a posterior's width in v, its curvature in u is about 1 from end to end: where v is known to
within a fraction u is linear in v, and where all that is known is that v is small u is its logarithm. The loops run in
SIMD lanes."""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, spliced

SQRT_HALF = np.int64(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
LN_2 = math.log(2.0)
HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)

# The even and odd halves of the minimax polynomial of log((1 + s) / (1 - s)) / s - 2, as in FreeBSD's libm.
L2, L4, L6 = 0.3999999999940941908, 0.2222219843214978396, 0.1531383769920937332
L1, L3, L5, L7 = 0.6666666666666735130, 0.2857142874366239149, 0.1818357216161805012, 0.1479819860511658591


@spliced
def fast_log(x):
    """log(x) of a normal positive x, within one unit in the last place."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits - SQRT_HALF) >> np.int64(52)
    f = np.int64(bits - (exponent << np.int64(52))).view(np.float64) - 1.0  # x = 2^exponent (1 + f)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    tail = w * (L2 + w * (L4 + w * L6)) + z * (L1 + w * (L3 + w * (L5 + w * L7)))
    half = 0.5 * f * f
    return exponent * LN_2 + (f - (half - s * (half + tail)))


@spliced
def digamma_and_log_gamma(a):
    """(psi(a), log Gamma(a)), a > 0.

    With p = a (a + 1) ... (a + 7): psi(a) = psi(a + 8) - p'/p and log Gamma(a) = log Gamma(a + 8) - log p, and both
    series of Stirling at a + 8. Accurate to 2e-15 of the larger of the value and the terms of these differences.
    """
    big = a > 1e8  # no recurrence needed, and p would overflow much later
    product, slope = 1.0, 0.0
    for k in range(8):
        slope = slope * (a + k) + product
        product = product * (a + k)
    z = a if big else a + 8.0
    v = 1.0 / z
    v2 = v * v
    log_z = fast_log(z)
    drop = 0.0 if big else slope / product
    log_drop = 0.0 if big else fast_log(product)
    bend = v2 * (
        1 / 12 - v2 * (1 / 120 - v2 * (1 / 252 - v2 * (1 / 240 - v2 * (1 / 132 - v2 * (691 / 32760 - v2 / 12)))))
    )
    rise = v * (1 / 12 - v2 * (1 / 360 - v2 * (1 / 1260 - v2 * (1 / 1680 - v2 * (1 / 1188 - v2 * (691 / 360360))))))
    return log_z - 0.5 * v - bend - drop, (z - 0.5) * log_z - z + HALF_LOG_2_PI + rise - log_drop


# -- softplus --------------------------------------------------------------------------------------------------------


LOG2_E = 1.0 / math.log(2.0)
LN_2_HIGH, LN_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # LN_2_HIGH has 32 bits: n * it is exact
ROUNDER = 1.5 * 2.0**52  # x + ROUNDER has round(x) in its lowest bits
LARGEST_POWER = 700.0  # of e: beyond it results are no longer normal numbers
SMALL = 1e-2  # below it a series, whose first missing term is below rounding

_2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13 = (1.0 / math.factorial(i) for i in range(2, 14))


@spliced
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


@spliced
def artanh_series(z):
    """artanh(s) / s of z = s^2 <= 1/9, to rounding."""
    z2 = z * z
    z4 = z2 * z2
    first = (1.0 + z * (1 / 3)) + z2 * (1 / 5 + z * (1 / 7))
    second = (1 / 9 + z * (1 / 11)) + z2 * (1 / 13 + z * (1 / 15))
    third = (1 / 17 + z * (1 / 19)) + z2 * (1 / 21 + z * (1 / 23))
    fourth = (1 / 25 + z * (1 / 27)) + z2 * (1 / 29 + z * (1 / 31))
    return (first + z4 * second) + z4 * z4 * (third + z4 * fourth)


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

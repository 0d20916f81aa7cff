"""Special functions fast enough to be called at every non-zero cell and every cell of a factor.

Branch-free, so that the compiler can run them in SIMD lanes.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

SQRT_HALF = np.int64(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
LN_2 = math.log(2.0)
HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)

# The even and odd halves of the minimax polynomial of log((1 + s) / (1 - s)) / s - 2, as in FreeBSD's libm.
L2, L4, L6 = 0.3999999999940941908, 0.2222219843214978396, 0.1531383769920937332
L1, L3, L5, L7 = 0.6666666666666735130, 0.2857142874366239149, 0.1818357216161805012, 0.1479819860511658591


@njit(cache=True, nogil=True, inline="always")
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


@njit(cache=True, nogil=True, inline="always")
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

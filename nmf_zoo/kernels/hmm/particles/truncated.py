"""Laws with density prop. to exp(shift h - precision h^2 / 2) on an interval: normals, truncated, however far out.

Where the density hardly varies over the interval a series does for the integrals, and a uniform draw for the law.
Elsewhere integrals come from Mills' ratio e^(z^2 / 2) P(Z > z), which neither under- nor overflows in the tails, and
draws from rejection (Robert 1995, Simulation of truncated normal variables). The integrals are branch-free, for loops
in SIMD lanes.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import inlined_in_lanes, kernel, spliced
from nmf_zoo.kernels.numerics.special import LARGEST_POWER, fast_exp, fast_log
from nmf_zoo.kernels.random.draws import normal_from
from nmf_zoo.kernels.random.keyed_rng import ONE, uniform

SQRT_2_PI = math.sqrt(2.0 * math.pi)
FLAT, CURVED = 0.1, 0.05  # the density counts as even where its logarithm's slope and curvature times width are below
FAR = 200.0  # beyond it the moments are those of an exponential, to rounding of what is left of the digits
MIDDLE = 4.0  # of the half-line, as `mills` maps it to (-1, 1)

# (2 + sqrt(2 pi) z) e^(z^2 / 2) P(Z > z) by powers of (z - MIDDLE) / (z + MIDDLE): Chebyshev's interpolation.
COEFFICIENTS = (
    1.135430814258179,
    -0.15607136685275896,
    -0.02792216729721024,
    0.1080194812665816,
    -0.09634499214870254,
    0.04926146459609505,
    -0.012796248629843217,
    -0.0010395904003014734,
    0.0018366792875818719,
    -0.00021363176275385106,
    -0.00023471864017095729,
    5.095272154129323e-05,
    3.630662080410487e-05,
    -8.256254619318909e-06,
    -6.82644483203984e-06,
    1.014180021142255e-06,
    1.3616067356604758e-06,
    -6.56276998057863e-08,
    -2.314142377175089e-07,
    -1.8661093088884693e-09,
    2.2801698626866837e-08,
)
(
    _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20
) = COEFFICIENTS  # fmt: skip


@inlined_in_lanes
def mills(z):
    """e^(z^2 / 2) P(Z > z) of a standard normal Z, for z >= 0, to 1e-14 of its value."""
    t = (z - MIDDLE) / (z + MIDDLE)
    s = t * t
    even = _0 + s * (
        _2 + s * (_4 + s * (_6 + s * (_8 + s * (_10 + s * (_12 + s * (_14 + s * (_16 + s * (_18 + s * _20))))))))
    )
    odd = _1 + s * (_3 + s * (_5 + s * (_7 + s * (_9 + s * (_11 + s * (_13 + s * (_15 + s * (_17 + s * _19))))))))
    return (even + t * odd) / (2.0 + SQRT_2_PI * z)


@spliced
def is_even(low, width, precision, shift):
    """Whether the density hardly varies from ``low`` to low + width."""
    slope = shift - precision * (low + 0.5 * width)
    return (abs(slope) * width < FLAT) & (precision * width * width < CURVED)


@inlined_in_lanes
def integrals(low, width, precision, shift):
    """(log of the *average* of exp(shift h - precision h^2 / 2) from low to low + width, mean, variance)."""
    middle = low + 0.5 * width
    slope, spread = shift - precision * middle, width * width / 12.0
    even_log = middle * (shift - 0.5 * precision * middle) + 0.5 * (slope * slope - precision) * spread

    root = math.sqrt(precision)
    scale, length = 1.0 / root, max(width * root, 1e-9)
    start = (low * precision - shift) * scale
    is_flipped = start + start + length < 0.0
    near = -(start + length) if is_flipped else start  # of both ends, in standard deviations, the one nearer to 0
    far, edge = near + length, low + width if is_flipped else low
    is_tail = near > 0.0
    drop = fast_exp(-0.5 * length * (far + near))  # density at the far end over that at the near one
    top = 1.0 if is_tail else fast_exp(-0.5 * near * near)  # density at the near end over that at the top
    beyond, beyond_far = mills(abs(near)), mills(far)
    total = beyond - drop * beyond_far if is_tail else 1.0 - top * (beyond + drop * beyond_far)
    log_top = edge * (shift - 0.5 * precision * edge) if is_tail else 0.5 * shift * shift / precision
    log_average = log_top + fast_log(max(total, 1e-300) * SQRT_2_PI / length)

    is_far = near > FAR
    rest = length * drop / max(1.0 - drop, 1e-9)
    at_near = top / (SQRT_2_PI * max(total, 1e-300))
    at_far = at_near * drop
    ahead = 1.0 / near - rest if is_far else at_near - at_far - near  # mean distance from the near end
    far_square = 1.0 / (near * near) - rest * (rest + length)
    near_square = 1.0 + near * at_near - far * at_far - (at_near - at_far) * (at_near - at_far)
    ahead = min(max(ahead, 0.0), length)
    square = far_square if is_far else near_square
    square = min(max(square, 1e-3 * ahead * ahead), 0.25 * length * length)

    mean = edge - ahead * scale if is_flipped else edge + ahead * scale
    even = is_even(low, width, precision, shift)
    return (
        even_log if even else log_average,
        middle + slope * spread if even else mean,
        spread if even else square * scale * scale,
    )


@kernel
def draw_truncated(low, width, precision, shift, key):
    """A draw from ``low`` to low + width, as its distance from ``low``."""
    if is_even(low, width, precision, shift):
        return width * uniform(key, 0)
    scale = 1.0 / math.sqrt(precision)
    length, start = width / scale, (low * precision - shift) * scale
    is_flipped = start + start + length < 0.0
    near = -(start + length) if is_flipped else start
    distance = min(ahead_of(near, length, key) * scale, width)
    return width - distance if is_flipped else distance


@kernel
def ahead_of(near, length, key):
    """Z - near for a standard normal Z between near and near + length, nearer to 0 at that end."""
    i = np.uint64(0)
    if near > 0.5 and near * length > 1.0:  # below an exponential that touches it at the near end
        share = 1.0 - math.exp(-min(near * length, LARGEST_POWER))
        while True:
            ahead = -math.log(1.0 - share * uniform(key, i)) / near
            if uniform(key, i + ONE) < math.exp(-0.5 * ahead * ahead):
                return min(ahead, length)
            i = i + ONE + ONE
    if length < 2.5:  # below a constant
        top = max(near, 0.0)
        while True:
            ahead = length * uniform(key, i)
            if uniform(key, i + ONE) < math.exp(0.5 * (top - near - ahead) * (top + near + ahead)):
                return ahead
            i = i + ONE + ONE
    while True:
        z, i = normal_from(key, i)
        if near < z < near + length:
            return z - near

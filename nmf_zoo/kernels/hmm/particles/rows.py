"""Loops over a row of particles that all laws share, in SIMD lanes."""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, spliced, summing
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.random.keyed_rng import uniform

ROUNDER = 1.5 * 2.0**52  # x + ROUNDER has round(x) in its lowest bits
_S3, _S5, _S7, _S9, _S11, _S13, _S15 = ((-1) ** j / math.factorial(2 * j + 1) for j in range(1, 8))
_C2, _C4, _C6, _C8, _C10, _C12, _C14, _C16 = ((-1) ** j / math.factorial(2 * j) for j in range(1, 9))


@in_lanes
def gather(out, row, ancestors):
    """out_i = row[ancestors_i]: on its own, for lanes can do what follows in place, and not what they gather."""
    for i in range(out.size):
        out[i] = row[ancestors[i]]


@in_lanes
def add_row(out, row, scale):
    """out += scale * row"""
    for i in range(out.size):
        out[i] += scale * row[i]


@in_lanes
def add_product(out, a, b, scale):
    """out += scale * a * b"""
    for i in range(out.size):
        out[i] += scale * a[i] * b[i]


@in_lanes
def add_chance(out, a, b, scale, of_a, of_b):
    """out += scale * A * B, A and B affine in a and b."""
    (a_0, a_1), (b_0, b_1) = of_a, of_b
    for i in range(out.size):
        out[i] += scale * (a_0 + a_1 * a[i]) * (b_0 + b_1 * b[i])


@in_lanes
def add_gathered(out, row, origins, scale):
    """out_i += scale * row[origins_i]"""
    for i in range(out.size):
        out[i] += scale * row[origins[i]]


@summing
def mean_of(row, weights):
    """sum_i w_i row_i"""
    total = 0.0
    for i in range(row.size):
        total += weights[i] * row[i]
    return total


@kernel
def draw_normals(out, key):
    """Overwrite out (n,) with independent standard normals, two at a time (Box, Muller 1958).

    They read the words 0 to n of the key.
    """
    half = out.size // 2
    _draw_pairs(out[:half], out[half : 2 * half], key)
    if out.size % 2:
        length = math.sqrt(-2.0 * fast_log(uniform(key, np.uint64(2 * half))))
        out[-1] = length * turn(uniform(key, np.uint64(2 * half + 1)))[0]


@in_lanes
def _draw_pairs(first, second, key):
    n = first.size
    for i in range(n):
        length = math.sqrt(-2.0 * fast_log(uniform(key, np.uint64(i))))
        cosine, sine = turn(uniform(key, np.uint64(n + i)))
        first[i], second[i] = length * cosine, length * sine


@spliced
def turn(u):
    """(cos 2 pi u, sin 2 pi u) for u in [0, 1], within 1e-15: series around the nearest quarter of a turn."""
    shifted = 4.0 * u + ROUNDER
    quarter = np.int64(np.float64(shifted).view(np.int64))
    a = (u - 0.25 * (shifted - ROUNDER)) * (2.0 * math.pi)
    z = a * a
    sine = a * (1.0 + z * (_S3 + z * (_S5 + z * (_S7 + z * (_S9 + z * (_S11 + z * (_S13 + z * _S15)))))))
    cosine = 1.0 + z * (_C2 + z * (_C4 + z * (_C6 + z * (_C8 + z * (_C10 + z * (_C12 + z * (_C14 + z * _C16)))))))
    is_odd = (quarter & 1) == 1
    across, up = (sine if is_odd else cosine), (cosine if is_odd else sine)
    return (-across if ((quarter + 1) & 2) == 2 else across), (-up if (quarter & 2) == 2 else up)

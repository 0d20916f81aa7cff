"""Slow, obvious twins of the streams and of those draws that are a formula in a few uniforms."""

import math

import numpy as np
from scipy import stats

WORD = 2**64


def mix(z, shifts, factors):
    """The xor-shift-multiply mixer on Python integers."""
    for shift, factor in zip(shifts, (*factors, 1), strict=True):
        z = ((z ^ (z >> shift)) * factor) % WORD
    return z


def fold(key, word):
    z = (int(key) + (word + 1) * 0x9E3779B97F4A7C15) % WORD
    return mix(z, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def random_bits(key, i):
    z = (int(key) + (i + 1) * 0xD1342543DE82EF95) % WORD
    return mix(z, (27, 33, 27), (0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35))


def key_with_bits(bits):
    """The key whose word 0 is ``bits``: random_bits backwards."""
    for shift, factor in ((27, 0x1C69B3F74AC4AE35), (33, 0x3C79AC492BA7B653), (27, 1)):
        bits ^= (bits >> shift) ^ (bits >> 2 * shift)
        bits = bits * pow(factor, -1, WORD) % WORD
    return np.uint64((bits - 0xD1342543DE82EF95) % WORD)


def uniform(key, i):
    return ((random_bits(key, i) // 2**12) + 0.5) / 2**52


def draw_exponential(key):
    return -math.log(uniform(key, 0))


def draw_poisson(mean, key):
    """Inversion, as for small means."""
    return int(stats.poisson.ppf(uniform(key, 0), mean))


def draw_binomial(n, p, key):
    """Inversion, as for small means."""
    k = int(stats.binom.ppf(uniform(key, 0), n, min(p, 1 - p)))
    return k if p <= 0.5 else n - k


def allocate(x, weights, key):
    """Categorical draws, as for small counts."""
    cumulative = np.cumsum(weights)
    u = np.array([uniform(key, i) for i in range(x)]) * cumulative[-1]
    return np.bincount(np.searchsorted(cumulative, u, side="right"), minlength=len(weights))

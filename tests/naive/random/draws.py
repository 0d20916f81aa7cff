"""Slow, obvious twins of the streams and of those draws that are a formula in a few uniforms."""

import math

import numpy as np
from scipy import optimize, stats

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


def layers(tail, density, area):
    """Edges and heights of 1024 layers of this area under a density that is 1 at 0, from the tail's start upwards."""
    edges, heights = [tail], [0.0, density(tail)]
    while len(edges) < 1023:
        heights.append(heights[-1] + area / edges[-1])
        edges.append(optimize.brentq(lambda x, at=heights[-1]: density(x) - at, 0.0, edges[-1]))
    return [area / density(tail), *edges, 0.0], [*heights, 1.0]


def normal_density(x):
    return math.exp(-0.5 * x * x)


def exponential_density(x):
    return math.exp(-x)


NORMAL_START, EXPONENTIAL_START = 4.038849846109503, 9.256164544265543
NORMAL_LAYERS = layers(
    NORMAL_START,
    normal_density,
    NORMAL_START * normal_density(NORMAL_START) + math.sqrt(2 * math.pi) * stats.norm.sf(NORMAL_START),
)
EXPONENTIAL_LAYERS = layers(
    EXPONENTIAL_START, exponential_density, (EXPONENTIAL_START + 1) * exponential_density(EXPONENTIAL_START)
)


def exponential_from(key, i):
    """(draw, next word): a point of a layer, accepted under the density; the tail is the same law, further out."""
    edges, heights = EXPONENTIAL_LAYERS
    word = random_bits(key, i)
    layer, x = word % 1024, ((word // 2**11) | 1) * 2.0**-53 * edges[word % 1024]
    if x < edges[layer + 1]:
        return x, i + 1
    if layer == 0:
        further, i = exponential_from(key, i + 1)
        return EXPONENTIAL_START + further, i
    height = heights[layer] + uniform(key, i + 1) * (heights[layer + 1] - heights[layer])
    return (x, i + 2) if height < exponential_density(x) else exponential_from(key, i + 2)


def normal_from(key, i):
    """(draw, next word), with Marsaglia's tail."""
    edges, heights = NORMAL_LAYERS
    word = random_bits(key, i)
    signed = word - 2**64 if word >= 2**63 else word
    layer, x = word % 1024, (signed // 2**11) * 2.0**-52 * edges[word % 1024]
    i += 1
    if abs(x) < edges[layer + 1]:
        return x, i
    if layer == 0:
        while True:
            excess, level = -math.log(uniform(key, i)) / NORMAL_START, -math.log(uniform(key, i + 1))
            i += 2
            if 2 * level > excess**2:
                return math.copysign(NORMAL_START + excess, x), i
    height = heights[layer] + uniform(key, i) * (heights[layer + 1] - heights[layer])
    return (x, i + 1) if height < normal_density(x) else normal_from(key, i + 1)


def draw_poisson(mean, key):
    """Inversion, as for small means."""
    return int(stats.poisson.ppf(uniform(key, 0), mean))


def draw_binomial(n, p, key):
    """Inversion, as for small means."""
    k = int(stats.binom.ppf(uniform(key, 0), n, min(p, 1 - p)))
    return k if p <= 0.5 else n - k


def toss_binomial(n, p, key):
    """A uniform for each of n coins, from its binary digits in 64 words, 64 coins to a word; heads where it is < p."""
    heads = 0
    for coin in range(n):
        words = range(coin // 64 * 64, coin // 64 * 64 + 64)
        digits = [random_bits(key, word) >> (coin % 64) & 1 for word in words]
        heads += int("".join(map(str, digits)), 2) < int(p * 2.0**64)
    return heads


def allocate(x, weights, key):
    """Categorical draws, as for small counts."""
    cumulative = np.cumsum(weights)
    u = np.array([uniform(key, i) for i in range(x)]) * cumulative[-1]
    return np.bincount(np.searchsorted(cumulative, u, side="right"), minlength=len(weights))

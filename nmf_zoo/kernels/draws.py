"""Continuous draws from a keyed stream: exponential, normal, gamma.

Each is a pure function of its parameters and its key, and reads the words 0, 1, ... of that key: two draws need two
keys (see `streams`). Parameters outside their range give NaN, never an endless loop.

- normal: the ziggurat with 256 layers (Marsaglia, Tsang 2000), one word for layer, sign and position in 98.8% of draws;
- gamma: a squeezed, cubed normal (Marsaglia, Tsang 2000) for shape >= 1, and G(a) = G(a + 1) U^(1/a) below.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.streams import ONE, kernel, random_bits, uniform

TAIL = 3.6541528853610088  # where the ziggurat's lowest of 256 layers ends and its tail begins
ZERO = np.uint64(0)
_LAYER = np.uint64(255)


def _ziggurat() -> tuple[np.ndarray, np.ndarray]:
    """(edges, heights), each (257,): layer i spans |x| < edges[i], between heights[i] and heights[i + 1].

    All layers have the same area. The lowest one holds the tail, hence its edge (area / height) exceeds TAIL.
    """
    area = TAIL * math.exp(-0.5 * TAIL**2) + math.sqrt(math.pi / 2) * math.erfc(TAIL / math.sqrt(2))
    edges, heights = [area / math.exp(-0.5 * TAIL**2), TAIL], [0.0, math.exp(-0.5 * TAIL**2)]
    while len(edges) < 256:
        heights.append(heights[-1] + area / edges[-1])
        edges.append(math.sqrt(-2 * math.log(heights[-1])))
    return np.array([*edges, 0.0]), np.array([*heights, 1.0])


_EDGES, _HEIGHTS = _ziggurat()
_SCALES = _EDGES * 2.0**-52


@kernel
def draw_exponential(key):
    """An exponential draw of rate 1."""
    return -math.log(uniform(key, 0))


@kernel
def _normal_tail(key, i):
    """(|x|, next unread word): a normal beyond TAIL, by Marsaglia's exponential rejection."""
    while True:
        x = -math.log(uniform(key, i)) / TAIL
        y = -math.log(uniform(key, i + ONE))
        i = i + ONE + ONE
        if y + y > x * x:
            return TAIL + x, i


@kernel
def normal_from(key, i):
    """(normal draw, next unread word): a normal from the words i, i + 1, ... of a key; i must be uint64."""
    while True:
        bits = random_bits(key, i)
        i = i + ONE
        layer = bits & _LAYER
        x = np.float64(np.int64(bits) >> 11) * _SCALES[layer]
        if abs(x) < _EDGES[layer + ONE]:
            return x, i
        if layer == ZERO:
            size, i = _normal_tail(key, i)
            return math.copysign(size, x), i
        height = _HEIGHTS[layer] + uniform(key, i) * (_HEIGHTS[layer + ONE] - _HEIGHTS[layer])
        i = i + ONE
        if height < math.exp(-0.5 * x * x):
            return x, i


@kernel
def draw_normal(key):
    """A standard normal draw."""
    return normal_from(key, ZERO)[0]


@kernel
def _gamma_from(shape, key):
    """(Gamma(shape, 1) draw, next unread word) for shape >= 1; NaN below 1/3 or for NaN."""
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    i = ZERO
    while d > 0.0:
        x, i = normal_from(key, i)
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        u = uniform(key, i)
        i = i + ONE
        x2 = x * x
        if u < 1.0 - 0.0331 * x2 * x2 or math.log(u) < 0.5 * x2 + d * (1.0 - v + math.log(v)):
            return d * v, i
    return np.nan, i


@kernel
def draw_gamma(shape, key):
    """A Gamma(shape, rate 1) draw, shape > 0. Far below shape 1 it underflows to 0: use draw_log_gamma there."""
    if shape >= 1.0:
        return _gamma_from(shape, key)[0]
    if not shape > 0.0:
        return np.nan
    g, i = _gamma_from(shape + 1.0, key)
    return g * math.exp(math.log(uniform(key, i)) / shape)


@kernel
def draw_log_gamma(shape, key):
    """The logarithm of draw_gamma(shape, key), finite for every shape > 0 however small."""
    if shape >= 1.0:
        return math.log(_gamma_from(shape, key)[0])
    if not shape > 0.0:
        return np.nan
    g, i = _gamma_from(shape + 1.0, key)
    return math.log(g) + math.log(uniform(key, i)) / shape

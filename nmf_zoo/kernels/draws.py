"""Continuous draws from a keyed stream: exponential, normal, gamma.

Each is a pure function of its parameters and its key, and reads the words 0, 1, ... of that key: two draws need two
keys (see `streams`). Parameters outside their range give NaN, never an endless loop.

- exponential, normal: the ziggurat with 1024 layers (Marsaglia, Tsang 2000): one word for layer, sign and position in
  99.4% and 99.7% of draws. Only that path is inlined, and the rest is called; what a miss costs is mostly the wrong
  guess of the branch, hence the many layers;
- gamma: a squeezed, cubed normal (Marsaglia, Tsang 2000) for shape >= 1, and G(a) = G(a + 1) U^(1/a) below.

``*_from(key, i)`` takes its words from i on and returns the next unread one beside the draw: many draws of one key.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from nmf_zoo.kernels.streams import ONE, kernel, random_bits, uniform

inlined = njit(cache=True, nogil=True, error_model="numpy", forceinline=True)  # a call costs as much as a draw

ZERO = np.uint64(0)
LAYERS = 1024
_LAYER, _POSITION = np.uint64(LAYERS - 1), np.uint64(11)  # the lowest 10 bits of a word and the highest 53
NORMAL_TAIL, EXPONENTIAL_TAIL = 4.038849846109503, 9.256164544265543  # where the lowest layer ends and the tail begins


def _ziggurat(tail: float, density: float, beyond: float, inverse) -> tuple[np.ndarray, np.ndarray]:
    """(edges, heights), each (LAYERS + 1,): layer i spans |x| < edges[i], between heights[i] and heights[i + 1].

    ``density`` at the tail's start, the mass ``beyond`` it, ``inverse`` from a height to the x of that density (1 at
    0). All layers have the same area. The lowest one holds the tail, hence its edge (area / height) exceeds the tail's
    start.
    """
    area = tail * density + beyond
    edges, heights = [area / density, tail], [0.0, density]
    while len(edges) < LAYERS:
        heights.append(heights[-1] + area / edges[-1])
        edges.append(inverse(heights[-1]))
    return np.array([*edges, 0.0]), np.array([*heights, 1.0])


def _normal_at(height: float) -> float:
    return math.sqrt(-2 * math.log(height))


def _exponential_at(height: float) -> float:
    return -math.log(height)


_NORMAL_DENSITY, _NORMAL_BEYOND = (
    math.exp(-0.5 * NORMAL_TAIL**2),
    math.sqrt(math.pi / 2) * math.erfc(NORMAL_TAIL / math.sqrt(2)),
)
_EDGES, _HEIGHTS = _ziggurat(NORMAL_TAIL, _NORMAL_DENSITY, _NORMAL_BEYOND, _normal_at)
_EXP_EDGES, _EXP_HEIGHTS = _ziggurat(
    EXPONENTIAL_TAIL, math.exp(-EXPONENTIAL_TAIL), math.exp(-EXPONENTIAL_TAIL), _exponential_at
)


@inlined
def _exponential_in_layer(bits):
    """(layer, x > 0): a point of the layer that the word names."""
    layer = bits & _LAYER
    return layer, np.float64(np.int64((bits >> _POSITION) | ONE)) * (2.0**-53 * _EXP_EDGES[layer])


@kernel
def _exponential_outside(key, i, layer, x):
    """The rest of `exponential_from`, where x lies outside the part of its layer that is all under the density."""
    beyond = 0.0
    while True:
        if layer == ZERO:  # the tail is the same law again, further out
            beyond += EXPONENTIAL_TAIL
        else:
            height = _EXP_HEIGHTS[layer] + uniform(key, i) * (_EXP_HEIGHTS[layer + ONE] - _EXP_HEIGHTS[layer])
            i = i + ONE
            if height < math.exp(-x):
                return beyond + x, i
        layer, x = _exponential_in_layer(random_bits(key, i))
        i = i + ONE
        if x < _EXP_EDGES[layer + ONE]:
            return beyond + x, i


@inlined
def exponential_from(key, i):
    """(exponential draw of rate 1, next unread word): from the words i, i + 1, ... of a key."""
    layer, x = _exponential_in_layer(random_bits(key, i))
    following = np.uint64(i) + ONE
    if x < _EXP_EDGES[layer + ONE]:
        return x, following
    return _exponential_outside(key, following, layer, x)


@inlined
def draw_exponential(key):
    """An exponential draw of rate 1."""
    return exponential_from(key, ZERO)[0]


@kernel
def _normal_tail(key, i):
    """(|x|, next unread word): a normal beyond NORMAL_TAIL, by Marsaglia's exponential rejection."""
    while True:
        x = -math.log(uniform(key, i)) / NORMAL_TAIL
        y = -math.log(uniform(key, i + ONE))
        i = i + ONE + ONE
        if y + y > x * x:
            return NORMAL_TAIL + x, i


@inlined
def _normal_in_layer(bits):
    """(layer, x): a point of the layer that the word names."""
    layer = bits & _LAYER
    return layer, np.float64(np.int64(bits) >> 11) * (2.0**-52 * _EDGES[layer])


@kernel
def _normal_outside(key, i, layer, x):
    """The rest of `normal_from`, where |x| lies outside the part of its layer that is all under the density."""
    while True:
        if layer == ZERO:
            size, i = _normal_tail(key, i)
            return math.copysign(size, x), i
        height = _HEIGHTS[layer] + uniform(key, i) * (_HEIGHTS[layer + ONE] - _HEIGHTS[layer])
        i = i + ONE
        if height < math.exp(-0.5 * x * x):
            return x, i
        layer, x = _normal_in_layer(random_bits(key, i))
        i = i + ONE
        if abs(x) < _EDGES[layer + ONE]:
            return x, i


@inlined
def normal_from(key, i):
    """(standard normal draw, next unread word): from the words i, i + 1, ... of a key."""
    layer, x = _normal_in_layer(random_bits(key, i))
    following = np.uint64(i) + ONE
    if abs(x) < _EDGES[layer + ONE]:
        return x, following
    return _normal_outside(key, following, layer, x)


@inlined
def draw_normal(key):
    """A standard normal draw."""
    return normal_from(key, ZERO)[0]


@inlined
def _propose_gamma(d, c, key, i):
    """(v, accepted at once, x, u, next unread word): d v is the proposal, from a normal x and a uniform u."""
    x, i = normal_from(key, i)
    u = uniform(key, i)
    root = 1.0 + c * x
    x2 = x * x
    return root * root * root, root > 0.0 and u < 1.0 - 0.0331 * x2 * x2, x, u, i + ONE


@kernel
def _gamma_outside(d, c, key, proposal):
    """The rest of `_gamma_from`, after a first proposal that was not accepted at once."""
    v, accepted, x, u, i = proposal
    while not accepted:
        if v > 0.0 and math.log(u) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
            break
        v, accepted, x, u, i = _propose_gamma(d, c, key, i)
    return d * v, i


@inlined
def _gamma_from(shape, key):
    """(Gamma(shape, 1) draw, next unread word) for shape >= 1."""
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    proposal = _propose_gamma(d, c, key, ZERO)
    if proposal[1]:
        return d * proposal[0], proposal[4]
    return _gamma_outside(d, c, key, proposal)


@inlined
def draw_gamma(shape, key):
    """A Gamma(shape, rate 1) draw, shape > 0. Far below shape 1 it underflows to 0: use draw_log_gamma there."""
    if shape > 1.0:
        return _gamma_from(shape, key)[0]
    if shape == 1.0:
        return draw_exponential(key)
    if not shape > 0.0:
        return np.nan
    g, i = _gamma_from(shape + 1.0, key)
    return g * math.exp(-exponential_from(key, i)[0] / shape)


@inlined
def draw_log_gamma(shape, key):
    """The logarithm of draw_gamma(shape, key), finite for every shape > 0 however small."""
    if shape > 1.0:
        return math.log(_gamma_from(shape, key)[0])
    if shape == 1.0:
        return math.log(draw_exponential(key))
    if not shape > 0.0:
        return np.nan
    g, i = _gamma_from(shape + 1.0, key)
    return math.log(g) - exponential_from(key, i)[0] / shape

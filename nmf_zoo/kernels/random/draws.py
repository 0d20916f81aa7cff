"""Continuous draws from a keyed stream: exponential, normal, gamma, generalised inverse Gaussian.

Each is a pure function of its parameters and its key, and reads the words 0, 1, ... of that key: two draws need two
keys (see `keyed_rng`). Parameters outside their range give NaN, never an endless loop.

- exponential, normal: the ziggurat with 1024 layers (Marsaglia, Tsang 2000): one word for layer, sign and position in
  99.4% and 99.7% of draws. Only that path is inlined, and the rest is called; what a miss costs is mostly the wrong
  guess of the branch, hence the many layers;
- gamma: a squeezed, cubed normal (Marsaglia, Tsang 2000) for shape >= 1, and G(a) = G(a + 1) U^(1/a) below.

``*_from(key, i)`` takes its words from i on and returns the next unread one beside the draw: many draws of one key.

**Generalised inverse Gaussian.** The density is proportional to x^(p - 1) exp(-(a x + b / x) / 2). With w = sqrt(a b),
p >= 0 and x = e^t (p + sqrt(p^2 + w^2)) / a, the density of t is proportional to exp(psi(t)),

    psi(t) = -c (cosh t - 1) - p (e^t - t - 1),    c = sqrt(p^2 + w^2) - p,

concave with its maximum psi(0) = 0. The hat is 1 in the middle and the tangents at t = right and t = -left outside,
placed so that the rejection rate is bounded for all parameters (Devroye 2014, Random variate generation for the
generalized inverse Gaussian distribution). For p < 0, 1 / x has the law with -p and with a and b exchanged.

What decides between two words is whether psi lies above a level. Chords of cosh t - 1 and e^t - t - 1 between knots,
from a table, say so but where the level lies within their sag; only there is psi computed, so that the draws are those
of psi itself.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import inlined, kernel
from nmf_zoo.kernels.random.keyed_rng import ONE, fold, random_bits, uniform

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


# -- a factor -------------------------------------------------------------------------------------------------------

TINY = 1e-300  # floor of a factor: an exact zero would stay zero and forbid its counts
LOG_TINY = math.log(TINY)
SMALL_SHAPE = 0.3  # below it a gamma draw may underflow: go through its logarithm


@kernel
def draw_factor(out, shape, rate, first, last, key):
    """Overwrite rows first..last of out (rows, K): out_ik ~ Gamma(shape_ik, rate_ik), never 0."""
    for i in range(first, last):
        draw_row(out, shape, rate, i, fold(key, i))


@kernel
def draw_row(out, shape, rate, i, key):
    """Overwrite row i of out (rows, K), as :func:`draw_factor` does with the i-th child of its key."""
    for k in range(out.shape[1]):
        out[i, k] = _draw_cell(shape[i, k], rate[i, k], fold(key, k))


@kernel
def draw_some_rows(out, shape, rate, first, key):
    """Overwrite out (rows, K) with rows first, first + 1, ... of a factor of Gamma(shape, rate) cells.

    They are those of :func:`draw_factor`.
    """
    for i in range(out.shape[0]):
        row_key = fold(key, first + i)
        for k in range(out.shape[1]):
            out[i, k] = _draw_cell(shape, rate, fold(row_key, k))


@kernel
def _draw_cell(shape, rate, key):
    """Gamma(shape, rate), never 0."""
    if shape < SMALL_SHAPE:
        return math.exp(max(draw_log_gamma(shape, key) - math.log(rate), LOG_TINY))
    return max(draw_gamma(shape, key) / rate, TINY)


# -- generalised inverse Gaussian ------------------------------------------------------------------------------------


SMALLEST, LARGEST = np.finfo(np.float64).tiny, np.finfo(np.float64).max


KNOTS, REACH = 32, 4  # knots in a unit of t, and how far they go on either side of 0
MARGIN = 1e-12  # beyond what rounding does to psi and to its chords, in units of 1 + c + p


def _chords() -> np.ndarray:
    """(intervals, 5): where cosh t - 1 and e^t - t - 1 begin and how far they rise, and the most that chords sag."""
    t = np.arange(-REACH * KNOTS, REACH * KNOTS + 1) / KNOTS
    cosh, exp = 2.0 * np.sinh(0.5 * t) ** 2, np.expm1(t) - t
    steepest = np.exp(np.maximum(np.abs(t[:-1]), np.abs(t[1:])))  # no second derivative of either is larger
    return np.column_stack([cosh[:-1], np.diff(cosh), exp[:-1], np.diff(exp), steepest / (8.0 * KNOTS**2)])


_CHORDS = _chords()
_SINH_HALF, _SINH, _RISE, _FALL = math.sinh(0.5), math.sinh(1.0), math.expm1(1.0), math.expm1(-1.0)


@kernel
def _psi(t, c, p):
    half = math.sinh(0.5 * t)
    return -2.0 * c * half * half - p * (math.expm1(t) - t)


@inlined
def _is_below(level, t, c, p):
    """Whether level <= psi(t)."""
    place = (t + REACH) * KNOTS
    if 0.0 <= place < 2 * REACH * KNOTS:
        j = int(place)
        part, cosh, exp = place - j, _CHORDS[j, 0], _CHORDS[j, 2]
        chord = -c * (cosh + part * _CHORDS[j, 1]) - p * (exp + part * _CHORDS[j, 3])
        margin = MARGIN * (1.0 + c + p)
        if level <= chord - margin:
            return True
        if level > chord + (c + p) * _CHORDS[j, 4] + margin:
            return False
    return level <= _psi(t, c, p)


@kernel
def _psi_and_slope(t, c, p):
    half, rise = math.sinh(0.5 * t), math.expm1(t)
    return -2.0 * c * half * half - p * (rise - t), -c * math.sinh(t) - p * rise


@kernel
def _tangents(c, p):
    """((t, psi, -its slope) where the hat's tangent touches on the right, the same on the left at -t), psi about -1.

    Mostly t = 1, where hyperbolic sines are numbers that are known.
    """
    square = -2.0 * c * _SINH_HALF * _SINH_HALF
    above, below = square - p * (_RISE - 1.0), square - p * (_FALL + 1.0)
    right, left = 1.0, 1.0
    if -above > 2.0:
        right = math.sqrt(2.0 / (c + p))
    elif -above < 0.5:
        right = math.log(4.0 / (c + 2.0 * p))
    if -below > 2.0:
        left = math.sqrt(4.0 / (c * math.cosh(1.0) + p))
    elif -below < 0.5:
        left = math.log(1.0 + 1.0 / c + math.sqrt(1.0 / c + 2.0) / math.sqrt(c))
        left = min(left, 1.0 / p) if p > 0.0 else left
    fall, rise = -c * _SINH - p * _RISE, c * _SINH - p * _FALL
    if right != 1.0:
        above, fall = _psi_and_slope(right, c, p)
    if left != 1.0:
        below, rise = _psi_and_slope(-left, c, p)
    return (right, above, -fall), (left, below, rise)


@kernel
def _draw_log_ratio(c, p, key):
    """A draw of t with density proportional to exp(psi(t)), for c > 0 and p >= 0."""
    (right, psi_right, slope_right), (left, psi_left, slope_left) = _tangents(c, p)
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
        if _is_below(log_hat - drop, t, c, p):
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

"""Discrete draws from a keyed stream: Poisson, binomial, and the allocation of a count to categories.

Each is a pure function of its parameters and its key, and reads the words 0, 1, ... of that key: two draws need two
keys (see `keyed_rng`). Counts are int64.

- binomial of few trials: as many coins, 64 at a time in the bits of a word;
- Poisson and binomial: inversion by sequential search for small means, in steps of eight that are never branched on;
  else transformed rejection (Hoermann 1993: PTRS, BTRS). What decides a binomial proposal is the cheapest that can: a
  box, the ratio to the mode as a product, bounds of its logarithm (Kachitvichyanukul, Schmeiser 1988: BTPE), and
  log-probabilities that stay accurate at counts of 1e12 and more;
- allocation: one categorical draw per unit for small counts, by comparisons that are never branched on; binomials for
  large ones, each category against those that follow.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import inlined, kernel
from nmf_zoo.kernels.random.keyed_rng import ONE, fold, random_bits, uniform

SMALL_MEAN = 20.0  # of a Poisson count: below, inversion
SMALL_BINOMIAL_MEAN = 12.0  # below: inversion
COINS, SMALL_TOSSED_MEAN = 128, 8.0  # a binomial of so many trials is tossed; below this mean inversion is as fast
SURE_DIGITS = 12  # after which 64 coins are undecided once in 64 times: not worth a guess before
SEARCH_END = 152  # a Poisson or binomial count of mean <= SMALL_MEAN exceeds it with probability 1e-75
STEPS = 8  # of a search between two looks at whether it has ended: a wrong guess of that costs more than they do
NEAR = 20  # a binomial proposal at most so far from the mode is compared by a product
SMALL_TOTAL = 1e-300  # weights are too small to divide a count by when they sum to less
SPLIT = 16  # more units than this per category (but one): binomials, which cost as much as about 30 categorical draws
LARGEST = 2.0**62  # Poisson means above it do not fit a count

ZERO, _S2, _S4, _S56 = np.uint64(0), np.uint64(2), np.uint64(4), np.uint64(56)
_EVERY_2ND, _TWO_OF_4 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_FOUR_OF_8, _BYTES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
_RECIPROCALS = np.array([np.inf] + [1.0 / k for k in range(1, SEARCH_END + 1)])
_STIRLING_ERROR = np.array(
    [0.0] + [math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - _LOG_ROOT_2PI for k in range(1, 16)]
)


@kernel
def _stirling_error(k):
    """log k! - log(sqrt(2 pi k) (k / e)^k) for k = 1, 2, ..."""
    if k < 16:
        return _STIRLING_ERROR[int(k)]
    r = 1.0 / (k * k)
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680) * r) * r) * r) / k


@kernel
def _log_poisson(k, mean):
    """log of the Poisson probability of k (a float64 integer), without cancellation (Loader's saddle point)."""
    if k == 0.0:
        return -mean
    t = (k - mean) / mean
    return mean * (t - (1.0 + t) * math.log1p(t)) - _stirling_error(k) - 0.5 * math.log(k) - _LOG_ROOT_2PI


@kernel
def _search_poisson(mean, key):
    """The number of cumulative probabilities below a uniform."""
    u, p, k = uniform(key, 0), math.exp(-mean), 0
    for first in range(1, SEARCH_END, STEPS):
        for i in range(first, first + STEPS):
            k += u > p
            u -= p
            p *= mean * _RECIPROCALS[i]
        if u <= 0.0:
            break
    return k


@kernel
def _reject_poisson(mean, key):
    """Hoermann's PTRS."""
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    box = 0.9277 - 3.6224 / (b - 2.0)
    log_scale = math.log(1.1239 + 1.1328 / (b - 3.4))
    i = 0
    while True:
        u, v = uniform(key, i) - 0.5, uniform(key, i + 1)
        i += 2
        edge = 0.5 - abs(u)
        k = np.floor((2.0 * a / edge + b) * u + mean + 0.43)
        if (edge >= 0.07) & (v <= box):  # one guess, not two
            return int(k)
        if k < 0 or (edge < 0.013 and v > edge):
            continue
        if math.log(v / (a / (edge * edge) + b)) + log_scale <= _log_poisson(k, mean):
            return int(k)


@kernel
def draw_poisson(mean, key):
    """A Poisson draw; -1 when the mean is negative, NaN or above 2^62."""
    if mean < SMALL_MEAN:
        return _search_poisson(mean, key) if mean >= 0.0 else -1
    return _reject_poisson(mean, key) if mean <= LARGEST else -1


@kernel
def _search_binomial(n, p, key):
    """The number of cumulative probabilities below a uniform."""
    u, q, k = uniform(key, 0), math.exp(n * math.log1p(-p)), 0
    odds = p / (1.0 - p)
    scale = odds * (n + 1.0)
    for first in range(1, SEARCH_END, STEPS):
        for i in range(first, first + STEPS):
            k += u > q
            u -= q
            q *= scale * _RECIPROCALS[i] - odds
        if u <= 0.0:
            break
    return min(k, n)


@kernel
def _ones(bits):
    """How many bits of a word are set."""
    bits = bits - ((bits >> ONE) & _EVERY_2ND)
    bits = (bits & _TWO_OF_4) + ((bits >> _S2) & _TWO_OF_4)
    return np.int64((((bits + (bits >> _S4)) & _FOUR_OF_8) * _BYTES) >> _S56)


@kernel
def _toss_digit(i, digits, undecided, heads, key):
    """(undecided, heads) after the next random digit of every coin: less than p's, it is heads; the same, undecided."""
    drawn = random_bits(key, i)
    of_p = ZERO - ((digits >> np.uint64(63 - i % 64)) & ONE)  # p's digit in all places
    return undecided & ~(drawn ^ of_p), heads | (undecided & ~drawn & of_p)


@kernel
def _toss_binomial(n, p, key):
    """n coins, 64 to a word: the binary digits of a uniform of each are drawn until they differ from those of p."""
    digits, k = np.uint64(p * 2.0**64), 0
    for first in range(0, n, 64):
        undecided, heads = ~ZERO >> np.uint64(64 - min(64, n - first)), ZERO
        for i in range(first, first + SURE_DIGITS):
            undecided, heads = _toss_digit(i, digits, undecided, heads, key)
        i = first + SURE_DIGITS
        while undecided != ZERO and i < first + 64:
            undecided, heads = _toss_digit(i, digits, undecided, heads, key)
            i += 1
        k += _ones(heads)
    return k


@kernel
def _log_binomial(k, n, p):
    """log of the binomial probability of k, up to a constant in k: two Poisson counts given their sum."""
    return _log_poisson(k, n * p) + _log_poisson(n - k, n * (1.0 - p))


@kernel
def _ratio_to_mode(k, mode, n, p):
    """The binomial probability of k over that of the mode, for a k that is near."""
    odds, product = p / (1.0 - p), 1.0
    scale = odds * (n + 1.0)
    i, last = min(k, mode), max(k, mode)
    while i < last:
        i += 1.0
        product *= scale / i - odds
    return product if k > mode else 1.0 / product


@kernel
def _log_ratio_bounds(far, variance):
    """(middle, slack): log of the probability `far` from the mode over the mode's is within middle -+ slack.

    For far < variance / 2 - 1 and p <= 1/2, as in BTPE's steps 5.2.
    """
    x = far / variance
    return -0.5 * far * x, x * ((far * (far / 3.0 + 0.625) + 1.0 / 6.0) / variance + 0.5)


@kernel
def _is_below_ratio(v, k, n, p):
    """v <= probability of k / probability of the mode"""
    mode, variance = np.floor((n + 1.0) * p), n * p * (1.0 - p)
    far = abs(k - mode)
    if far <= NEAR:
        return v <= _ratio_to_mode(k, mode, n, p)
    log_v = math.log(v)
    if far < 0.5 * variance - 1.0:
        middle, slack = _log_ratio_bounds(far, variance)
        if abs(log_v - middle) > slack:
            return log_v < middle
    return log_v <= _log_binomial(k, n, p) - _log_binomial(mode, n, p)


@kernel
def _reject_binomial(n, p, key):
    """Hoermann's BTRS, for p <= 1/2."""
    size = np.float64(n)
    spread = math.sqrt(size * p * (1.0 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    i = 0
    while True:
        u, v = uniform(key, i) - 0.5, uniform(key, i + 1)
        i += 2
        edge = 0.5 - abs(u)
        k = np.floor((2.0 * a / edge + b) * u + size * p + 0.5)
        if (edge >= 0.07) & ((0.92 - v) * b >= 4.2):  # v <= 0.92 - 4.2 / b; one guess, not two
            return int(k)
        if k < 0 or k > size:
            continue
        if _is_below_ratio(v * (2.83 + 5.1 / b) * spread / (a / (edge * edge) + b), k, size, p):
            return int(k)


@kernel
def draw_binomial(n, p, key):
    """A binomial draw, n >= 0; p outside [0, 1] counts as the nearer end. -1 when p is NaN."""
    if p <= 0.0 or n == 0:
        return 0
    if p >= 1.0:
        return n
    less = min(p, 1.0 - p)
    if n <= COINS and n * less >= SMALL_TOSSED_MEAN:
        k = _toss_binomial(n, less, key)
    elif n * less < SMALL_BINOMIAL_MEAN:
        k = _search_binomial(n, less, key)
    elif n * less >= SMALL_BINOMIAL_MEAN:
        k = _reject_binomial(n, less, key)
    else:
        return -1
    return k if less == p else n - k


@kernel
def _split(x, weights, rest, out, key):
    """Conditional binomials; ``rest`` becomes the sums of the weights from each category on."""
    total = 0.0
    for k in range(len(weights) - 1, -1, -1):
        total += weights[k]
        rest[k] = total
    for k in range(len(weights)):
        out[k] = draw_binomial(x, weights[k] / rest[k], fold(key, k)) if x > 0 else 0
        x -= out[k]


@kernel
def _scaled_uniform(i, x, total, key):
    return uniform(key, i) * total if i < x else np.inf


@kernel
def _categorical(x, cumulative, out, key):
    """x categorical draws, four at a time: out_k counts those that lie between cumulative_{k-1} and cumulative_k.

    Comparisons are added up, never branched on (a wrong guess costs more than a draw); the loop over k is SIMD.
    """
    total = cumulative[-1]
    for k in range(len(out)):
        out[k] = 0
    for i in range(0, x, 4):
        u0, u1 = _scaled_uniform(i, x, total, key), _scaled_uniform(i + 1, x, total, key)
        u2, u3 = _scaled_uniform(i + 2, x, total, key), _scaled_uniform(i + 3, x, total, key)
        before = 0
        for k in range(len(out)):
            c = cumulative[k]
            below = int(u0 < c) + int(u1 < c) + int(u2 < c) + int(u3 < c)
            out[k] += below - before
            before = below


@inlined  # an outer call costs 7 to 10 ns
def allocate(x, weights, cumulative, out, key):
    """Overwrite out (K,) with a multinomial draw of x >= 0 units, probabilities proportional to weights (K,).

    Returns False, with out all 0, when the weights' sum is no usable number (0, below 1e-300, inf, NaN).
    ``cumulative`` (K,) is scratch. A category of weight 0 gets nothing. Called once per cell, pass `borrowed` arrays.
    """
    total = 0.0
    for k in range(len(weights)):
        total += weights[k]
        cumulative[k] = total
    if not SMALL_TOTAL < total < np.inf:
        for k in range(len(out)):
            out[k] = 0
        return False
    if x > SPLIT * (len(weights) - 1):
        _split(x, weights, cumulative, out, key)
    else:
        _categorical(x, cumulative, out, key)
    return True

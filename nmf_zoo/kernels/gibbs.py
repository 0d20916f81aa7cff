"""The conditional draws of a Gibbs sweep: sources of the counts, factors, and moves along the orbit W A, A^-1 H.

``major`` and ``minor`` are the factors of a :class:`nmf_zoo.inference.layout.Layout`'s two sides, with one row per
feature or sample.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.borrow import borrowed
from nmf_zoo.kernels.counts import allocate
from nmf_zoo.kernels.draws import draw_exponential, draw_gamma, draw_log_gamma
from nmf_zoo.kernels.gig import draw_gig
from nmf_zoo.kernels.streams import fold, kernel, uniform

TINY = 1e-300  # floor of a factor: an exact zero would stay zero and forbid its counts
LOG_TINY = math.log(TINY)
SMALL_SHAPE = 0.3  # below it a gamma draw may underflow: go through its logarithm
LARGEST_RATIO = 1e300  # of two cells: keeps step * ratio a number
ROUNDING = 2.0**-53  # of 1 + step * ratio, which is positive but for it
BRACKET = 6.0  # first bracket of the shear's slice draw: no cell falls below e^-6 of itself, so no digits are lost
MAX_SHRINKS = 100  # a bracket shrunk this often has reached the current point


class Scratch(NamedTuple):
    """Room for the sources of one cell: the components', and one more for a background."""

    weights: np.ndarray
    cumulative: np.ndarray
    counts: np.ndarray


def make_scratch(layout, rank: int) -> Scratch:
    """Scratch of :func:`allocate_sources` for one chunk."""
    sources = rank + 1 if layout.offset.size else rank
    return Scratch(np.empty(sources), np.empty(sources), np.empty(sources, np.int64))


@kernel
def allocate_sources(layout, major, minor, chunk, of_major, of_minor, scratch, key):
    """Draw the sources of every count of a chunk and count them by component.

    C[f, :, n] ~ Multinomial(x_fn, w_f * h_n / (w_f . h_n + offset)); the background's share is dropped. ``of_major``
    (major, K) is overwritten at the chunk's rows, ``of_minor`` (minor, K) is added to; ``scratch`` is the chunk's own.
    Returns the number of cells whose mean is 0 or not finite, where no allocation exists.
    """
    rank, failures = major.shape[1], 0
    has_offset = layout.offset.size > 0
    weights, cumulative, counts = borrowed(scratch.weights), borrowed(scratch.cumulative), borrowed(scratch.counts)
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        of_major[i] = 0.0
        row_key = fold(key, i)
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            j = layout.indices[cell]
            for k in range(rank):
                weights[k] = major[i, k] * minor[j, k]
            if has_offset:
                weights[rank] = layout.offset[cell]
            if not allocate(np.int64(layout.values[cell]), weights, cumulative, counts, fold(row_key, j)):
                failures += 1
            for k in range(rank):
                of_major[i, k] += counts[k]
                of_minor[j, k] += counts[k]
    return failures


@kernel
def draw_factor(out, shape, rate, first, last, key):
    """Overwrite rows first..last of out (rows, K): out_ik ~ Gamma(shape_ik, rate_ik), never 0."""
    for i in range(first, last):
        row_key = fold(key, i)
        for k in range(out.shape[1]):
            if shape[i, k] < SMALL_SHAPE:
                log_value = draw_log_gamma(shape[i, k], fold(row_key, k)) - math.log(rate[i, k])
                out[i, k] = math.exp(max(log_value, LOG_TINY))
            else:
                out[i, k] = max(draw_gamma(shape[i, k], fold(row_key, k)) / rate[i, k], TINY)


@kernel
def draw_scales(out, p, a, b, key):
    """Overwrite out (K,) with generalised inverse Gaussian draws: density of c_k ~ c^(p-1) exp(-(a c + b / c) / 2)."""
    for k in range(out.shape[0]):
        out[k] = draw_gig(p[k], a[k], b[k], fold(key, k))


@kernel
def _dot(x, y):
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@kernel
def _divide_rows(giver, taker, ratios):
    """Overwrite ratios with giver / taker; returns the largest t with taker - t giver >= 0 everywhere."""
    largest = 1.0 / LARGEST_RATIO
    for i in range(taker.shape[0]):
        ratios[i] = min(giver[i] / taker[i], LARGEST_RATIO)
        largest = max(largest, ratios[i])
    return 1.0 / largest


@kernel
def _log_growth(ratios, shape, step):
    """Sum of (shape - 1) log(1 + step ratio): the change of the log prior that is not linear in step.

    Terms of one shape are multiplied and their logarithm is taken once, before the product leaves float64's range.
    """
    total, product, power = 0.0, 1.0, 0.0
    for i in range(ratios.shape[0]):
        if shape[i] == 1.0:
            continue
        if shape[i] - 1.0 != power or not 1e-100 < product < 1e100:
            total += power * math.log(product)
            product, power = 1.0, shape[i] - 1.0
        product *= max(1.0 + step * ratios[i], ROUNDING)
    return total + power * math.log(product)


@kernel
def _log_logistic_density(u):
    """log of d step / d u on the unit interval."""
    return -abs(u) - 2.0 * math.log1p(math.exp(-abs(u)))


@kernel
def _draw_shear_step(lower, upper, ratios_w, ratios_h, shape_w, shape_h, slope, key):
    """Slice draw of the shear's step from its density on (lower, upper), where both factors stay positive.

    On the scale of u = log((step - lower) / (upper - step)): with shapes below 1 the density's width may be 1e-40 of
    the interval's, which no halving of the interval reaches soon. A bracket of fixed width around u, placed at random,
    and shrinking are exact (Neal 2003, Slice sampling, section 4).
    """
    start = math.log(-lower) - math.log(upper)
    level = _log_logistic_density(start) - draw_exponential(fold(key, 0))
    stream = fold(key, 1)
    left = start - BRACKET * uniform(stream, 0)
    right = left + BRACKET
    for attempt in range(1, MAX_SHRINKS):
        u = left + (right - left) * uniform(stream, attempt)
        step = lower / (1.0 + math.exp(u)) + upper / (1.0 + math.exp(-u))
        change = _log_growth(ratios_w, shape_w, step) + _log_growth(ratios_h, shape_h, -step) + slope * step
        if change + _log_logistic_density(u) >= level:
            return step
        if u < start:
            left = u
        else:
            right = u
    return 0.0


@kernel
def _add_row(taker, giver, step):
    for i in range(taker.shape[0]):
        taker[i] = max(taker[i] + step * giver[i], TINY)


@kernel
def move_shears(W, H, shape_w, rate_w, shape_h, rate_h, key):
    """Shear every ordered pair (k, j): w_k += e w_j, h_j -= e h_k, with e from its exact conditional given W H.

    W is (K, F) and H is (K, N), components as rows; shapes and rates alike. Leaves W^T H as it is.
    """
    rank = W.shape[0]
    ratios_w, ratios_h = np.empty(W.shape[1]), np.empty(H.shape[1])
    for k in range(rank):
        for j in range(rank):
            if j == k:
                continue
            slope = _dot(rate_h[j], H[k]) - _dot(rate_w[k], W[j])
            lower, upper = -_divide_rows(W[j], W[k], ratios_w), _divide_rows(H[k], H[j], ratios_h)
            pair_key = fold(fold(key, k), j)
            step = _draw_shear_step(lower, upper, ratios_w, ratios_h, shape_w[k], shape_h[j], slope, pair_key)
            _add_row(W[k], W[j], step)
            _add_row(H[j], H[k], -step)

"""The conditional draws of a Gibbs sweep: sources of the counts, factors, and moves along the orbit W A, A^-1 H.

``major`` and ``minor`` are the factors of a :class:`nmf_zoo.inference.layout.Layout`'s two sides, one row per feature or sample.
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
MAX_SHRINKS = 200  # a bracket shrunk this often has reached the current point


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
def sum_x_log_mean(layout, major, minor, chunk):
    """Sum over a chunk's non-zero cells of x log(w_f . h_n + offset)."""
    has_offset = layout.offset.size > 0
    total = 0.0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            mean = layout.offset[cell] if has_offset else 0.0
            for k in range(major.shape[1]):
                mean += major[i, k] * minor[layout.indices[cell], k]
            total += layout.values[cell] * math.log(mean)
    return total


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
def _log_power_product(taker, giver, shape, step):
    """Sum of (shape - 1) log(taker + step giver): the part of the log prior that is not linear in step.

    Terms of one shape are multiplied and their logarithm is taken once, before the product leaves float64's range.
    """
    total, product, power = 0.0, 1.0, 0.0
    for i in range(taker.shape[0]):
        if shape[i] == 1.0:
            continue
        if shape[i] - 1.0 != power or not 1e-4 < product < 1e4:
            total += power * math.log(product)
            product, power = 1.0, shape[i] - 1.0
        product *= max(taker[i] + step * giver[i], TINY)
    return total + power * math.log(product)


@kernel
def _room(taker, giver):
    """The largest t with taker - t giver >= 0 everywhere."""
    room = np.inf
    for i in range(taker.shape[0]):
        room = min(room, taker[i] / giver[i])
    return room


@kernel
def _draw_shear_step(w_k, w_j, h_j, h_k, shape_w, shape_h, slope, key):
    """Slice draw of the shear's step from its density on the interval where both factors stay positive."""
    lower, upper = -_room(w_k, w_j), _room(h_j, h_k)
    here = _log_power_product(w_k, w_j, shape_w, 0.0) + _log_power_product(h_j, h_k, shape_h, 0.0)
    level = here - draw_exponential(fold(key, 0))
    stream = fold(key, 1)
    for attempt in range(MAX_SHRINKS):
        step = lower + (upper - lower) * uniform(stream, attempt)
        there = _log_power_product(w_k, w_j, shape_w, step) + _log_power_product(h_j, h_k, shape_h, -step)
        if there + slope * step >= level:
            return step
        if step < 0.0:
            lower = step
        else:
            upper = step
    return 0.0


@kernel
def move_shears(W, H, shape_w, rate_w, shape_h, rate_h, key):
    """Shear every ordered pair (k, j): w_k += e w_j, h_j -= e h_k, with e from its exact conditional given W H.

    W is (K, F) and H is (K, N), components as rows; shapes and rates alike. Leaves W^T H as it is.
    """
    rank = W.shape[0]
    for k in range(rank):
        for j in range(rank):
            if j == k:
                continue
            slope = np.sum(rate_h[j] * H[k]) - np.sum(rate_w[k] * W[j])
            pair_key = fold(fold(key, k), j)
            step = _draw_shear_step(W[k], W[j], H[j], H[k], shape_w[k], shape_h[j], slope, pair_key)
            for i in range(W.shape[1]):
                W[k, i] = max(W[k, i] + step * W[j, i], TINY)
            for i in range(H.shape[1]):
                H[j, i] = max(H[j, i] - step * H[k, i], TINY)

"""The conditional draws of a Gibbs sweep: sources of the counts, factors, and moves along the orbit W A, A^-1 H.

``major`` and ``minor`` are the factors of a :class:`nmf_zoo.inference.shared.layout.Layout`'s two sides, with one row
per feature or sample.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, kernel
from nmf_zoo.kernels.random.counts import allocate
from nmf_zoo.kernels.random.draws import TINY, draw_exponential, draw_gig
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.simd.unowned_views import borrowed

LARGEST_RATIO = 1e300  # of two cells: keeps step * ratio a number
ROUNDING = 2.0**-53  # of 1 + step * ratio, which is positive but for it
BRACKET = 6.0  # first bracket of the shear's slice draw: no cell falls below e^-6 of itself, so no digits are lost
MAX_SHRINKS = 100  # a bracket shrunk this often has reached the current point


class CellScratch(NamedTuple):
    """Scratch for the sources of one cell: the components', and one more for a background."""

    weights: np.ndarray
    cumulative: np.ndarray
    counts: np.ndarray


def make_cell_scratch(layout, rank: int) -> CellScratch:
    """Scratch of :func:`allocate_cell_by_cell`."""
    sources = rank + 1 if layout.offset.size else rank
    return CellScratch(np.empty(sources), np.empty(sources), np.empty(sources, np.int64))


@kernel
def allocate_cell_by_cell(layout, major, minor, chunk, of_major, of_minor, scratch, key):
    """:func:`nmf_zoo.kernels.counts.allocation.allocate_sources`, the same draws, for a compiled block of sweeps.

    One compiled version serves all ranks, where that one's lanes are part of its type: blocks take minutes to compile.
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
def _sum(x):
    """Four sums at a time: one would wait for itself."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = x.shape[0] // 4 * 4
    for i in range(0, whole, 4):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
    for i in range(whole, x.shape[0]):
        a += x[i]
    return (a + b) + (c + d)


@kernel
def divide_rows(giver, taker, ratios):
    """Overwrite ratios with giver / taker; returns the largest t with taker - t giver >= 0 everywhere.

    Positive numbers have the order of their bits as integers, whose largest SIMD lanes can find.
    """
    largest = np.float64(1.0 / LARGEST_RATIO).view(np.int64)
    for i in range(taker.shape[0]):
        ratio = giver[i] / taker[i]
        ratio = ratio if ratio < LARGEST_RATIO else LARGEST_RATIO
        ratios[i] = ratio
        bits = np.float64(ratio).view(np.int64)
        largest = bits if bits > largest else largest
    return 1.0 / np.int64(largest).view(np.float64)


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
def _common(cells):
    """What all cells of a row have in common, (rows,); NaN where they differ."""
    common = cells[:, 0].copy()
    for k in range(cells.shape[0]):
        for i in range(cells.shape[1]):
            if cells[k, i] != common[k]:
                common[k] = np.nan
                break
    return common


@kernel
def _weighted_sum(rate, common, row, total):
    """sum rate * row, whose own sum is ``total``; ``common`` as of `_common`"""
    return _dot(rate, row) if np.isnan(common) else common * total


@kernel
def log_logistic_density(u):
    """log of d step / d u on the unit interval."""
    return -abs(u) - 2.0 * math.log1p(math.exp(-abs(u)))


class GammaRow(NamedTuple):
    """A row under a gamma prior, to be sheared: ratios, shapes, and the shape that all have in common, or NaN."""

    ratios: np.ndarray
    shape: np.ndarray
    common: float


@kernel
def _change_of_gammas(row, step):
    return 0.0 if row.common == 1.0 else _log_growth(row.ratios, row.shape, step)


LOG_CHANGES = {GammaRow: _change_of_gammas}  # and of other priors' rows


@chosen_by("row", LOG_CHANGES)
def log_change(row, step):
    """Change of the log prior when a row's cells v become v (1 + step ratio), but for what is linear in step."""


@kernel
def draw_shear_step(lower, upper, of_w, of_h, slope, key):
    """Slice draw of the shear's step from its density on (lower, upper), where both factors stay positive.

    ``of_w`` and ``of_h``: rows that `log_change` knows; ``slope`` of what is linear in the step.

    On the scale of u = log((step - lower) / (upper - step)): with shapes below 1 the density's width may be 1e-40 of
    the interval's, which no halving of the interval reaches soon. A bracket of fixed width around u, placed at random,
    and shrinking are exact (Neal 2003, Slice sampling, section 4).
    """
    start = math.log(-lower) - math.log(upper)
    level = log_logistic_density(start) - draw_exponential(fold(key, 0))
    stream = fold(key, 1)
    left = start - BRACKET * uniform(stream, 0)
    right = left + BRACKET
    for attempt in range(1, MAX_SHRINKS):
        u = left + (right - left) * uniform(stream, attempt)
        step = lower / (1.0 + math.exp(u)) + upper / (1.0 + math.exp(-u))
        change = slope * step + log_change(of_w, step) + log_change(of_h, -step)
        if change + log_logistic_density(u) >= level:
            return step
        if u < start:
            left = u
        else:
            right = u
    return 0.0


@kernel
def add_row(taker, giver, step):
    for i in range(taker.shape[0]):
        value = taker[i] + step * giver[i]
        taker[i] = TINY if value < TINY else value


@kernel
def move_shears(W, H, shape_w, rate_w, shape_h, rate_h, key):
    """Shear every ordered pair (k, j): w_k += e w_j, h_j -= e h_k, with e from its exact conditional given W H.

    W is (K, F) and H is (K, N), components as rows; shapes and rates alike. Leaves W^T H as it is.
    """
    rank, totals_w = W.shape[0], np.empty(W.shape[0])
    for k in range(rank):
        totals_w[k] = _sum(W[k])
    ratios_w, ratios_h = np.empty(W.shape[1]), np.empty(H.shape[1])
    shapes_w, rates_w, shapes_h, rates_h = _common(shape_w), _common(rate_w), _common(shape_h), _common(rate_h)
    for k in range(rank):
        total_h = _sum(H[k])
        for j in range(rank):
            if j == k:
                continue
            slope = _weighted_sum(rate_h[j], rates_h[j], H[k], total_h)
            slope -= _weighted_sum(rate_w[k], rates_w[k], W[j], totals_w[j])
            lower, upper = -divide_rows(W[j], W[k], ratios_w), divide_rows(H[k], H[j], ratios_h)
            of_w, of_h = GammaRow(ratios_w, shape_w[k], shapes_w[k]), GammaRow(ratios_h, shape_h[j], shapes_h[j])
            step = draw_shear_step(lower, upper, of_w, of_h, slope, fold(fold(key, k), j))
            add_row(W[k], W[j], step)
            add_row(H[j], H[k], -step)
        totals_w[k] = _sum(W[k])

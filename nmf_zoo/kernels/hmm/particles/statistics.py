"""Sums over time that smoothing wants, and what one sample adds to them for each particle.

All are additive, sum_t s_t(h_{t-1}, h_t), under the law of the chains given the samples (Yildirim, Cemgil, Singh 2012,
section 3; K components, F features)::

    activations   w_t h_kt                            K rows, or F K with a weight for each feature: mask * exposure
    sources       E[c_fkt | h_t] = w_fk h_kt x_ft / rate_ft      F K rows, under the W of the time (eq. 15)
    pairs         of (h_{t-1}, h_t), t >= 2: what the law of a step needs      K P rows, see `laws.PAIRS`
    first         of h_1: what the law of the first time needs                 K D rows, see `laws.FIRSTS`

Each particle carries, in its column of ``table``, the mean of the sums over the paths that end in it. A step is
T_t(h_t) = E[decay T_{t-1}(h_{t-1}) + gain s_t(h_{t-1}, h_t)], the mean over particles h_{t-1} that h_t may come from:
which, and how likely, is what the smoothers differ in. decay = gain = 1 gives sums; decay = 1 - g_t, gain = g_t the
averages of online EM. See :mod:`nmf_zoo.kernels.hmm.particles.smoothing_sums` for how a step is put together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.emission import set_rates
from nmf_zoo.kernels.hmm.particles.laws import FIRSTS, PAIRS, add_first, add_step
from nmf_zoo.kernels.hmm.particles.rows import add_product, add_row, mean_of
from nmf_zoo.kernels.numerics.arrays import copy_row

SMALLEST_SCALE = 1e-100  # of the table: below it the table is brought up to date


class StatisticRows(NamedTuple):
    """Where the rows of each part begin; a part that nobody wants has none.

    Attributes
    ----------
    sources : after the R K activations, row r K + k the one that has the r-th weight; R is 0, 1 or F
    pairs : after the F K (or 0) sources, row sources + f K + k
    first : after the K P (or 0) statistics of pairs, row pairs + k P + p
    end : after the K D (or 0) statistics of the first time, row first + k D + d
    """

    sources: int
    pairs: int
    first: int
    end: int


Rows = StatisticRows  # by this name streams were saved


class Carried(NamedTuple):
    """What the particles carry, overwritten in place.

    Attributes
    ----------
    table : (R, N): a particle's statistics are scale * its column, so that a decay costs nothing
    scale : (1,)
    before : (2, N) logarithms of the filter's weights at the last sample, and the weights
    rows : StatisticRows
    ready : (2 K, N) scratch for the densities of steps, (0, 0) where no smoother needs them
    spare : (R, N) scratch of the forward smoother, else (0, 0)
    workspace : (4, N) scratch
    drawn : (M + 3, N) uint64 scratch for indices, M the particles drawn for each by the backward smoother
    """

    table: Any
    scale: Any
    before: Any
    rows: StatisticRows
    ready: Any
    spare: Any
    workspace: Any
    drawn: Any


@kernel
def begin_sums(carried, population, law, gain):
    """Forget all; take the statistics of the first time from the population at it."""
    carried.table[:] = 0.0
    carried.scale[0] = 1.0
    n_stats = FIRSTS[law.kind]
    if carried.rows.end > carried.rows.first:
        for k in range(population.cloud.h.shape[0]):
            row = carried.rows.first + k * n_stats
            add_first(carried.table[row : row + n_stats], population.cloud, k, gain, law)


@kernel
def fade(carried, decay):
    """Multiply all statistics by ``decay``, without touching them."""
    carried.scale[0] *= decay
    if carried.scale[0] < SMALLEST_SCALE:
        for r in range(carried.table.shape[0]):
            scale_row(carried.table[r], carried.scale[0])
        carried.scale[0] = 1.0


@kernel
def add_sample(carried, population, target, weights, gain, t):
    """Add the activations and expected sources of a sample that the population has been weighed by.

    ``weights`` (R,) of the sample. Also keeps the filter's weights, for the next step.
    """
    h, rank, share = population.cloud.h, target.W.shape[1], gain / carried.scale[0]
    for r in range(carried.rows.sources // rank):
        if weights[r] != 0.0:
            for k in range(rank):
                add_row(carried.table[r * rank + k], h[k], share * weights[r])
    if carried.rows.pairs > carried.rows.sources:
        for c in range(target.counts.indptr[t], target.counts.indptr[t + 1]):
            add_sources(carried, h, target, share, c)
    copy_row(carried.before[0], population.log_weights)
    copy_row(carried.before[1], population.weights)


@kernel
def add_sources(carried, h, target, share, c):
    """Add the expected sources of the listed cell c."""
    f, ratios, rank = target.counts.indices[c], carried.workspace[0], target.W.shape[1]
    set_rates(ratios, h, target, c)
    divide_into(ratios, share * target.counts.values[c])
    for k in range(rank):
        add_product(carried.table[carried.rows.sources + f * rank + k], h[k], ratios, target.W[f, k])


@in_lanes
def divide_into(rates, x):
    """rates = x / rates, 0 where a rate is 0: then no component can have made a count."""
    for i in range(rates.size):
        rates[i] = x / rates[i] if rates[i] > 0.0 else 0.0


@in_lanes
def scale_row(row, scale):
    """row *= scale"""
    for i in range(row.size):
        row[i] *= scale


@kernel
def add_pairs(carried, population, origins, gain, law):
    """Add the statistics of the step, the mean over the particles origins[:, i] (M, N) that i may come from."""
    if carried.rows.first == carried.rows.pairs:
        return
    new, old, share, n_stats = population.cloud, population.other, gain / carried.scale[0], PAIRS[law.kind]
    for k in range(new.h.shape[0]):
        row = carried.rows.pairs + k * n_stats
        add_step(carried.table[row : row + n_stats], new, old, k, origins, share, carried.workspace, law)


@kernel
def total_sums(sums, carried, weights):
    """Overwrite sums (R,) with the means of the statistics under the normalised weights (N,) of the particles."""
    for r in range(sums.size):
        sums[r] = carried.scale[0] * mean_of(carried.table[r], weights)

"""Sums over time that smoothing wants, and what one sample adds to them for each particle.

All are additive, sum_t s_t(h_{t-1}, h_t), under the law of the chains given the samples (Yildirim, Cemgil, Singh 2012,
section 3; K components, F features)::

    activations   w_t h_kt                            K rows, or F K with a weight for each feature: mask * exposure
    sources       E[c_fkt | h_t] = w_fk h_kt x_ft / rate_ft      F K rows, under the W of the time (eq. 15)
    pairs         of (h_{t-1}, h_t), t >= 2: what the law of a step needs      K P rows, see PAIRS
    first         of h_1: what the law of the first time needs                 K D rows, see FIRSTS

Each particle carries, in its column of ``table``, the mean of the sums over the paths that end in it. A step is
T_t(h_t) = E[decay T_{t-1}(h_{t-1}) + gain s_t(h_{t-1}, h_t)], the mean over particles h_{t-1} that h_t may come from:
which, and how likely, is what the smoothers differ in. decay = gain = 1 gives sums; decay = 1 - g_t, gain = g_t the
averages of online EM. See :mod:`nmf_zoo.kernels.hmm.particles.smoothing_sums` for how a step is put together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.emission import set_rates
from nmf_zoo.kernels.hmm.particles.laws import BASIS, UNIT
from nmf_zoo.kernels.hmm.particles.rows import add_row, mean_of
from nmf_zoo.kernels.numerics.arrays import copy_row

# Statistics of a component's step, by the kind of law.
# BASIS: 0 -> 0, 0 -> 1, 1 -> 0, 1 -> 1.  UNIT: towards the end that was nearer, away from it.
# LOG_NORMAL, with z = log h_{t-1} and z' = log h_t: z, z', z z, z z', z' z'.
PAIRS = (4, 2, 5)
FIRSTS = (1, 0, 2)  # of a component's first time: h; nothing; z and z z
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
    ready : (2 K, N) room for the densities of steps, (0, 0) where no smoother needs them
    spare : (R, N) room of the forward smoother, else (0, 0)
    room : (4, N) room
    drawn : (M + 3, N) uint64 room for indices, M the particles drawn for each by the backward smoother
    """

    table: Any
    scale: Any
    before: Any
    rows: StatisticRows
    ready: Any
    spare: Any
    room: Any
    drawn: Any


@kernel
def begin_sums(carried, population, law, gain):
    """Forget all; take the statistics of the first time from the population at it."""
    carried.table[:] = 0.0
    carried.scale[0] = 1.0
    n_components, n_stats = population.cloud.h.shape[0], 1 if law.kind == BASIS else 2
    if carried.rows.end > carried.rows.first:
        for k in range(n_components):
            row = carried.rows.first + k * n_stats
            if law.kind == BASIS:
                add_row(carried.table[row], population.cloud.h[k], gain)
            else:
                add_row(carried.table[row], population.cloud.aux[k], gain)
                add_product(carried.table[row + 1], population.cloud.aux[k], population.cloud.aux[k], gain)


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
    f, ratios, rank = target.counts.indices[c], carried.room[0], target.W.shape[1]
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
def add_product(out, a, b, scale):
    """out += scale * a * b"""
    for i in range(out.size):
        out[i] += scale * a[i] * b[i]


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
    new, old, share = population.cloud, population.other, gain / carried.scale[0]
    for k in range(new.h.shape[0]):
        if law.kind == BASIS:
            rows = carried.table[carried.rows.pairs + 4 * k : carried.rows.pairs + 4 * k + 4]
            add_switches(rows, new.h[k], old.h[k], origins, share, carried.room[0])
        elif law.kind == UNIT:
            rows = carried.table[carried.rows.pairs + 2 * k : carried.rows.pairs + 2 * k + 2]
            ends = new.h[k], new.aux[k], old.h[k], old.aux[k]
            add_directions(rows, ends, origins, share, carried.room[0])
        else:
            rows = carried.table[carried.rows.pairs + 5 * k : carried.rows.pairs + 5 * k + 5]
            add_moments(rows, new.aux[k], old.aux[k], origins, share, carried.room)


@kernel
def add_switches(rows, new, old, origins, share, was):
    """Of a binary chain: which of its four steps. (Rows one by one, here and below: such loops run in SIMD lanes.)"""
    was[:] = 0.0
    for m in range(origins.shape[0]):
        add_gathered(was, old, origins[m], 1.0 / origins.shape[0])
    add_chance(rows[0], was, new, share, (1.0, -1.0), (1.0, -1.0))
    add_chance(rows[1], was, new, share, (1.0, -1.0), (0.0, 1.0))
    add_chance(rows[2], was, new, share, (0.0, 1.0), (1.0, -1.0))
    add_chance(rows[3], was, new, share, (0.0, 1.0), (0.0, 1.0))


@kernel
def add_directions(rows, ends, origins, share, towards):
    """Of a unit chain, given by its distances to both ends now and before: towards the nearer or away."""
    towards[:] = 0.0
    for m in range(origins.shape[0]):
        add_towards(towards, ends, origins[m], 1.0 / origins.shape[0])
    add_row(rows[0], towards, share)
    add_chance(rows[1], towards, towards, share, (1.0, -1.0), (1.0, 0.0))


@kernel
def add_moments(rows, new, old, origins, share, room):
    """Of a log-normal chain, given by its logarithms: first and second moments."""
    z, square = room[0], room[1]
    z[:], square[:] = 0.0, 0.0
    for m in range(origins.shape[0]):
        add_gathered(z, old, origins[m], 1.0 / origins.shape[0])
        add_gathered_square(square, old, origins[m], 1.0 / origins.shape[0])
    add_row(rows[0], z, share)
    add_row(rows[1], new, share)
    add_row(rows[2], square, share)
    add_product(rows[3], z, new, share)
    add_product(rows[4], new, new, share)


@in_lanes
def add_chance(out, a, b, scale, of_a, of_b):
    """out += scale * A * B, A and B affine in a and b."""
    (a_0, a_1), (b_0, b_1) = of_a, of_b
    for i in range(out.size):
        out[i] += scale * (a_0 + a_1 * a[i]) * (b_0 + b_1 * b[i])


@in_lanes
def add_gathered(out, row, origins, scale):
    """out_i += scale * row[origins_i]"""
    for i in range(out.size):
        out[i] += scale * row[origins[i]]


@in_lanes
def add_gathered_square(out, row, origins, scale):
    """out_i += scale * row[origins_i]^2"""
    for i in range(out.size):
        z = row[origins[i]]
        out[i] += scale * z * z


@in_lanes
def add_towards(out, ends, origins, scale):
    """out += scale where a unit chain went towards the end that was nearer."""
    below, above, old_below, old_above = ends
    for i in range(out.size):
        was_below, was_above = old_below[origins[i]], old_above[origins[i]]
        is_towards = below[i] <= was_below if was_below <= was_above else above[i] <= was_above
        out[i] += scale if is_towards else 0.0


@kernel
def total_sums(sums, carried, weights):
    """Overwrite sums (R,) with the means of the statistics under the normalised weights (N,) of the particles."""
    for r in range(sums.size):
        sums[r] = carried.scale[0] * mean_of(carried.table[r], weights)

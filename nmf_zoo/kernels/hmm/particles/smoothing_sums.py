"""Smoothing sums over time, carried along with a particle filter: along paths, over all pairs, or drawn backwards.

Once a sample, after the filter's step (``begin`` at the first sample, ``advance`` later)::

    first sample    begin_sums(carried, population, law, gain)
    later           carry(carried, smoother, population, law, decay, gain, key)
    every           add_sample(carried, population, target, weights, gain, t)      weights (R,) of the sample
    when wanted     total_sums(sums, carried, population.weights)                  sums (R,), rows as carried.rows says

``law`` is that which the step was taken under, ``target.W`` that which the sample's sources are expected under, and
``key`` that of the filter's step, of which child SMOOTH is used here. decay = gain = 1: sums. decay = 1 - g_t, gain =
g_t: the averages of online EM (gain g_1 at the first sample). ``population.weights`` and ``log_weights`` must be the
filter's normalised ones, as they are after its step, and ``population.other`` the cloud that particles moved from.

:func:`nmf_zoo.inference.hmm.particle_expectations.make_carried` makes room.

**Along the particles' own paths**, in O(N) a step (Yildirim, Cemgil, Singh 2012, Algorithm 1)::

    T_t(i) = decay T_{t-1}(a_i) + gain s_t(h_{a_i}, h_i), a_i the ancestor

As printed, Algorithm 1 goes on with the statistics from before the resampling, so that they part from their particles;
here they go together.

Resampling makes all paths one some N steps back. So the variance of sums grows with the square of the time until they
are, but for the last steps, those of a single path, for which more particles are no help (Poyiadjis, Doucet, Singh
2011). A decay bounds how far back that matters.

Resampling leaves a particle with children where it is (`resampling.place_children`), so that the others' columns can be
taken over in place.

**Over all pairs of particles**, in O(N^2) a step (Del Moral, Doucet, Singh 2009, 2010)::

    T_t(i) = sum_j B_ij (decay T_{t-1}(j) + gain s_t(h_j, h_i)),   B_ij prop. to w_j f(h_i | h_j), w the filter's

Paths are not used, so that they cannot degenerate: the variance grows with the time alone. Where the particles are all
the states with their exact filter weights, the sums are exact.

**Over particles drawn backwards**, in O(N) a step, without the degeneracy of paths::

    T_t(i) = 1/M sum_m (decay T_{t-1}(j_m) + gain s_t(h_{j_m}, h_i)),    j_m ~ B_i, B_ij prop. to w_j f(h_i | h_j)

With M >= 2 particles for each the variance grows with the time alone (PaRIS: Olsson, Westerborn 2017). The first is the
ancestor of particle i, the others come after it by Metropolis steps (Dau, Chopin 2023): see
:mod:`nmf_zoo.kernels.hmm.particles.ancestor_sampling`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, comparing, in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.particles.ancestor_sampling import AncestorChains, move_chains, start_chains
from nmf_zoo.kernels.hmm.particles.laws import PAIRS, expect_step, prepare_steps, steps_to
from nmf_zoo.kernels.hmm.particles.passes import filter_times
from nmf_zoo.kernels.hmm.particles.rows import mean_of
from nmf_zoo.kernels.hmm.particles.statistics import add_pairs, add_sample, begin_sums, fade, scale_row
from nmf_zoo.kernels.numerics.arrays import copy_row
from nmf_zoo.kernels.numerics.special import LARGEST_POWER, fast_exp
from nmf_zoo.kernels.random.keyed_rng import fold

# -- along paths -----------------------------------------------------------------------------------------------------


@kernel
def carry_along_paths(carried, population, law, gain):
    """Take the statistics to the particles of the next sample, and add those of the step."""
    origins = carried.drawn[0]
    for i in range(origins.size):
        origins[i] = np.uint64(population.ancestors[i])
    move_columns(carried.table, origins, carried.drawn[1], carried.drawn[2])
    add_pairs(carried, population, carried.drawn[:1], gain, law)


@kernel
def move_columns(table, origins, places, moved):
    """Column i takes the values of column origins[i], which stays where it is; the last two (N,) uint64 scratch."""
    n_moved = 0
    for i in range(origins.size):
        places[n_moved], moved[n_moved] = np.uint64(i), origins[i]
        n_moved += 1 if origins[i] != np.uint64(i) else 0
    for r in range(table.shape[0]):
        row = table[r]
        for m in range(n_moved):
            row[places[m]] = row[moved[m]]


# -- over all pairs --------------------------------------------------------------------------------------------------


TILE = 4  # particles that share a pass over the table


@kernel
def carry_forward(carried, population, law, gain):
    """Take the statistics to the particles of the next sample, and add those of the step."""
    prepare_steps(carried.ready, population.other, law)
    n, table, tile, share = population.ancestors.size, carried.table, carried.workspace[:TILE], gain / carried.scale[0]
    for first in range(0, n, TILE):
        last = min(first + TILE, n)
        for i in range(first, last):
            set_backward(tile[i - first], carried, population, i, law)
        mix_columns(carried.spare, table, tile, first, last)
        if carried.rows.first > carried.rows.pairs:
            for i in range(first, last):
                expect_pairs(carried, population, tile[i - first], i, share, law)
    for r in range(table.shape[0]):
        table[r] = carried.spare[r]


@kernel
def set_backward(out, carried, population, i, law):
    """Overwrite out (N,) with B_ij: how likely particle i of this sample comes from each of the one before."""
    steps_to(out, carried.ready, population.cloud, i, population.other, law)
    to_shares(out, carried.before[0])


@kernel
def to_shares(row, log_weights):
    """Overwrite log-densities with normalised e^(row + log_weights)."""
    peak = add_and_peak(row, log_weights)
    exponentiate(row, peak)
    scale_row(row, 1.0 / sum_row(row))


@comparing
def add_and_peak(row, log_weights):
    """row += log_weights; the largest entry."""
    peak = -math.inf
    for j in range(row.size):
        row[j] = row[j] + log_weights[j]
        peak = max(peak, row[j])
    return peak


@in_lanes
def exponentiate(row, peak):
    """row = e^(row - peak), 0 below e^-700."""
    for j in range(row.size):
        below = row[j] - peak
        row[j] = fast_exp(below) if below > -LARGEST_POWER else 0.0


@summing
def sum_row(row):
    """sum_j row_j"""
    total = 0.0
    for j in range(row.size):
        total += row[j]
    return total


@kernel
def mix_columns(out, table, shares, first, last):
    """Columns ``first`` to ``last`` of out are the means of the table's columns under the rows of shares."""
    if last - first == TILE:
        for r in range(table.shape[0]):
            out[r, first], out[r, first + 1], out[r, first + 2], out[r, first + 3] = means_of_four(table[r], shares)
    else:
        for r in range(table.shape[0]):
            for i in range(first, last):
                out[r, i] = mean_of(table[r], shares[i - first])


@summing
def means_of_four(row, shares):
    """sum_j shares_ij row_j of the four rows of shares."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for j in range(row.size):
        a += shares[0, j] * row[j]
        b += shares[1, j] * row[j]
        c += shares[2, j] * row[j]
        d += shares[3, j] * row[j]
    return a, b, c, d


@kernel
def expect_pairs(carried, population, shares, i, gain, law):
    """Add to column i of ``spare`` the statistics of the step, expected over where particle i comes from."""
    new, old, n_stats = population.cloud, population.other, PAIRS[law.kind]
    for k in range(new.h.shape[0]):
        row = carried.rows.pairs + k * n_stats
        expect_step(carried.spare[row : row + n_stats, i], new, i, old, k, shares, gain, law)


# -- over particles drawn backwards ----------------------------------------------------------------------------------


@kernel
def carry_backward(carried, population, law, gain, smoother, key):
    """Take the statistics to the particles of the next sample, and add those of the step."""
    draw_origins(carried, population, law, smoother, key)
    drawn = carried.drawn[: smoother.draws]
    if smoother.draws == 2:
        mix_two(carried.table, carried.workspace[0], drawn, carried.drawn[2:])
    else:
        for r in range(carried.table.shape[0]):
            copy_row(carried.workspace[0], carried.table[r])
            mean_of_drawn(carried.table[r], carried.workspace[0], drawn)
    add_pairs(carried, population, drawn, gain, law)


@kernel
def mix_two(table, workspace, drawn, lists):
    """Column i becomes the mean of the columns drawn[:, i] (2, N). Often both are i: ``lists`` (3, N) has the rest."""
    n, firsts, seconds, places = 0, lists[0], lists[1], lists[2]
    for i in range(drawn.shape[1]):
        first, second, place = drawn[0, i], drawn[1, i], np.uint64(i)
        firsts[n], seconds[n], places[n] = first, second, place
        n += 1 if first != place or second != place else 0
    for r in range(table.shape[0]):
        mean_of_two(workspace, table[r], firsts, seconds, n)
        scatter(table[r], workspace, places, n)


@kernel
def draw_origins(carried, population, law, smoother, key):
    """Overwrite the first M rows of ``drawn`` (M, N)."""
    new, old, draws, drawn, workspace = (
        population.cloud,
        population.other,
        smoother.draws,
        carried.drawn,
        carried.workspace,
    )
    chains = AncestorChains(
        drawn[draws], drawn[draws + 1], workspace[:3], drawn[draws + 2], workspace[3], carried.ready
    )
    prepare_steps(chains.ready, old, law)
    start_chains(chains, new, old, law, carried.before[1], population.ancestors)
    copy_row(drawn[0], chains.current)
    for m in range(1, draws):
        move_chains(chains, new, old, law, smoother.steps, fold(key, m))
        copy_row(drawn[m], chains.current)


@in_lanes
def mean_of_two(out, row, firsts, seconds, n):
    """out_m = (row[first_m] + row[second_m]) / 2, m < n"""
    for m in range(n):
        out[m] = 0.5 * (row[firsts[m]] + row[seconds[m]])


@in_lanes
def scatter(row, values, places, n):
    """row[place_m] = value_m, m < n"""
    for m in range(n):
        row[places[m]] = values[m]


@in_lanes
def mean_of_drawn(row, old, drawn):
    """row_i = mean_m old[drawn_mi]"""
    for i in range(row.size):
        total = 0.0
        for m in range(drawn.shape[0]):
            total += old[drawn[m, i]]
        row[i] = total / drawn.shape[0]


# -- a step of any ---------------------------------------------------------------------------------------------------


SMOOTH = 2  # child of a step's key, beside the filter's


class Smoother(NamedTuple):
    """Which particles of the sample before a particle may come from. Its type says how they are found: only that is
    compiled.

    Attributes
    ----------
    draws : M >= 2 of a Backward one, the ancestor among them
    steps : of Metropolis from one drawn particle to the next, >= 1
    """

    draws: int = 2
    steps: int = 1


class PathSmoother(Smoother):
    """A particle comes from its ancestor, O(N)."""


class Forward(Smoother):
    """It may come from any, O(N^2)."""


class Backward(Smoother):
    """From some that are drawn, O(N)."""


@kernel
def advance_paths(carried, smoother, population, law, decay, gain, key):
    fade(carried, decay)
    carry_along_paths(carried, population, law, gain)


@kernel
def advance_forward(carried, smoother, population, law, decay, gain, key):
    fade(carried, decay)
    carry_forward(carried, population, law, gain)


@kernel
def advance_backward(carried, smoother, population, law, decay, gain, key):
    fade(carried, decay)
    carry_backward(carried, population, law, gain, smoother, fold(key, SMOOTH))


@chosen_by("smoother", {PathSmoother: advance_paths, Forward: advance_forward, Backward: advance_backward})
def carry(carried, smoother, population, law, decay, gain, key):
    """Take the statistics to the next sample's particles, times ``decay``; add ``gain`` times those of the step."""


# -- over a block of times -------------------------------------------------------------------------------------------


@kernel
def sum_block(population, carried, target, how, weights, track, span, key):
    """As `filter_block` over the times of ``span`` (first, last), and add up.

    ``how`` (plan, smoother); ``weights`` (last - first, R) of the samples, or (1, R) of all.
    """
    (plan, smoother), (first, last) = how, span
    for t in range(first, last):
        population, impossible = filter_times(population, target, plan, track, t, t + 1, key)
        if impossible != WITHOUT_DATA:
            return impossible
        if t == 0:
            begin_sums(carried, population, target.law, 1.0)
        else:
            carry(carried, smoother, population, target.law, 1.0, 1.0, fold(key, t))
        add_sample(carried, population, target, weights[t - first if weights.shape[0] > 1 else 0], 1.0, t)
    return WITHOUT_DATA

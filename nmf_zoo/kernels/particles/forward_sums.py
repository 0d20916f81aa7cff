"""Smoothing sums over all pairs of particles, in O(N^2) a step (Del Moral, Doucet, Singh 2009, 2010).

T_t(i) = sum_j B_ij (decay T_{t-1}(j) + gain s_t(h_j, h_i)),   B_ij prop. to w_j f(h_i | h_j), w the filter's weights

Paths are not used, so that they cannot degenerate: the variance grows with the time alone. Where the particles are all
the states with their exact filter weights, the sums are exact.
"""

from __future__ import annotations

import math

from nmf_zoo.kernels.basis_states import comparing, in_lanes, summing
from nmf_zoo.kernels.particles.laws import BASIS, UNIT
from nmf_zoo.kernels.particles.rows import mean_of
from nmf_zoo.kernels.particles.statistics import scale_row
from nmf_zoo.kernels.particles.step_densities import prepare_steps, steps_to
from nmf_zoo.kernels.softplus import LARGEST_POWER, fast_exp
from nmf_zoo.kernels.streams import kernel

TILE = 4  # particles that share a pass over the table


@kernel
def carry_forward(carried, population, law, gain):
    """Take the statistics to the particles of the next sample, and add those of the step."""
    prepare_steps(carried.ready, population.other, law)
    n, table, tile, share = population.ancestors.size, carried.table, carried.room[:TILE], gain / carried.scale[0]
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
    new, old = population.cloud, population.other
    for k in range(new.h.shape[0]):
        if law.kind == BASIS:
            column = carried.spare[carried.rows.pairs + 4 * k : carried.rows.pairs + 4 * k + 4, i]
            was, now = mean_of(old.h[k], shares), new.h[k, i]
            column[0] += gain * (1.0 - was) * (1.0 - now)
            column[1] += gain * (1.0 - was) * now
            column[2] += gain * was * (1.0 - now)
            column[3] += gain * was * now
        elif law.kind == UNIT:
            column = carried.spare[carried.rows.pairs + 2 * k : carried.rows.pairs + 2 * k + 2, i]
            towards = chance_towards(old.h[k], old.aux[k], shares, new.h[k, i], new.aux[k, i])
            column[0] += gain * towards
            column[1] += gain * (1.0 - towards)
        else:
            column = carried.spare[carried.rows.pairs + 5 * k : carried.rows.pairs + 5 * k + 5, i]
            first, second = two_moments(old.aux[k], shares)
            column[0] += gain * first
            column[1] += gain * new.aux[k, i]
            column[2] += gain * second
            column[3] += gain * first * new.aux[k, i]
            column[4] += gain * new.aux[k, i] * new.aux[k, i]


@summing
def chance_towards(below, above, shares, new_below, new_above):
    """How likely the step to a unit particle went towards the end that was nearer."""
    total = 0.0
    for j in range(shares.size):
        is_towards = new_below <= below[j] if below[j] <= above[j] else new_above <= above[j]
        total += shares[j] if is_towards else 0.0
    return total


@summing
def two_moments(z, shares):
    """(sum_j shares_j z_j, sum_j shares_j z_j^2)"""
    first, second = 0.0, 0.0
    for j in range(shares.size):
        first += shares[j] * z[j]
        second += shares[j] * z[j] * z[j]
    return first, second

"""Smoothing sums over particles drawn backwards, in O(N) a step, without the degeneracy of paths.

T_t(i) = 1/M sum_m (decay T_{t-1}(j_m) + gain s_t(h_{j_m}, h_i)),    j_m ~ B_i, B_ij prop. to w_j f(h_i | h_j)

With M >= 2 particles for each the variance grows with the time alone (PaRIS: Olsson, Westerborn 2017). The first is the
ancestor of particle i, the others come after it by Metropolis steps (Dau, Chopin 2023): see
:mod:`nmf_zoo.kernels.particles.origins`.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.basis_states import in_lanes
from nmf_zoo.kernels.particles.origins import Walk, go_on, start_walk
from nmf_zoo.kernels.particles.statistics import add_pairs
from nmf_zoo.kernels.particles.step_densities import prepare_steps
from nmf_zoo.kernels.streams import fold, kernel


@kernel
def carry_backward(carried, population, law, gain, smoother, key):
    """Take the statistics to the particles of the next sample, and add those of the step."""
    draw_origins(carried, population, law, smoother, key)
    drawn = carried.drawn[: smoother.draws]
    if smoother.draws == 2:
        mix_two(carried.table, carried.room[0], drawn, carried.drawn[2:])
    else:
        for r in range(carried.table.shape[0]):
            copy_row(carried.room[0], carried.table[r])
            mean_of_drawn(carried.table[r], carried.room[0], drawn)
    add_pairs(carried, population, drawn, gain, law)


@kernel
def mix_two(table, room, drawn, lists):
    """Column i becomes the mean of the columns drawn[:, i] (2, N). Often both are i: ``lists`` (3, N) has the rest."""
    n, firsts, seconds, places = 0, lists[0], lists[1], lists[2]
    for i in range(drawn.shape[1]):
        first, second, place = drawn[0, i], drawn[1, i], np.uint64(i)
        firsts[n], seconds[n], places[n] = first, second, place
        n += 1 if first != place or second != place else 0
    for r in range(table.shape[0]):
        mean_of_two(room, table[r], firsts, seconds, n)
        scatter(table[r], room, places, n)


@kernel
def draw_origins(carried, population, law, smoother, key):
    """Overwrite the first M rows of ``drawn`` (M, N)."""
    new, old, draws, drawn, room = population.cloud, population.other, smoother.draws, carried.drawn, carried.room
    walk = Walk(drawn[draws], drawn[draws + 1], room[:3], drawn[draws + 2], room[3], carried.ready)
    prepare_steps(walk.ready, old, law)
    start_walk(walk, new, old, law, carried.before[1], population.ancestors)
    copy_row(drawn[0], walk.current)
    for m in range(1, draws):
        go_on(walk, new, old, law, smoother.steps, fold(key, m))
        copy_row(drawn[m], walk.current)


@in_lanes
def copy_row(out, row):
    """out = row, which does not overlap."""
    for i in range(row.size):
        out[i] = row[i]


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

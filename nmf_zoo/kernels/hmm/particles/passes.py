"""A particle filter over a block of times, and what it keeps of each."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import kernel, summing
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.particles.filter import first_step, next_step
from nmf_zoo.kernels.hmm.particles.rows import mean_of
from nmf_zoo.kernels.random.keyed_rng import fold


class Track(NamedTuple):
    """What is kept of every time, overwritten.

    Attributes
    ----------
    means, sds : (T, K) of the filter, or (0, K): not wanted
    sizes : (T,) effective numbers of particles, before resampling
    resampled : (T,) whether the particles were resampled on the way to this time
    log_p : (T,) log p(x_t | the past), up to the terms without particles
    """

    means: Any
    sds: Any
    sizes: Any
    resampled: Any
    log_p: Any


@kernel
def filter_block(population, target, plan, track, first, last, key):
    """Filter the times from ``first`` to ``last``, on from the population at the time before.

    Returns WITHOUT_DATA, or the time at which all particles are at zero weight. Each step swaps the clouds: so must the
    caller, with `after_block` of the host. To hand back the population itself would run Python while it is made, and
    an interrupt that waits is raised there, which compiled code does not expect.
    """
    _, impossible = filter_times(population, target, plan, track, first, last, key)
    return impossible


@kernel
def filter_times(population, target, plan, track, first, last, key):
    """(population, impossible): as `filter_block`, for compiled callers."""
    for t in range(first, last):
        resampled = 0
        if t == 0:
            log_p, size = first_step(population, target, t, plan, fold(key, t))
        else:
            population, log_p, size, resampled = next_step(population, target, t, plan, fold(key, t))
        if not log_p > -math.inf:
            return population, t
        track.sizes[t], track.resampled[t], track.log_p[t] = size, resampled == 1, log_p
        if track.means.shape[0] > 0:
            for k in range(track.means.shape[1]):
                track.means[t, k] = mean_of(population.cloud.h[k], population.weights)
                track.sds[t, k] = math.sqrt(spread_of(population.cloud.h[k], population.weights, track.means[t, k]))
    return population, WITHOUT_DATA


@summing
def spread_of(row, weights, mean):
    """sum_i w_i (row_i - mean)^2"""
    total = 0.0
    for i in range(row.size):
        away = row[i] - mean
        total += weights[i] * away * away
    return total

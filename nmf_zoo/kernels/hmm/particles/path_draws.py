"""Draws of whole paths given all samples, backwards through the particles of a filter (Godsill, Doucet, West 2004).

The last particle of a path is drawn by the filter's weights w; then, from t to t - 1, particle j with probability
proportional to w_j f(h_t | h_j). Either exactly, in O(N) a path and step, or by some Metropolis steps from the ancestor
of the particle at t, with candidates from w (Bunch, Godsill 2013; Dau, Chopin 2023), in O(1).

A block of times is filtered, its particles kept, and gone through backwards; see
:mod:`nmf_zoo.inference.hmm.particle_filter`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.particles.ancestor_sampling import draw_by_guide, move_chains, set_guide, start_chains
from nmf_zoo.kernels.hmm.particles.laws import Cloud, prepare_steps, steps_to
from nmf_zoo.kernels.hmm.particles.passes import filter_times
from nmf_zoo.kernels.hmm.particles.smoothing_sums import to_shares
from nmf_zoo.kernels.numerics.arrays import copy_row, copy_table
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

DRAW = 3  # child of a step's key, beside those of the filter and the smoother


class BlockHistory(NamedTuple):
    """The particles of a block of B times.

    Attributes
    ----------
    h, aux : (B, K, N)
    log_weights, weights : (B, N) of the filter
    ancestors : (B, N) the particles of the time before that they came from
    """

    h: Any
    aux: Any
    log_weights: Any
    weights: Any
    ancestors: Any


class Paths(NamedTuple):
    """Paths, drawn from their ends on.

    Attributes
    ----------
    h, aux : (n, K, T)
    ends : Cloud (K, n), the last states drawn
    starts : (n,) int64 ancestors of these
    chains : AncestorChains, whose ``current`` is drawn last
    row : (N,) scratch
    """

    h: Any
    aux: Any
    ends: Any
    starts: Any
    chains: Any
    row: Any


@kernel
def store_block(population, target, plan, track, history, span, key):
    """As `filter_block` over the times of ``span`` (first, last), and keep the particles."""
    first, last = span
    for t in range(first, last):
        population, impossible = filter_times(population, target, plan, track, t, t + 1, key)
        if impossible != WITHOUT_DATA:
            return impossible
        copy_table(history.h[t - first], population.cloud.h)
        copy_table(history.aux[t - first], population.cloud.aux)
        copy_row(history.log_weights[t - first], population.log_weights)
        copy_row(history.weights[t - first], population.weights)
        copy_row(history.ancestors[t - first], population.ancestors)
    return WITHOUT_DATA


@kernel
def draw_block(paths, history, law, steps, span, key):
    """Go on with the paths backwards over the times of ``span``; ``steps`` of Metropolis, 0: exactly."""
    (first, last), chains = span, paths.chains
    for t in range(last - 1, first - 1, -1):
        cloud, stream = Cloud(history.h[t - first], history.aux[t - first]), fold(fold(key, t), DRAW)
        weights = history.weights[t - first]
        if t == paths.h.shape[2] - 1:
            set_guide(chains.guide, chains.cumulative, weights)
            draw_by_guide(chains.current, chains.guide, chains.cumulative, stream)
        else:
            prepare_steps(chains.ready, cloud, law)
            if steps > 0:
                start_chains(chains, paths.ends, cloud, law, weights, paths.starts)
                move_chains(chains, paths.ends, cloud, law, steps, stream)
            else:
                draw_exactly(paths, cloud, history.log_weights[t - first], law, stream)
        follow(paths, cloud, history.ancestors[t - first], t)


@kernel
def draw_exactly(paths, cloud, log_weights, law, key):
    """Draw a particle before each of the ends from the whole law of where it may come from."""
    for i in range(paths.starts.size):
        steps_to(paths.row, paths.chains.ready, paths.ends, i, cloud, law)
        to_shares(paths.row, log_weights)
        paths.chains.current[i] = draw_one(paths.row, uniform(key, np.uint64(i)))


@kernel
def draw_one(shares, u):
    """The particle at which the shares reach u of their sum."""
    total, last = 0.0, 0
    for j in range(shares.size):
        total += shares[j]
        last = j if shares[j] > 0.0 else last
    reached, j = shares[0], 0
    while reached < u * total and j < last:
        j += 1
        reached += shares[j]
    return np.uint64(j)


@kernel
def follow(paths, cloud, ancestors, t):
    """The drawn particles are the ends of the paths now."""
    for k in range(cloud.h.shape[0]):
        for i in range(paths.starts.size):
            j = paths.chains.current[i]
            paths.ends.h[k, i], paths.ends.aux[k, i] = cloud.h[k, j], cloud.aux[k, j]
            paths.h[i, k, t], paths.aux[i, k, t] = cloud.h[k, j], cloud.aux[k, j]
    for i in range(paths.starts.size):
        paths.starts[i] = ancestors[paths.chains.current[i]]

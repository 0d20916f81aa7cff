"""Draws of whole paths of H given all samples, by a particle filter forward and draws backward.

See :mod:`nmf_zoo.kernels.particles.path_draws`. Step t of the filter is a function of the key alone, so that particles
need not be kept: a first pass keeps those at the ends of blocks, then the blocks are taken from the last to the first,
each filtered again and gone through backwards. The memory is about 2 sqrt(T) clouds, for one filter more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.hmm.laws import after_block
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter
from nmf_zoo.kernels.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.particles.laws import Cloud
from nmf_zoo.kernels.particles.origins import Walk
from nmf_zoo.kernels.particles.passes import filter_block
from nmf_zoo.kernels.particles.path_draws import History, Paths, draw_block, store_block
from nmf_zoo.structure import Array, spans

KEPT = 1 << 23  # numbers in the particles of a block, unless sqrt(T) clouds are more: 64 MB


class DrawnPaths(NamedTuple):
    """Draws of H given X.

    Attributes
    ----------
    log_likelihood, impossible : as of ``ParticleFilter.run``; where impossible is not WITHOUT_DATA nothing was drawn
    h : (n, K, T) activations
    aux : (n, K, T) 1 - h of unit chains, log h of log-normal ones, h of binary ones
    """

    log_likelihood: float
    impossible: int
    h: Array
    aux: Array


def draw_paths(
    filtering: ParticleFilter, n_paths: int, key: np.uint64, steps: int = 0, block: int | None = None
) -> DrawnPaths:
    """Draw paths through the particles that ``filtering`` has with this key.

    Given the particles they are independent. ``steps`` of Metropolis for each state of a path, in time that does
    not grow with the particles; 0: exactly, in time that does. ``block``: times kept at once; no draw depends on it.
    """
    rank, n_times, n_particles = filtering.rank, filtering.n_times, filtering.n_particles
    blocks, starts = list(_spans(filtering, block)), []
    population = filtering.make_population()
    paths = _make_paths(n_paths, rank, n_times, n_particles)
    for first, last in blocks:
        starts.append(_copy(population))
        impossible = filter_block(population, filtering.target, filtering.plan, filtering.track, first, last, key)
        population = after_block(population, first, last)
        if impossible != WITHOUT_DATA:
            return DrawnPaths(-math.inf, impossible, paths.h, paths.aux)
    history = _make_history(blocks[0][1], rank, n_particles)
    for span in blocks[::-1]:
        store_block(starts.pop(), filtering.target, filtering.plan, filtering.track, history, span, key)
        draw_block(paths, history, filtering.target.law, steps, span, key)
    return DrawnPaths(filtering.log_likelihood, WITHOUT_DATA, paths.h, paths.aux)


def _spans(filtering: ParticleFilter, block: int | None):
    numbers = (2 * filtering.rank + 3) * filtering.n_particles
    block = block or max(math.isqrt(filtering.n_times) + 1, min(filtering.n_times, KEPT // numbers))
    return spans(filtering.n_times, block)


def _copy(tree):
    """The same arrays, in NamedTuples of NamedTuples, of its own."""
    return tree.copy() if isinstance(tree, np.ndarray) else type(tree)(*map(_copy, tree))


def _make_paths(n_paths: int, rank: int, n_times: int, n_particles: int) -> Paths:
    h, aux = (np.empty((n_paths, rank, n_times)) for _ in range(2))
    current, candidates = (np.zeros(n_paths, np.uint64) for _ in range(2))
    guide, cumulative, ready = (
        np.zeros(n_particles, np.uint64),
        np.zeros(n_particles),
        np.zeros((2 * rank, n_particles)),
    )
    walk = Walk(current, candidates, np.zeros((3, n_paths)), guide, cumulative, ready)
    ends = Cloud(*(np.ones((rank, n_paths)) for _ in range(2)))
    return Paths(h, aux, ends, np.zeros(n_paths, np.int64), walk, np.zeros(n_particles))


def _make_history(n_times: int, rank: int, n_particles: int) -> History:
    h, aux = (np.empty((n_times, rank, n_particles)) for _ in range(2))
    log_weights, weights = (np.empty((n_times, n_particles)) for _ in range(2))
    return History(h, aux, log_weights, weights, np.empty((n_times, n_particles), np.int64))

"""A particle filter over all times, in blocks of them, and draws of whole paths.

See :mod:`nmf_zoo.kernels.hmm.particles.filter`. Step t draws from child t of the key, so that blocks, threads and a
second run over the same times change nothing.

**Paths** of H given all samples come from a filter forward and draws backward:
see :mod:`nmf_zoo.kernels.hmm.particles.path_draws`. Step t of the filter is a function of the key alone, so that
particles need not be kept: a first pass keeps those at the ends of blocks, then the blocks are taken from the last to
the first, each filtered again and gone through backwards. The memory is about 2 sqrt(T) clouds, for one filter more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.hmm.laws import after_block, make_population, steps_of
from nmf_zoo.inference.hmm.particle_options import PROPOSALS, RESAMPLING, ParticleOptions
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.particles.ancestor_sampling import AncestorChains
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan, Population
from nmf_zoo.kernels.hmm.particles.laws import Cloud
from nmf_zoo.kernels.hmm.particles.passes import Track, filter_block
from nmf_zoo.kernels.hmm.particles.path_draws import BlockHistory, Paths, draw_block, store_block
from nmf_zoo.structure import Array, Factorisation, spans

WORK = 1 << 24  # particles x components x features of a block: a tenth of a second between two looks at the clock

Report = Callable[[int], None]


def plan_of(options: ParticleOptions, structure: Factorisation) -> FilterPlan:
    """The options as the kernels take them."""
    proposal = PROPOSALS.index(options.proposal_for(structure))
    return FilterPlan(proposal, RESAMPLING.index(options.resampling), float(options.ess))


class ParticleFilter:
    """What particles say about the chains under one W and one law.

    Parameters
    ----------
    target : Target, whose counts' ``weight_sums`` is that of its W
    plan : FilterPlan
    n_particles : N
    moments : keep means and standard deviations of the filter
    block : times of a block; no result depends on it

    Attributes
    ----------
    steps : the plan as passes over the times take it
    track : Track of the last run: means, sds (T, K), sizes, resampled, log_p (T,)
    """

    def __init__(
        self, target: Target, plan: FilterPlan, n_particles: int, moments: bool = True, block: int | None = None
    ):
        self.target, self.plan, self.n_particles = target, plan, n_particles
        self.steps = steps_of(plan, target.law.kind)
        (n_features, self.rank), self.n_times = target.W.shape, len(target.counts.indptr) - 1
        self.block = max(1, WORK // (n_particles * n_features * self.rank)) if block is None else block
        kept = self.n_times if moments else 0
        self.track = Track(
            np.zeros((kept, self.rank)),
            np.zeros((kept, self.rank)),
            np.zeros(self.n_times),
            np.zeros(self.n_times, dtype=bool),
            np.zeros(self.n_times),
        )

    def run(self, key: np.uint64, report: Report = lambda done: None) -> tuple[float, int, Population]:
        """Filter all times.

        Returns (an estimate of log p(X) up to the terms without particles, WITHOUT_DATA, the last population), or
        (-inf, the first time at which all particles are at zero weight, the population there).
        """
        population = self.make_population()
        for first, last in self.spans():
            impossible = filter_block(population, self.target, self.steps, self.track, first, last, key)
            population = after_block(population, first, last)
            if impossible != WITHOUT_DATA:
                return -math.inf, impossible, population
            report(last)
        return self.log_likelihood, WITHOUT_DATA, population

    @property
    def log_likelihood(self) -> float:
        """That of a run without impossible times: the exact sum over them, whatever the blocks."""
        return math.fsum(self.track.log_p)

    def make_population(self) -> Population:
        """Scratch for its particles."""
        return make_population(self.rank, self.n_particles, self.plan.proposal)

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first, last) of the blocks."""
        return spans(self.n_times, self.block)


def require_weight(impossible: int, name: str, axis: str, options: ParticleOptions) -> None:
    """Refuse a run whose particles have all lost their weight at the time ``impossible``."""
    if impossible == WITHOUT_DATA:
        return
    more = f"more than particles={options.particles}"
    if options.proposal != "auxiliary":
        more += ", or proposal='auxiliary'"
    do = f"give a background, start W with a positive entry for every feature, or take {more}"
    raise RunFailed(f"{name}: no particle can make the counts of {axis} {impossible}: {do}")


# -- paths -----------------------------------------------------------------------------------------------------------


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
        impossible = filter_block(population, filtering.target, filtering.steps, filtering.track, first, last, key)
        population = after_block(population, first, last)
        if impossible != WITHOUT_DATA:
            return DrawnPaths(-math.inf, impossible, paths.h, paths.aux)
    history = _make_history(blocks[0][1], rank, n_particles)
    for span in blocks[::-1]:
        store_block(starts.pop(), filtering.target, filtering.steps, filtering.track, history, span, key)
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
    chains = AncestorChains(current, candidates, np.zeros((3, n_paths)), guide, cumulative, ready)
    ends = Cloud(*(np.ones((rank, n_paths)) for _ in range(2)))
    return Paths(h, aux, ends, np.zeros(n_paths, np.int64), chains, np.zeros(n_particles))


def _make_history(n_times: int, rank: int, n_particles: int) -> BlockHistory:
    h, aux = (np.empty((n_times, rank, n_particles)) for _ in range(2))
    log_weights, weights = (np.empty((n_times, n_particles)) for _ in range(2))
    return BlockHistory(h, aux, log_weights, weights, np.empty((n_times, n_particles), np.int64))

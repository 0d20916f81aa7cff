"""A particle filter over all times, in blocks of them.

See :mod:`nmf_zoo.kernels.particles.filter`. Step t draws from child t of the key, so that blocks, threads and a second
run over the same times change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.hmm.laws import after_block, make_population
from nmf_zoo.inference.hmm.particle_options import PROPOSALS, RESAMPLING, ParticleOptions
from nmf_zoo.kernels.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.particles.emission import Target
from nmf_zoo.kernels.particles.filter import Plan, Population
from nmf_zoo.kernels.particles.passes import Track, filter_block
from nmf_zoo.structure import Factorisation, spans

WORK = 1 << 24  # particles x components x features of a block: a tenth of a second between two looks at the clock

Report = Callable[[int], None]


def plan_of(options: ParticleOptions, structure: Factorisation) -> Plan:
    """The options as the kernels take them."""
    proposal = PROPOSALS.index(options.proposal_for(structure))
    return Plan(proposal, RESAMPLING.index(options.resampling), float(options.ess))


class ParticleFilter:
    """What particles say about the chains under one W and one law.

    Parameters
    ----------
    target : Target, whose counts' ``drag`` is that of its W
    plan : Plan
    n_particles : N
    moments : keep means and standard deviations of the filter
    block : times of a block; no result depends on it

    Attributes
    ----------
    track : Track of the last run: means, sds (T, K), sizes, resampled, log_p (T,)
    """

    def __init__(self, target: Target, plan: Plan, n_particles: int, moments: bool = True, block: int | None = None):
        self.target, self.plan, self.n_particles = target, plan, n_particles
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
            impossible = filter_block(population, self.target, self.plan, self.track, first, last, key)
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
        """Room for its particles."""
        return make_population(self.rank, self.n_particles, self.plan.proposal, self.target.law.kind)

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

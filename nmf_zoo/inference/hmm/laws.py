"""The law of a chain as the kernels of particles take it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo import structure
from nmf_zoo.kernels.hmm.particles.filter import Population
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT, Cloud, Law
from nmf_zoo.kernels.hmm.particles.proposals import BOOTSTRAP, make_ahead
from nmf_zoo.structure import Array, BasisChainPrior, LogNormalARPrior, UnitChainPrior


def law_of(prior: structure.ChainPrior, values: Mapping[str, Array], rank: int) -> Law:
    """The law of ``rank`` chains, given the values of the unknowns."""
    if isinstance(prior, BasisChainPrior):
        p, q, initial = prior.law(values)
        return Law(BASIS, _rows(3, rank, p, q), _rows(2, rank, initial))
    if isinstance(prior, LogNormalARPrior):
        mean, persistence, scale, *first = prior.law(values)
        return Law(LOG_NORMAL, _rows(3, rank, mean, persistence, scale), _rows(2, rank, *first))
    assert isinstance(prior, UnitChainPrior)
    return Law(UNIT, _rows(3, rank, prior.alpha.resolve(values)), _rows(2, rank))


def _rows(n_rows: int, rank: int, *given: Array) -> Array:
    """(n_rows, rank), the parameters () or (K, 1) in the first rows, 0 in the others."""
    rows = np.zeros((n_rows, rank))
    for row, parameter in zip(rows, given, strict=False):
        row[:] = np.broadcast_to(parameter, (rank, 1))[:, 0]
    return rows


def make_population(rank: int, n_particles: int, proposal: int = BOOTSTRAP, kind: int = BASIS) -> Population:
    """Room for particles that move by this proposal of `proposals`, of chains of this kind."""
    first, second = (Cloud(*(np.ones((rank, n_particles)) for _ in range(2))) for _ in range(2))
    log_weights, increments, look, weights, rates = (np.zeros(n_particles) for _ in range(5))
    ancestors = np.arange(n_particles, dtype=np.int64)
    ahead = make_ahead(proposal, kind, rank, n_particles)
    return Population(first, second, log_weights, ancestors, increments, look, weights, rates, ahead)


def swap(population: Population) -> Population:
    """With the cloud of the last sample in its place."""
    return population._replace(cloud=population.other, other=population.cloud)


def after_block(population: Population, first: int, last: int) -> Population:
    """The population after the times from ``first`` to ``last``: all but the first time are steps, and swap clouds."""
    return swap(population) if (last - max(first, 1)) % 2 else population

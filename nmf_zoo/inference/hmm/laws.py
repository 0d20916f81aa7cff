"""The law of a chain as the kernels of particles take it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.hmm.chains import formulas_of
from nmf_zoo.kernels.hmm.particles.filter import Population
from nmf_zoo.kernels.hmm.particles.laws import BASIS, Cloud, Law
from nmf_zoo.kernels.hmm.particles.proposals import BOOTSTRAP, make_ahead
from nmf_zoo.structure import Array, ChainPrior


def law_of(prior: ChainPrior, values: Mapping[str, Array], rank: int) -> Law:
    """The law of ``rank`` chains, given the values of the unknowns."""
    formulas = formulas_of(prior)
    parameters, initial = formulas.law_rows(prior, values)
    return Law(formulas.code, _rows(3, rank, *parameters), _rows(2, rank, *initial))


def _rows(n_rows: int, rank: int, *given: Array) -> Array:
    """(n_rows, rank), the parameters () or (K, 1) in the first rows, 0 in the others."""
    rows = np.zeros((n_rows, rank))
    for row, parameter in zip(rows, given, strict=False):
        row[:] = np.broadcast_to(parameter, (rank, 1))[:, 0]
    return rows


def make_population(rank: int, n_particles: int, proposal: int = BOOTSTRAP, kind: int = BASIS) -> Population:
    """Scratch for particles that move by this proposal of `proposals`, of chains of this kind."""
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

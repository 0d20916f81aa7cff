"""The law of a chain, and particles that move by it, as the kernels take them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from nmf_zoo.inference.hmm.chains import formulas_of
from nmf_zoo.kernels.compile.apart import Address, address_of
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles.conditional_filter import INCREMENTS
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import AddressedPlan, FilterPlan, Population, step_in_place
from nmf_zoo.kernels.hmm.particles.laws import Cloud, Law
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY, BOOTSTRAP, GUIDES, Guide, make_ahead
from nmf_zoo.structure import Array, ChainPrior, broadcast


def law_of(prior: ChainPrior, values: Mapping[str, Array], rank: int) -> Law:
    """The law of ``rank`` chains, given the values of the unknowns."""
    formulas = formulas_of(prior)
    parameters, initial = formulas.law_rows(prior, values)
    return Law(formulas.code, _rows(3, rank, *parameters), _rows(2, rank, *initial))


def _rows(n_rows: int, rank: int, *given: Array) -> Array:
    """(n_rows, rank), the parameters () or (K, 1) in the first rows, 0 in the others."""
    rows = np.zeros((n_rows, rank))
    for row, parameter in zip(rows, given, strict=False):
        row[:] = broadcast(parameter, (rank, 1))[:, 0]
    return rows


def make_population(rank: int, n_particles: int, proposal: int = BOOTSTRAP) -> Population:
    """Scratch for particles that move by this proposal of `proposals`."""
    first, second = (Cloud(*(np.ones((rank, n_particles)) for _ in range(2))) for _ in range(2))
    log_weights, increments, look, weights, rates = (np.zeros(n_particles) for _ in range(5))
    ancestors = np.arange(n_particles, dtype=np.int64)
    ahead = make_ahead(proposal, rank, n_particles)
    return Population(first, second, log_weights, ancestors, increments, look, weights, rates, ahead)


def swap(population: Population) -> Population:
    """With the cloud of the last sample in its place."""
    return population._replace(cloud=population.other, other=population.cloud)


def after_block(population: Population, first: int, last: int) -> Population:
    """The population after the times from ``first`` to ``last``: all but the first time are steps, and swap clouds."""
    return swap(population) if (last - max(first, 1)) % 2 else population


# -- what is called by its address -----------------------------------------------------------------------------------


def with_guide(plan: FilterPlan, kind: int) -> FilterPlan:
    """The plan for chains of this kind, with the addresses of what looks at samples: compiled at the first call."""
    return plan if plan.proposal == BOOTSTRAP else plan._replace(guide=_guide_of(kind))


@cache
def steps_of(plan: FilterPlan, kind: int) -> FilterPlan | AddressedPlan:
    """The plan as passes over times take it, for chains of this kind: compiled at the first call."""
    if plan.proposal == BOOTSTRAP:
        return plan
    plan, (population, target) = with_guide(plan, kind), _example(kind)
    step = population, target, 0, True, plan, np.uint64(0)
    return AddressedPlan(plan, address_of(step_in_place, step, (0.0, 0.0, 0)))


@cache
def increment_of(proposal: int, kind: int) -> Address | None:
    """The address of what tells how a guided proposal would have weighed a given particle."""
    if proposal == BOOTSTRAP:
        return None
    population, target = _example(kind)
    return address_of(INCREMENTS[kind], (population.ahead, population, target.law, 0, 0), 0.0)


@cache
def _guide_of(kind: int) -> Guide:
    guide, (population, target) = GUIDES[kind], _example(kind)
    look = population.ahead, population, target, 0
    draw = *look, np.uint64(0)
    return Guide(
        address_of(guide.look, look, None),
        address_of(guide.propose, draw, None),
        address_of(guide.propose_first, draw, None),
    )


def _example(kind: int) -> tuple[Population, Target]:
    """Of the types that all populations that look ahead, and all targets, have."""
    counts = Counts(np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0), np.zeros((1, 1)))
    law = Law(kind, np.zeros((3, 1)), np.zeros((2, 1)))
    return make_population(1, 1, AUXILIARY), Target(counts, np.zeros((1, 1)), np.zeros(1), law)

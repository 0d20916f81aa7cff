"""Online EM by particles for any chain: W and its parameters from a stream (Yildirim, Cemgil, Singh 2012, section 3.3).

Every sample is a step of size t^-exponent: the particles move on and are weighed, carry smoothed sums along, and W and
the chain's parameters go to where these say; see :mod:`nmf_zoo.kernels.hmm.particles.online`. What is kept is particles
and sums, whatever has been seen. Samples are the times of the chain, in the order in which they come; one without an
observed cell is a missing time. The sums are averages: beside them what the priors of W and of the chain's parameters
say is divided by the samples so far.

The first time is one of ever more, and the steps forget it: a law of the first time is used, and not learned. One that
is unknown stays where it started; a stationary one follows from the other parameters at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.hmm.chains import CHAINS, formulas_of
from nmf_zoo.inference.hmm.laws import law_of, make_population, steps_of, swap
from nmf_zoo.inference.hmm.m_step import Entries, as_variable
from nmf_zoo.inference.hmm.online import (
    copy,
    counts_of,
    cut,
    gamma_of,
    mean_of_first,
    series_of,
    shared_offsets,
    takes_stream,
    weights_of,
)
from nmf_zoo.inference.hmm.particle_expectations import SMOOTHERS, WantedSums, make_carried
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, draw_paths, plan_of
from nmf_zoo.inference.hmm.particle_options import ParticleOptions
from nmf_zoo.inference.hmm.starts import start_values, start_weights
from nmf_zoo.inference.hmm.support import MOST_MEMORY
from nmf_zoo.inference.shared.step_options import check_steps
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan, Population
from nmf_zoo.kernels.hmm.particles.laws import FIRSTS, PAIRS, Law
from nmf_zoo.kernels.hmm.particles.online import SEEN, StepPlan, Updates, learn
from nmf_zoo.kernels.hmm.particles.statistics import Carried
from nmf_zoo.kernels.numerics.moments import standard_deviation
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import names_checked
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.stream_engine import ACTIVATIONS, START, Columns, StreamEngine, takes_exposures
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, ChainPrior, Factorisation, Flat, Poisson

STEPS = 3  # child of a stream's key, beside START and ACTIVATIONS
PATHS_OF_BLOCKS, MOST_NUMBERS = (20, 400), 1 << 24  # paths drawn for the activations of a block, and numbers in them


class ParticleOnlineState(NamedTuple):
    """Particles with what they carry, parameters, and the clock of :func:`~nmf_zoo.kernels.hmm.particles.online.learn`.

    ``others`` holds the values of unknowns that are not learned: those of the first time.
    """

    population: Population
    carried: Carried
    W: Array
    law: Law
    others: dict[str, Array]
    clock: Array


class ParticleOnlineInfo(NamedTuple):
    """log_p: an estimate for the samples so far, each given those before it, under the parameters of its time."""

    log_p: float


@names_checked
@dataclass(frozen=True, kw_only=True)
class ParticleOnlineEM(ParticleOptions):
    """Options of online EM by particles, for chains of every kind.

    Attributes
    ----------
    particles, proposal, resampling, ess : of the filter
    exponent : the t-th sample has the step size t^-exponent, 1/2 < exponent <= 1. A small one leaves a poor start
        sooner; the last estimates average over some t^exponent samples, so that from a good start 0.8 is more precise
    burn_in : samples whose sums are gathered under the start, before the first update of the parameters
    smoother : how the sums over all samples are made: "path" follows each particle's own line (Algorithm 1); "backward"
        draws where each particle may have come from anew, for twice the time and less noise; "forward" sums over all
        of these, in time particles^2
    batch : samples handled in one call; results do not depend on it
    """

    exponent: float = 0.6
    burn_in: int = 100
    smoother: Literal["path", "backward", "forward"] = "path"
    batch: int = 64

    def __post_init__(self):
        super().__post_init__()
        check_steps(self)


@dataclass(frozen=True)
class ParticleOnlineProblem:
    """What a stream keeps of its model."""

    structure: Factorisation
    options: ParticleOnlineEM
    plan: FilterPlan
    updates: Updates
    entries: Entries
    base: Array


def supports(structure: Factorisation, options: ParticleOnlineEM) -> Verdict:
    """Chains of every kind; offsets that all samples share; W free, gamma or known."""
    verdict = takes_stream(structure)
    if not verdict:
        return verdict
    memory = 8.0 * options.particles * (3 * (n_rows(structure) + 2 * structure.rank) + 20)
    if memory > MOST_MEMORY:
        return Verdict(f"{options.particles} particles would take {memory / 1e9:.2g} GB: take fewer")
    return CAN_RUN


def n_rows(structure: Factorisation) -> int:
    """Numbers that a particle carries, at most: activations for each feature, sources, and statistics of pairs."""
    n_features, rank = structure.W.shape
    return rank * (2 * n_features + max(PAIRS) + max(FIRSTS))


def prepare(structure: Factorisation, options: ParticleOnlineEM, workers: Workers) -> ParticleOnlineProblem:
    """The rules of a step."""
    prior, rank = _chain(structure), structure.rank
    offsets = shared_offsets(structure)
    assert offsets is not None
    exposure, background = offsets
    prior_power, prior_rate = gamma_of(structure)
    rules, entries = formulas_of(prior).rules(prior, rank)
    plan = plan_of(options, structure)
    updates = Updates(
        learns_weights=int(not structure.W.is_fixed),
        recentres=int(_can_recentre(structure)),
        of_features=exposure,
        prior_power=prior_power,
        prior_rate=prior_rate,
        chain=rules,
        sums=np.zeros(0),
        nothing=np.zeros((rank, 3)),
    )
    return ParticleOnlineProblem(structure, options, plan, updates, entries, background / exposure)


def _can_recentre(structure: Factorisation) -> bool:
    """The scale of W is free, and the chain says what it is."""
    prior = structure.H.prior
    return isinstance(structure.W.prior, Flat) and formulas_of(prior).fixes_scale(prior)


def _chain(structure: Factorisation) -> Any:
    prior = structure.H.prior
    assert isinstance(prior, ChainPrior)
    return prior


def init(
    problem: ParticleOnlineProblem, columns: Columns, key: np.uint64, start: Mapping[str, Array]
) -> ParticleOnlineState:
    """Nothing seen; W and the chain given, or W random at the scale of the first samples, the chain in the middle."""
    structure, options, prior = problem.structure, problem.options, _chain(problem.structure)
    values = start_values(structure, start)
    first = columns.part(0, min(options.burn_in, columns.n_columns))
    mean = partial(mean_of_first, problem.updates.of_features, first, prior.typical(values), structure.rank)
    W = start_weights(structure.W, start, mean, child(key, START))
    others = {name: value for name, value in values.items() if name not in problem.entries}
    law = law_of(prior, values, structure.rank)
    population = make_population(structure.rank, options.particles, problem.plan.proposal)
    return ParticleOnlineState(population, _carried(problem, law.kind, 1), W, law, others, np.zeros(3))


def _carried(problem: ParticleOnlineProblem, kind: int, weight_rows: int) -> Carried:
    learns, options = bool(problem.updates.learns_weights), problem.options
    needs_pairs = bool(problem.entries) or problem.updates.recentres == 1
    wanted = WantedSums(activations=learns, sources=learns, pairs=needs_pairs, first=False)
    shape, smoother = problem.structure.W.shape, SMOOTHERS[options.smoother]
    return make_carried(kind, shape, options.particles, smoother, weight_rows, wanted)


def update(
    problem: ParticleOnlineProblem, state: ParticleOnlineState, columns: Columns, key: np.uint64
) -> tuple[ParticleOnlineState, ParticleOnlineInfo]:
    """A step for each of the columns."""
    state = copy(state)
    for part in cut(columns, _gathers_for_each(problem, state)):
        if not np.all(part.complete):
            state = widened(problem, state)
        state = _learn(problem, state, part, child(key, STEPS))
    return state, ParticleOnlineInfo(float(state.clock[2]))


def _gathers_for_each(problem: ParticleOnlineProblem, state: ParticleOnlineState) -> bool:
    """Whether activations are weighted for each feature; also where they are not gathered at all."""
    n_features, rank = problem.structure.W.shape
    return problem.structure.W.is_fixed or state.carried.rows.sources == n_features * rank


def widened(problem: ParticleOnlineProblem, state: ParticleOnlineState) -> ParticleOnlineState:
    """With weighted activations of every feature, which differ by more than ``of_features`` once a cell is missing."""
    if _gathers_for_each(problem, state):
        return state
    carried, rank = state.carried, problem.structure.rank
    wide = _carried(problem, state.law.kind, len(state.W))
    wide.table[: wide.rows.sources] = np.kron(problem.updates.of_features[:, None], carried.table[:rank])
    wide.table[wide.rows.sources :] = carried.table[rank:]
    return state._replace(carried=wide._replace(scale=carried.scale, before=carried.before))


def _learn(
    problem: ParticleOnlineProblem, state: ParticleOnlineState, columns: Columns, key: np.uint64
) -> ParticleOnlineState:
    """Step through the columns; overwrites the state's arrays."""
    updates, n_features = problem.updates._replace(sums=np.zeros(len(state.carried.table))), len(state.W)
    weights = weights_of(columns, n_features if _gathers_for_each(problem, state) else 1, n_features)
    if weights.shape[1] > 1:
        weights = weights * updates.of_features
        updates = updates._replace(of_features=np.ones(n_features))
    target = Target(counts_of(columns, problem.structure.rank), state.W, problem.base, state.law)
    steps, options = steps_of(problem.plan, state.law.kind), problem.options
    step = StepPlan(steps, SMOOTHERS[options.smoother], float(options.exponent), float(options.burn_in))
    is_swapped, impossible = learn(state.population, state.carried, target, step, updates, weights, state.clock, key)
    if impossible != WITHOUT_DATA:
        raise RunFailed(refusal("online_em", columns.number + impossible, problem.options))
    return state._replace(population=swap(state.population)) if is_swapped else state


def refusal(name: str, number: int, options: ParticleOnlineEM) -> str:
    """What is said where all particles are at zero weight."""
    do = f"start W with a positive entry for every feature, or take more than particles={options.particles}"
    if options.proposal != "auxiliary":
        do += ", or proposal='auxiliary'"
    return f"{name}: no particle can make the counts of column {number}: give the model a background, {do}"


def seen(state: ParticleOnlineState) -> int:
    """Columns so far."""
    return int(state.clock[SEEN])


def track(problem: ParticleOnlineProblem, state: ParticleOnlineState) -> Array:
    """Sums of W's columns, (K,)."""
    return state.W.sum(axis=0)


def finish(problem: ParticleOnlineProblem, state: ParticleOnlineState) -> tuple[dict[str, Array], dict[str, Array]]:
    """W and the chain's unknowns as they are now."""
    structure, values = problem.structure, dict(state.others)
    if not structure.W.is_fixed:
        values[structure.W.name] = structure.W.orient(state.W)
    for name, (row, unknown) in problem.entries.items():
        values[name] = as_variable(state.law.parameters[row], unknown)
    return values, {}


def filtered(problem: ParticleOnlineProblem, state: ParticleOnlineState) -> dict[str, Array]:
    """Of the last column's activations given all columns so far: mean and standard deviation, (K, 1) each."""
    h, weights = state.population.cloud.h, state.population.weights
    mean = h @ weights
    return {"mean": mean[:, None], "sd": np.sqrt((h - mean[:, None]) ** 2 @ weights)[:, None]}


def activations(
    problem: ParticleOnlineProblem, state: ParticleOnlineState, columns: Columns, key: np.uint64
) -> dict[str, Array]:
    """Mean and standard deviation of each column's activations given all of the block: a series under the result."""
    counts = series_of(columns, state.W, problem.updates.of_features)
    prior = _chain(problem.structure)
    is_first = columns.number == 0 and not prior.is_stationary
    law = state.law if is_first else formulas_of(prior).in_the_middle(state.law)
    target = Target(counts, state.W, problem.base, law)
    filtering = ParticleFilter(target, problem.plan, problem.options.particles, moments=False)
    n_paths = int(np.clip(MOST_NUMBERS // (problem.structure.rank * columns.n_columns), *PATHS_OF_BLOCKS))
    found = draw_paths(filtering, n_paths, child(key, ACTIVATIONS, columns.number), steps=1)
    if found.impossible != WITHOUT_DATA:
        raise RunFailed(refusal("activations", columns.number + found.impossible, problem.options))
    return {"mean": found.h.mean(axis=0), "sd": standard_deviation(found.h)}


STREAM: StreamEngine = StreamEngine(
    name="online_em",
    likelihoods=(Poisson,),
    chains=CHAINS,
    options=ParticleOnlineEM,
    is_counts=True,
    block=Columns,
    supports=supports,
    prepare=prepare,
    init=init,
    update=update,
    seen=seen,
    track=track,
    finish=finish,
    activations=activations,
    filtered=filtered,
    takes_exposures=takes_exposures,
    widened=widened,
)

"""The evidence by sequential Monte Carlo over a temperature (Del Moral, Doucet, Jasra 2006; Neal 2001).

Particles of (W, H) go from the prior, t = 0, to the posterior, t = 1, through p(W, H) p(X | W, H)^t. At each stage::

    t' : the particles' weights exp((t' - t) log p(X | W, H)) have an effective size of a given share of them
    log p(X) += log mean of these weights
    m ancestors are resampled by the weights (systematically), and all weights are equal again
    each ancestor starts a chain that leaves the target at t' as it is; all its states are the new particles

Keeping all states of the chains is "waste-free" (Dau, Chopin 2022). A chain's sweep is a Hamiltonian trajectory of
every row of H given W and of W given H, and moves along the orbit; t x is no count unless t is 0 or 1, so counts are
never allocated.

Why a temperature: paths along which counts could be allocated weigh far worse. With counts of hundreds a first column
alone leaves next to none of the particles; and where binomial thinning grows the counts, its own noise falls with a
step's length and not with its square, so that shorter steps do not cure it.

With fixed temperatures and steps exp(log p(X)) would be unbiased. Here both follow the particles, which biases it by
less than a run's error; the error to trust is the spread of independent runs. What a run can say of its own error is in
:mod:`nmf_zoo.inference.evidence.lineages`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.engine import Verdict
from nmf_zoo.inference.evidence.bridging import effective_share
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method, has_evidence
from nmf_zoo.inference.evidence.lineages import Lineages, begin, follow, standard_error
from nmf_zoo.inference.evidence.particles import (
    Pace,
    Population,
    Problem,
    adapt,
    draw_prior,
    empty_population,
    first_paces,
    mean_acceptance,
    move,
    prepare,
    require_room,
    target_at,
    variables,
)
from nmf_zoo.kernels.resampling import resample
from nmf_zoo.kernels.streams import child
from nmf_zoo.options import check_types
from nmf_zoo.structure import Array, Factorisation

PRIOR, STAGES = range(2)  # children of a run's stream
ANCESTORS, MOVES = range(2)  # children of a stage's
USUAL_DRAWS = 500
HALVINGS = 40  # of the interval that holds the next temperature


@dataclass(frozen=True, kw_only=True)
class SMC:
    """Options of sequential Monte Carlo.

    Attributes
    ----------
    particles : states of a stage
    length : states of a chain; there are particles / length ancestors
    ess : share of the particles that is left as their effective size by a step in temperature, in (0, 1)
    draws : posterior draws that each run hands back, at most ``particles``; 0 for none, None for 500 or fewer
    """

    particles: int = 1000
    length: int = 5
    ess: float = 0.8
    draws: int | None = None

    def __post_init__(self):
        check_types(self)
        if not 0.0 < self.ess < 1.0:
            raise InputError("ess", repr(self.ess), "a number between 0 and 1")
        if self.length < 1 or self.particles < 2 * self.length or self.particles % self.length:
            got = f"{self.particles!r} with length={self.length!r}"
            raise InputError("particles", got, "a multiple of length, twice of it at the least")
        if not 0 <= self.kept <= self.particles:
            raise InputError("draws", repr(self.draws), f"0 to {self.particles}, the particles")

    @property
    def kept(self) -> int:
        """How many draws each run hands back."""
        return min(USUAL_DRAWS, self.particles) if self.draws is None else self.draws


class Stage(NamedTuple):
    """What is reported of a stage: the temperature it reached, the effective share on the way, acceptance there."""

    temperature: float
    ess: float
    accept_W: float
    accept_H: float


@dataclass
class State:
    """A run under way.

    Attributes
    ----------
    population, spare : the particles, and room for the next ones
    lineages : from whom the particles descend; None before the first stage
    paces : of W's and H's trajectories
    temperature, log_evidence : reached so far
    stages : what was reported
    """

    population: Population
    spare: Population
    lineages: Lineages | None
    paces: tuple[Pace, Pace]
    temperature: float
    log_evidence: float
    stages: list[Stage] = field(default_factory=list)


def supports(structure: Factorisation, options: SMC) -> Verdict:
    """Poisson counts, and factors with gamma priors of known hyperparameters; one factor may be known."""
    return has_evidence(structure)


def init(problem: Problem, options: SMC, job: Job) -> State:
    """Particles from the prior."""
    population, spare = (empty_population(problem, options.particles) for _ in range(2))
    draw_prior(problem, population, job.workers, child(job.key, PRIOR))
    if not np.any(np.isfinite(population.log_likelihood)):
        raise RunFailed("smc: counts lie where W H is 0 whatever the unknown factor is, so that log p(X) is -inf")
    return State(population, spare, None, first_paces(problem), 0.0, problem.constant)


def step(problem: Problem, options: SMC, state: State, job: Job) -> None:
    """One stage: the next temperature, its weights, ancestors by these, and chains from them."""
    key, population = child(job.key, STAGES, len(state.stages)), state.population
    rise, share = next_rise(population.log_likelihood, options.ess, 1.0 - state.temperature)
    log_weights = rise * population.log_likelihood
    ancestors = np.empty(options.particles // options.length, np.int64)
    resample(ancestors, log_weights, child(key, ANCESTORS))
    state.log_evidence += log_mean_exp(log_weights)
    state.temperature = 1.0 if rise == 1.0 - state.temperature else state.temperature + rise
    weights = np.exp(log_weights - log_mean_exp(log_weights))
    if state.lineages is None:
        state.lineages = begin(weights, len(ancestors))
    else:
        state.lineages = follow(state.lineages, weights, ancestors)
    target = target_at(problem, state.temperature)
    moved = move(problem, target, state.paces, (population, state.spare), ancestors, job.workers, child(key, MOVES))
    adapt(problem, state.paces, moved)
    state.population, state.spare = state.spare, population
    state.stages.append(Stage(state.temperature, share, *mean_acceptance(problem, moved)))


def log_mean_exp(log_weights: Array) -> float:
    """log of the mean weight."""
    peak = float(np.max(log_weights))
    return peak + float(np.log(np.mean(np.exp(log_weights - peak))))


def next_rise(log_likelihood: Array, share: float, most: float) -> tuple[float, float]:
    """The rise in temperature that leaves this effective share, or ``most`` if that leaves more; and what it leaves."""
    low, high = most, most
    while effective_share(low * log_likelihood) < share and low > np.finfo(np.float64).tiny:
        low, high = low / 4.0, low
    for _ in range(HALVINGS if low < high else 0):
        middle = (low + high) / 2.0
        low, high = (middle, high) if effective_share(middle * log_likelihood) >= share else (low, middle)
    return low, effective_share(low * log_likelihood)


def one_run(problem: Problem, options: SMC, job: Job) -> State | None:
    """From the prior to the posterior; None when Ctrl-C came first."""
    state = init(problem, options, job)
    while state.temperature < 1.0:
        if job.is_stopped():
            return None
        step(problem, options, state, job)
        job.report(_percent(state.stages), f"temperature {state.temperature:.3g}", last=state.temperature == 1.0)
    return state


def _percent(stages: list[Stage]) -> int:
    """How far a run is: stages come at about equal distances in the logarithm of the temperature."""
    first, last = stages[0].temperature, stages[-1].temperature
    return 100 if last == 1.0 else int(100 * (1.0 - math.log(last) / math.log(first)))


def estimate(structure: Factorisation, options: SMC, run: EvidenceRun) -> Estimate:
    """One run for each chain; those that Ctrl-C cut short are left out."""
    require_room(structure, options.particles, max(1, min(run.chains, run.cores)))
    problem = prepare(structure)

    def one(job: Job) -> tuple[State, dict[str, Array]] | None:
        state = one_run(problem, options, job)
        return None if state is None else (state, _draws(problem, options, state))

    finished = [part for part in run.each(one, total=100) if part is not None]
    if not finished:
        raise RunFailed("smc: stopped before a run had ended, and one that has not ended says nothing of the evidence")
    states, draws = [part[0] for part in finished], [part[1] for part in finished]
    return Estimate(
        log_evidence=np.array([state.log_evidence for state in states]),
        standard_error=np.array([standard_error(state.lineages) for state in states if state.lineages is not None]),
        draws={name: np.stack([one[name] for one in draws]) for name in draws[0]} if options.kept else None,
        statistics=_statistics([state.stages for state in states]),
        dims=dict.fromkeys(Stage._fields, ("stage",)),
    )


def _draws(problem: Problem, options: SMC, state: State) -> dict[str, Array]:
    """Particles of the last stage, evenly over its chains; room for the others is given back."""
    which = np.arange(options.kept) * options.particles // max(options.kept, 1)
    draws = variables(problem, state.population, which)
    state.population = state.spare = Population(*(np.empty(0) for _ in Population._fields))
    return draws


def _statistics(runs: list[list[Stage]]) -> dict[str, Array]:
    """Each field of the stages as (runs, stages), NaN after a run's last one."""
    table = np.full((len(runs), max(map(len, runs)), len(Stage._fields)), np.nan)
    for row, stages in zip(table, runs, strict=True):
        row[: len(stages)] = stages
    return {name: table[:, :, column] for column, name in enumerate(Stage._fields)}


METHOD = Method(
    name="smc",
    options=SMC,
    supports=supports,
    estimate=estimate,
    is_unbiased=True,
)

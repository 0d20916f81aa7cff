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
less than a run's error; the error to trust is the spread of independent runs. What a run can say of its own error is
below.

Rates and precisions with gamma priors, means and variances with inverse-gamma priors may be unknown: then a particle
has values of its own, drawn from the hyperprior at first and from their law given W and H after each sweep of a chain,
whatever the temperature is.

Of negative binomial counts a particle has an inverse dispersion of its own, too, drawn from its prior at first and by
slices before each sweep of a chain (:mod:`nmf_zoo.inference.overdispersed.particles`).

Components that are known in W or H are the same in all particles, and those that are known in neither move along the
orbit.

The work on a population is cut into fixed chunks of chains, each with streams of its own, so that nothing depends on
the threads.

**Lineages.** A run tells its own error from the lineages of its particles. Sequential Monte Carlo sums log mean
weights, so to first order its error is the sum over stages t and particles i of (g_ti - 1) / n, with g_t the weights
over their mean. Particles that descend from one particle of the first stage are dependent, others are taken for
independent::

    variance of log p(X) = var(g_0) / n + sum_e ( sum_t sum_{i descends from e} (g_ti - 1) / n )^2

with e the chains that the first stage starts (after Chan, Lai 2013; Lee, Whiteley 2018, whose estimate is of the final
weights and would count the resampling of few ancestors from many particles as an error).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.counts.sweeps import blocks_of, make_side_workspace, make_sides, weight_arrays
from nmf_zoo.inference.evidence.bridging import effective_share
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method, has_evidence
from nmf_zoo.inference.overdispersed.particles import (
    ParticleDispersion,
    TemperedData,
    apart_dispersed,
    has_dispersion,
    heat_dispersed,
    lay_out_dispersed,
)
from nmf_zoo.inference.shared.conjugate import Conjugate, conjugates, draw_given_cells, draw_hyperpriors, rates_of
from nmf_zoo.inference.shared.factor_view import PriorCells, Side, prior_cells, two_sides
from nmf_zoo.inference.shared.layout import compress, likelihood_constant, weigh
from nmf_zoo.inference.shared.start import start_hyperparameters
from nmf_zoo.kernels.counts.joint import WeightArrays
from nmf_zoo.kernels.evidence.tempering import (
    CountLaw,
    Pace,
    SideScratch,
    TemperedPopulation,
    TemperedTarget,
    TemperingWorkspace,
    draw_from_prior,
    move_chains,
)
from nmf_zoo.kernels.hmc.adaptation import CountSide, to_blocks
from nmf_zoo.kernels.hmc.poisson_rows import RowCounts, Stride
from nmf_zoo.kernels.overdispersed.rows import DispersedRows
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.kernels.random.resampling import resample
from nmf_zoo.options import check_share, check_types, names_checked
from nmf_zoo.runtime.engine import Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    Array,
    Factor,
    Factorisation,
    GammaPrior,
    HalfNormalPrior,
    NegativeBinomial,
    Poisson,
    spans,
)

CHAINS = 32  # of a chunk
DISPERSION = 1  # child of the prior's stream
FIRST_STEP, PATH, SHORTEST, LONGEST = 0.5, 3.0, 3, 32  # of trajectories: length * step is about PATH
TARGET, GAIN = 0.85, 1.0  # acceptance, and change of log step per acceptance amiss


@dataclass(frozen=True)
class SMCProblem:
    """What all runs share.

    ``law`` : of the cells of X given their means, as the kernels take it; ``alpha`` : its own parameter, or none;
    ``priors`` : at the middle of what is unknown, of known cells any law; ``curves`` : precisions of half-normal
    priors, or size 0; ``free`` : the components of W and of H that are not known; ``constant`` : what the
    log-likelihood holds beside the factors; ``conjugates`` : hyperparameters that are integrated over
    """

    structure: Factorisation
    law: Any
    weights: WeightArrays
    priors: PriorCells
    by_component: tuple[Array, ...]
    curves: tuple[Array, Array]
    free: tuple[Array, Array]
    sides: tuple[CountSide, CountSide]
    constant: float
    conjugates: dict[str, Conjugate]
    alpha: ParticleDispersion | None = None


class Rates(NamedTuple):
    """The priors' rates, or precisions, of W (n, F, K) and H (n, N, K); of a factor without a prior anything."""

    W: Array
    H: Array


class Moved(NamedTuple):
    """Acceptance of W's and H's rows, (blocks, width) each; 0 where a factor is known."""

    W: Array
    H: Array


def prepare(structure: Factorisation) -> SMCProblem:
    """Lay out the data and the priors."""
    middle = start_hyperparameters(structure, {})
    cells, (of_W, of_H) = prior_cells(structure, middle), two_sides(structure)
    cells = cells._replace(rate_w=_with_law(of_W, cells.rate_w), rate_h=_with_law(of_H, cells.rate_h))
    priors = PriorCells(*(np.array(own, dtype=np.float64, order="C") for own in cells))
    turned = tuple(np.ascontiguousarray(own.T) for own in priors[:4])
    data = LAYOUTS[type(structure.likelihood)](structure, priors)
    return SMCProblem(
        structure=structure,
        law=data.law,
        weights=data.weights,
        priors=priors,
        by_component=turned,
        curves=(_curve(of_W, priors.rate_w, middle), _curve(of_H, priors.rate_h, middle)),
        free=(of_W.are_free, of_H.are_free),
        sides=data.sides,
        constant=data.constant,
        conjugates=conjugates(structure),
        alpha=data.alpha,
    )


def _lay_out_counts(structure: Factorisation, priors: PriorCells) -> TemperedData:
    layout = compress(structure)
    sides, constant = make_sides(structure, layout, priors), likelihood_constant(structure)
    return TemperedData(CountLaw(layout), weight_arrays(weigh(structure)), sides, constant, None)


LAYOUTS: dict[type, Callable[[Factorisation, PriorCells], TemperedData]] = {
    Poisson: _lay_out_counts,
    NegativeBinomial: lay_out_dispersed,
}


def _with_law(side: Side, rate: Array) -> Array:
    """With a rate where a component is known: of its law, which has none, no kernel could draw."""
    return rate if side.factor.known is None else np.where(side.are_free, rate, 1.0)


def _curve(side: Side, rate: Array, values: Mapping[str, Array]) -> Array:
    """Precisions of a half-normal prior, (rows, K) as the rates, 0 of known components; size 0 of another prior."""
    if not side.is_half_normal:
        return np.empty((0, 0))
    whole = np.zeros_like(rate)
    whole[:, side.free] = side.curve(values)
    return whole


def first_paces(problem: SMCProblem) -> tuple[Pace, Pace]:
    """Of W and H, before anything is known."""
    W, H = (_first_pace(side) for side in problem.sides)
    return W, H


def _first_pace(side: CountSide) -> Pace:
    blocks, _, width = side.prior_rate.shape
    return Pace(np.full((blocks, width), FIRST_STEP), np.array([math.ceil(PATH / FIRST_STEP)]))


def target_at(problem: SMCProblem, temperature: float) -> TemperedTarget:
    """The target at a temperature."""
    structure = problem.structure
    W, H = (_heated(side, temperature) for side in problem.sides)
    movable = np.flatnonzero(structure.free_in_both)
    return TemperedTarget(
        temperature=np.array([temperature]),
        draws=(not structure.W.is_fixed, not structure.H.is_fixed),
        free=problem.free,
        movable=np.array([movable[0], movable[-1] + 1] if movable.size else [0, 0]),
        curves=problem.curves,
        law=problem.law,
        weights=problem.weights,
        priors=problem.priors,
        by_component=problem.by_component,
        sides=(W, H),
    )


def _heated(side: CountSide, temperature: float) -> CountSide:
    return side._replace(data=HEATED[type(side.data)](side.data, temperature))


def _heat_counts(data: RowCounts, temperature: float) -> RowCounts:
    layout = data.layout._replace(values=temperature * data.layout.values)
    return data._replace(grid=temperature * data.grid, layout=layout)


HEATED: dict[type, Callable[..., Any]] = {RowCounts: _heat_counts, DispersedRows: heat_dispersed}
APART: dict[type, Callable[[Any], Any]] = {RowCounts: lambda data: data, DispersedRows: apart_dispersed}


def empty_population(problem: SMCProblem, n_particles: int) -> TemperedPopulation:
    """Memory for particles; what is known stands in all of them, beside what is not never 0."""
    (n_features, n_samples), rank = problem.structure.shape, problem.structure.rank
    W, Ht = np.empty((n_particles, n_features, rank)), np.empty((n_particles, n_samples, rank))
    for side, array in zip(two_sides(problem.structure), (W, Ht), strict=True):
        if side.is_fixed:
            array[:] = side.turn(side.factor.prior.value)
        elif side.factor.known is not None:
            array[:] = np.maximum(side.turn(side.factor.known.values), TINY)
    alpha = np.empty((n_particles, 0)) if problem.alpha is None else problem.alpha.known_ones(n_particles)
    return TemperedPopulation(W, Ht, np.empty(n_particles), alpha)


def require_memory_of_particles(structure: Factorisation, n_particles: int, at_once: int) -> None:
    """Refuse more particles than memory holds, two populations for each of the runs ``at_once``."""
    needed = 2 * 8.0 * at_once * n_particles * (sum(structure.shape) * structure.rank + 1)
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    known = hasattr(os, "sysconf") and all(name in os.sysconf_names for name in names)
    there = float(math.prod(map(os.sysconf, names))) if known else np.inf
    if needed > 0.8 * there:
        got = f"{n_particles} for {at_once} runs at once, {needed / 2**30:.1f} GiB"
        raise InputError("particles", got, f"less than 80% of the memory, {there / 2**30:.1f} GiB", "take fewer")


def draw_prior(
    problem: SMCProblem, population: TemperedPopulation, workers: Workers, key: np.uint64
) -> dict[str, Array]:
    """Overwrite a population with draws from the prior; those of the hyperparameters."""
    target, paces, n = target_at(problem, 0.0), first_paces(problem), len(population.W)
    values = draw_hyperpriors(problem.conjugates, n, generator_of(child(key, n)))
    rates = rates_at(problem, values, n)
    if problem.alpha is not None:
        problem.alpha.draw_prior(population.alpha, generator_of(child(key, n, DISPERSION)))

    def chunk(first: int, last: int) -> None:
        scratch = make_scratch(problem, paces)
        for own, start, stop in with_rates(target, rates, first, last):
            draw_from_prior(own, population, scratch, start, stop, key)

    workers.map(chunk, *zip(*spans(n, CHAINS), strict=True))
    return values


def rates_at(problem: SMCProblem, values: Mapping[str, Array], n: int) -> Rates | None:
    """The priors' rates or precisions for each of n particles or chains; None where they are the same for all."""
    if not problem.conjugates:
        return None
    W, H = (_rates_of_side(problem, which, values, n) for which in (0, 1))
    return Rates(W, H)


def _rates_of_side(problem: SMCProblem, which: int, values: Mapping[str, Array], n: int) -> Array:
    side = two_sides(problem.structure)[which]
    if not has_law(side):
        return np.zeros((n, 1, 1))
    own = side.turn(rates_of(side.factor, values, n))
    if side.factor.known is None:
        return own
    middle = problem.curves[which] if side.is_half_normal else (problem.priors.rate_w, problem.priors.rate_h)[which]
    whole = np.repeat(middle[None], n, axis=0)
    whole[:, :, side.free] = own
    return whole


def has_law(side: Side) -> bool:
    """Whether a factor has a prior that particles are drawn from."""
    return side.is_gamma or side.is_half_normal


def with_rates(
    target: TemperedTarget, rates: Rates | None, first: int, last: int
) -> Iterator[tuple[TemperedTarget, int, int]]:
    """(a target, from which one, to which it holds): that of all, or one after the other with its own rates."""
    if rates is None:
        yield target, first, last
        return
    W, H = (side._replace(prior_rate=side.prior_rate.copy()) for side in target.sides)
    of_W, of_H = (curve.copy() for curve in target.curves)
    own = target._replace(
        curves=(of_W, of_H),
        priors=target.priors._replace(rate_w=target.priors.rate_w.copy(), rate_h=target.priors.rate_h.copy()),
        by_component=tuple(array.copy() for array in target.by_component),
        sides=(W, H),
    )
    by_row = own.priors.rate_w, own.priors.rate_h
    for i in range(first, last):
        for which, rate in enumerate(rates):
            if own.curves[which].size:
                own.curves[which][:] = rate[i]
                continue
            by_row[which][:] = rate[i]
            own.by_component[2 * which + 1][:] = by_row[which].T
            to_blocks(own.sides[which].prior_rate, by_row[which])
        yield own, i, i + 1


def apart(target: TemperedTarget) -> TemperedTarget:
    """With what chains write of their own, so that chunks are apart."""
    W, H = (side._replace(data=APART[type(side.data)](side.data)) for side in target.sides)
    return target._replace(sides=(W, H))


def move(
    problem: SMCProblem,
    target: TemperedTarget,
    paces: tuple[Pace, Pace],
    populations: tuple[TemperedPopulation, TemperedPopulation],
    ancestors: Array,
    workers: Workers,
    key: np.uint64,
) -> Moved:
    """Chains from the ancestors in the first population fill the second; the mean acceptance of every row."""
    before, after = populations

    def chunk(first: int, last: int) -> tuple[Array, Array]:
        scratch = make_scratch(problem, paces)
        move_chains(apart(target), before, ancestors, after, scratch, np.array([first, last]), key)
        return scratch.sides[0].accepted, scratch.sides[1].accepted

    parts = workers.map(chunk, *zip(*spans(len(ancestors), CHAINS), strict=True))
    W, H = (sum(part[side] for part in parts) / len(after.W) for side in (0, 1))
    return Moved(W, H)


def move_with_hyperparameters(
    problem: SMCProblem,
    target: TemperedTarget,
    paces: tuple[Pace, Pace],
    populations: tuple[TemperedPopulation, TemperedPopulation],
    values: Mapping[str, Array],
    ancestors: Array,
    workers: Workers,
    key: np.uint64,
) -> tuple[Moved, dict[str, Array]]:
    """The same where particles have hyperparameters: a sweep of all chains, then these given W and H, and so on.

    Returns the acceptance and the values that belong to the second population.
    """
    before, after = populations
    n_chains, n = len(ancestors), len(after.W)
    now = TemperedPopulation(*(array[ancestors] for array in before))
    then = empty_population(problem, n_chains)
    own = {name: value[ancestors] for name, value in values.items()}
    moved = {name: np.empty_like(value) for name, value in values.items()}
    all_chains = np.arange(n_chains)
    accepted = Moved(*(np.zeros((side.prior_rate.shape[0], side.prior_rate.shape[2])) for side in problem.sides))
    for sweep in range(n // n_chains):
        sweep_key, rates = child(key, sweep), rates_at(problem, own, n_chains)

        def chunk(first: int, last: int, now=now, then=then, rates=rates, key=sweep_key) -> tuple[Array, Array]:
            scratch = make_scratch(problem, paces)
            for target_of_one, start, stop in with_rates(apart(target), rates, first, last):
                move_chains(target_of_one, now, all_chains, then, scratch, np.array([start, stop]), key)
            return scratch.sides[0].accepted, scratch.sides[1].accepted

        parts = workers.map(chunk, *zip(*spans(n_chains, CHAINS), strict=True))
        for total, *of_chunks in zip(accepted, *parts, strict=True):
            total += sum(of_chunks) / n
        own = draw_given_cells(problem.conjugates, _cells(problem, then), generator_of(child(sweep_key, n)))
        for array, new in zip(after, then, strict=True):
            array[sweep :: n // n_chains] = new
        for name, value in own.items():
            moved[name][sweep :: n // n_chains] = value
        now, then = then, now
    return accepted, moved


def _cells(problem: SMCProblem, population: TemperedPopulation) -> list[tuple[Factor, Array]]:
    """Factors with priors, and the cells that have them in every particle."""
    sides = zip(two_sides(problem.structure), (population.W, population.Ht), strict=True)
    return [(side.factor, side.turn(array[:, :, side.free])) for side, array in sides if has_law(side)]


def make_scratch(problem: SMCProblem, paces: tuple[Pace, Pace]) -> TemperingWorkspace:
    (n_features, n_samples), rank = problem.structure.shape, problem.structure.rank
    shapes = problem.priors.shape_w, problem.priors.shape_h
    each = zip(problem.sides, shapes, paces, problem.curves, problem.free, strict=True)
    W, H = (_side_scratch(*arguments) for arguments in each)
    return TemperingWorkspace(
        (W, H),
        np.empty((n_features, rank)),
        np.empty((n_samples, rank)),
        np.empty(0 if problem.alpha is None else problem.alpha.n_entries),
        np.empty((rank, n_features)),
        np.empty((rank, n_samples)),
        np.empty((5, rank)),
        np.empty(n_means(problem)),
    )


def n_means(problem: SMCProblem) -> int:
    """Of the cells whose means a likelihood needs at once."""
    return len(problem.law.layout.values) if isinstance(problem.law, CountLaw) else problem.law.x.size


def _side_scratch(side: CountSide, shape: Array, pace: Pace, curve: Array, free: Array) -> SideScratch:
    workspace = make_side_workspace(side, shape)
    blocks, rank, width = side.prior_rate.shape
    stride = Stride(np.ones((blocks, rank, width)), np.zeros((blocks, rank, rank, width)), pace.step, pace.length)
    rows = workspace.rows._replace(free=free)
    if curve.size:
        rows = rows._replace(curve=blocks_of(curve, width, 1.0))
    return SideScratch(rows, stride, workspace.block, np.empty(shape.shape), np.zeros((blocks, width)))


def adapt(problem: SMCProblem, paces: tuple[Pace, Pace], moved: Moved) -> None:
    """Every row's step by its acceptance in the population, and a length that suits three rows in four; in place."""
    for side, pace, accepted in zip(problem.sides, paces, moved, strict=True):
        pace.step[:] = np.minimum(pace.step * np.exp(GAIN * (accepted - TARGET)), PATH / SHORTEST)
        quarter = max(float(np.quantile(pace.step.ravel()[: side.n_rows], 0.25)), PATH / LONGEST)
        pace.length[0] = max(math.ceil(PATH / quarter), SHORTEST)


def mean_acceptance(problem: SMCProblem, moved: Moved) -> tuple[float, float]:
    """Of W's and H's rows; NaN where a factor is known."""
    factors = problem.structure.W, problem.structure.H
    W, H = (
        np.nan if factor.is_fixed else float(np.mean(accepted.ravel()[: side.n_rows]))
        for factor, side, accepted in zip(factors, problem.sides, moved, strict=True)
    )
    return W, H


def variables(problem: SMCProblem, population: TemperedPopulation, which: Array) -> dict[str, Array]:
    """The model's variables at some of the particles."""
    found: dict[str, Array] = {}
    for side, array in zip(two_sides(problem.structure), (population.W[which], population.Ht[which]), strict=True):
        whole, known = np.array(side.turn(array)), side.factor.known
        found |= side.factor.variables(whole if known is None else known.whole(known.part(whole)))
    return found if problem.alpha is None else found | problem.alpha.variables(population.alpha[which])


# -- the sampler -----------------------------------------------------------------------------------------------------


PRIOR, STAGES = range(2)  # children of a run's stream
ANCESTORS, MOVES = range(2)  # children of a stage's
USUAL_DRAWS = 500
MOST_STAGES = 20_000  # steps in temperature shrink as counts grow: beyond, a run has no end in sight
HALVINGS = 40  # of the interval that holds the next temperature


@names_checked
@dataclass(frozen=True, kw_only=True)
class SMC:
    """Options of sequential Monte Carlo: of the evidence by it, and of draws from the posterior.

    Attributes
    ----------
    particles : states of a stage
    length : states of a chain; there are particles / length ancestors
    ess : share of the particles that is left as their effective size by a step in temperature, in (0, 1)
    draws : posterior draws that each run of the evidence hands back, at most ``particles``; 0 for none, None for 500 or
        fewer. :func:`~nmf_zoo.sample` has an argument for it, and refuses this one
    """

    particles: int = 1000
    length: int = 5
    ess: float = 0.8
    draws: int | None = None

    def __post_init__(self):
        check_types(self)
        check_share(self, "ess")
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
    population, spare : the particles, and scratch for the next ones
    lineages : from whom the particles descend; None before the first stage
    paces : of W's and H's trajectories
    temperature, log_evidence : reached so far
    values : hyperparameters of the particles, by name (particles, *variable)
    stages : what was reported
    """

    population: TemperedPopulation
    spare: TemperedPopulation
    lineages: Lineages | None
    paces: tuple[Pace, Pace]
    temperature: float
    log_evidence: float
    values: dict[str, Array] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)


def supports(structure: Factorisation, options: SMC) -> Verdict:
    """Counts, gamma or half-normal factors, one maybe known; hyperparameters known or with conjugate priors.

    Of overdispersed counts gamma factors, and a dispersion that is known or has any proper prior.
    """
    return OF_LAWS[type(structure.likelihood)](structure)


OF_LAWS: dict[type, Callable[[Factorisation], Verdict]] = {
    Poisson: lambda structure: has_evidence(structure, GammaPrior, HalfNormalPrior, over_conjugates=True),
    NegativeBinomial: lambda structure: has_dispersion(structure) and has_evidence(structure, over_conjugates=True),
}


def init(problem: SMCProblem, options: SMC, job: Job) -> State:
    """Particles from the prior."""
    population, spare = (empty_population(problem, options.particles) for _ in range(2))
    values = draw_prior(problem, population, job.workers, child(job.key, PRIOR))
    if not np.any(np.isfinite(population.log_likelihood)):
        raise RunFailed("smc: counts lie where W H is 0 whatever the unknown factor is, so that log p(X) is -inf")
    return State(population, spare, None, first_paces(problem), 0.0, problem.constant, values)


def step(problem: SMCProblem, options: SMC, state: State, job: Job) -> None:
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
    how = problem, target, state.paces, (population, state.spare)
    if problem.conjugates:
        own = state.values, ancestors, job.workers, child(key, MOVES)
        moved, state.values = move_with_hyperparameters(*how, *own)
    else:
        moved = move(*how, ancestors, job.workers, child(key, MOVES))
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


def one_run(problem: SMCProblem, options: SMC, job: Job) -> State | None:
    """From the prior to the posterior; None when Ctrl-C came first. RunFailed after `MOST_STAGES`."""
    state = init(problem, options, job)
    while state.temperature < 1.0:
        if job.is_stopped():
            return None
        if len(state.stages) == MOST_STAGES:
            reached = f"temperature {state.temperature:.2g} after {MOST_STAGES:,} stages"
            raise RunFailed(f"smc: {reached}: the counts are too large for it; use another method or engine")
        step(problem, options, state, job)
        job.report(_percent(state.stages), f"temperature {state.temperature:.3g}", last=state.temperature == 1.0)
    return state


def _percent(stages: list[Stage]) -> int:
    """How far a run is: stages come at about equal distances in the logarithm of the temperature."""
    first, last = stages[0].temperature, stages[-1].temperature
    return 100 if last == 1.0 else int(100 * (1.0 - math.log(last) / math.log(first)))


def estimate(structure: Factorisation, options: SMC, run: EvidenceRun) -> Estimate:
    """One run for each chain; those that Ctrl-C cut short are left out."""
    require_memory_of_particles(structure, options.particles, max(1, min(run.chains, run.cores)))
    problem = prepare(structure)

    def one(job: Job) -> State | None:
        state = one_run(problem, options, job)
        return None if state is None else _kept(options, state)

    states = [state for state in run.each(one, total=100) if state is not None]
    if not states:
        raise RunFailed("smc: stopped before a run had ended, and one that has not ended has not come to the posterior")
    # Made here: another process would send them in another order in memory, and sums over them end in other digits.
    draws = [_draws(problem, state) for state in states]
    return Estimate(
        log_evidence=np.array([state.log_evidence for state in states]),
        standard_error=np.array([standard_error(state.lineages) for state in states if state.lineages is not None]),
        draws={name: np.stack([one[name] for one in draws]) for name in draws[0]} if options.kept else None,
        statistics=_statistics([state.stages for state in states]),
        dims=dict.fromkeys(Stage._fields, ("stage",)),
    )


def _kept(options: SMC, state: State) -> State:
    """The run with particles of the last stage alone, evenly over its chains; memory of the others is given back."""
    which = np.arange(options.kept) * options.particles // max(options.kept, 1)
    population = TemperedPopulation(*(own[which] for own in state.population))
    values = {name: own[which] for name, own in state.values.items()}
    return replace(state, population=population, spare=population, values=values)


def _draws(problem: SMCProblem, state: State) -> dict[str, Array]:
    """The model's variables at the particles."""
    return variables(problem, state.population, np.arange(len(state.population.W))) | state.values


def _statistics(runs: list[list[Stage]]) -> dict[str, Array]:
    """Each field of the stages as (runs, stages), NaN after a run's last one."""
    table = np.full((len(runs), max(map(len, runs)), len(Stage._fields)), np.nan)
    for row, stages in zip(table, runs, strict=True):
        row[: len(stages)] = stages
    return {name: table[:, :, column] for column, name in enumerate(Stage._fields)}


METHOD: Method = Method(
    name="smc",
    likelihoods=(Poisson, NegativeBinomial),
    takes_known=True,
    options=SMC,
    supports=supports,
    estimate=estimate,
    is_unbiased=True,
)


# -- lineages --------------------------------------------------------------------------------------------------------


class Lineages(NamedTuple):
    """first : variance from the first stage; founders (particles,) and sums (chains,), by founder, of what follows."""

    first: float
    founders: Array
    sums: Array


def begin(weights: Array, n_chains: int) -> Lineages:
    """After the first stage, of independent particles with these weights (n,) of mean 1."""
    founders = np.repeat(np.arange(n_chains), len(weights) // n_chains)
    return Lineages(float(np.var(weights, ddof=1)) / len(weights), founders, np.zeros(n_chains))


def follow(lineages: Lineages, weights: Array, ancestors: Array) -> Lineages:
    """After a stage in which ``ancestors`` (chains,) were drawn of particles with these weights (n,) of mean 1."""
    n, chains = len(weights), len(ancestors)
    shares = np.bincount(lineages.founders, weights - 1.0, minlength=chains) / n
    founders = np.repeat(lineages.founders[ancestors], n // chains)
    return lineages._replace(founders=founders, sums=lineages.sums + shares)


def standard_error(lineages: Lineages) -> float:
    """Of log p(X); NaN where all particles descend from one, so that none are left to compare."""
    if np.ptp(lineages.founders) == 0:
        return np.nan
    return float(np.sqrt(lineages.first + np.sum(lineages.sums**2)))

"""The variational bound as a judge of ranks: the bound, and an estimate of what it lacks to the evidence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from scipy.special import gammaln

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.evidence.bound import engine_of
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method
from nmf_zoo.inference.overdispersed.vb import DispersedVBProblem
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.hyperparameters import LARGE
from nmf_zoo.kernels.counts import small_bound
from nmf_zoo.kernels.counts.small_bound import BOUND, PUSH, PUSH_BOUND, RESIDUAL, DenseTable, FactorBound, Led
from nmf_zoo.kernels.numerics.momentum import FASTEST, GENTLE
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import check_least, check_types, names_checked
from nmf_zoo.runtime.engine import START, Verdict
from nmf_zoo.runtime.run_one import Iterations, run_one
from nmf_zoo.search.optima import Point
from nmf_zoo.search.options import Search
from nmf_zoo.search.run import Local, point_of_solution, search_within
from nmf_zoo.structure import Array, Dense, Factorisation, NegativeBinomial, Poisson
from nmf_zoo.workbench.bound_correction import VariationalPosterior, shortfall, shortfall_error


@names_checked
@dataclass(frozen=True, kw_only=True)
class RankBound:
    """Options of the bound where ranks are compared.

    Attributes
    ----------
    vb : options of variational Bayes
    max_iter, tol : of each restart
    corrected : add an estimate of what the bound lacks, where that can be had for every rank. See
        :mod:`nmf_zoo.workbench.bound_correction`; False compares bounds as they are
    """

    vb: VB = field(default_factory=VB)
    max_iter: int = 10_000
    tol: float = 1e-6
    corrected: bool = True

    def __post_init__(self):
        check_types(self)
        if not isinstance(self.vb, VB):
            raise InputError("vb", repr(self.vb), "options of variational Bayes, e.g. nz.VB()")
        check_least(self, max_iter=1, tol=0)


def supports(structure: Factorisation, options: RankBound) -> Verdict:
    return engine_of(structure).supports(structure, options.vb)


def estimate(structure: Factorisation, options: RankBound, run: EvidenceRun) -> Estimate:
    """The bound of every chain, or of every fit of a search; ``shortfall``, its error and ``status`` beside it."""
    if run.search is None:
        found = run.each(lambda job: climb(structure, options, job), total=options.max_iter)
    else:
        (found,) = run.each(lambda job: search_bounds(structure, options, run.search, job), total=options.max_iter)
    bounds, shortfalls, errors, statuses = (np.array(column) for column in zip(*found, strict=True))
    return Estimate(
        log_evidence=bounds,
        standard_error=np.zeros(len(bounds)),
        statistics={"shortfall": shortfalls, "shortfall_error": errors, "status": statuses},
    )


Problem = vb.VBProblem | DispersedVBProblem
Row = tuple[float, float, float, str]  # bound, shortfall, its error, status


def climb(structure: Factorisation, options: RankBound, job: Job) -> Row:
    """One restart."""
    problem = engine_of(structure).prepare(structure, options.vb, job.workers)
    return row_of(problem, options, climb_from(problem, options, {}, job))


def search_bounds(structure: Factorisation, options: RankBound, search: Search, job: Job) -> list[Row]:
    """All fits of a search, in the order in which they were made; the first is what :func:`climb` finds."""
    engine, rows = engine_of(structure), []
    problem = engine.prepare(structure, options.vb, job.workers)

    def fit(start: Point, max_iter: int, own: Job) -> Local:
        found = climb_from(problem, replace(options, max_iter=max_iter), start, own)
        rows.append(row_of(problem, options, found))
        return Local(found.bound, found.iterations, point_of(problem, found, own.key), None)

    search_within(job, structure, search, options.max_iter, fit, engine.maximise)
    return rows


class Climbed(NamedTuple):
    """Where a climb ended: q, its bound and residual, after how many iterations; the state if the engine made them."""

    q: VariationalPosterior
    bound: float
    residual: float
    iterations: int
    state: Any


def climb_from(problem: Problem, options: RankBound, start: Point, job: Job) -> Climbed:
    """A fit, by a compiled loop where the table is small."""
    state = engine_of(problem.structure).init(problem, child(job.key, START), start)
    found = climb_small(problem, state, options.max_iter, options.tol, job) if is_small(problem) else None
    return climb_by_steps(problem, state, options, job) if found is None else Climbed(*found, None)


def climb_by_steps(problem: Problem, state: Any, options: RankBound, job: Job) -> Climbed:
    """By the engine's own iterations, one by one."""
    length = Iterations(max_iter=options.max_iter, tol=options.tol)
    for at in run_one(engine_of(problem.structure), problem, state, length, job):
        state, info, done = at.state, at.step.info, at.step.number
        job.report(done, f"bound {info['objective']:.6g}")
    return Climbed(posterior_of(state), state.bound, float(info["residual"]), done, state)


def row_of(problem: Problem, options: RankBound, found: Climbed) -> Row:
    has_shortfall = options.corrected and isinstance(problem, vb.VBProblem)
    missing = shortfall(problem.structure, found.q, {}) if has_shortfall else np.nan
    status = "converged" if found.residual < options.tol else "max_iter"
    return found.bound, missing, shortfall_error(found.q, missing), status


def point_of(problem: Problem, found: Climbed, key: np.uint64) -> Point:
    """Values of the model's variables where a climb ended."""
    structure = problem.structure
    if found.state is not None:
        return point_of_solution(engine_of(structure), structure, problem, found.state, key)
    W, H = structure.W, structure.H
    return {W.name: W.orient(found.q.mean_w), H.name: H.orient(found.q.mean_h.T)}


def posterior_of(state: Any) -> VariationalPosterior:
    """What the shortfall needs of a state of variational Bayes."""
    shapes: list[Array | None] = [q.shape for q in (state.W, state.H)]
    return VariationalPosterior(state.W.mean, state.H.mean, *shapes)


# -- small dense tables, by one compiled loop (nmf_zoo.kernels.counts.small_bound) -----------------------------------


MOST_WORK = 1 << 15  # cells of X times components: above, BLAS is faster
BLOCK = 250  # iterations of one call: an interruption waits for one


def is_small(problem: Problem) -> TypeGuard[vb.VBProblem]:
    """Whether the loop can do it, and fast: a small dense table, gamma priors of known hyperparameters."""
    if not isinstance(problem, vb.VBProblem):
        return False
    structure = problem.structure
    if any(side.factor.known is not None for side in problem.sides):
        return False
    if not isinstance(structure.data, Dense) or np.prod(structure.shape) * structure.rank > MOST_WORK:
        return False
    if structure.unknowns or not all(side.is_gamma for side in problem.sides) or problem.options != vb.VB():
        return False
    return all(np.max(side.prior({})[0]) <= LARGE for side in problem.sides)


def climb_small(
    problem: vb.VBProblem, state: vb.VBState, max_iter: int, tol: float, job: Any
) -> tuple[VariationalPosterior, float, float, int] | None:
    """(q, bound, residual, iterations) of a climb from a starting state; None where a mean underflows."""
    table, pair = _table(problem), (state.W.mean, state.H.mean)
    sources = (state.sources.of_W, state.sources.of_H)
    W, H = (_cells(*each) for each in zip(problem.sides, pair, sources, strict=True))
    spares = tuple(FactorBound(*(np.copy(array) for array in side)) for side in (W, H))
    led = tuple(Led(*(np.ones_like(side.mean) for _ in Led._fields)) for side in (W, H))
    numbers = np.array([-np.inf, GENTLE, FASTEST, np.inf, 0.0])
    numbers[PUSH], numbers[PUSH_BOUND] = state.momentum
    done = 0
    while done < max_iter and numbers[RESIDUAL] >= tol and not job.is_stopped():
        more = small_bound.climb(table, W, H, spares, led, numbers, min(BLOCK, max_iter - done), tol)
        if more < 0:
            return None
        done += more
        if not np.isfinite(numbers[BOUND]):
            raise RunFailed(f"the bound became {numbers[BOUND]} within {done} iterations")
        job.report(done, f"bound {numbers[BOUND]:.6g}")
    return VariationalPosterior(W.mean, H.mean, W.shape, H.shape), float(numbers[BOUND]), float(numbers[RESIDUAL]), done


def _table(problem: vb.VBProblem) -> DenseTable:
    structure = problem.structure
    data, exposure, background = structure.data, structure.exposure_table(), structure.background_table()
    weight = np.array(exposure if data.mask is None else data.mask * exposure, dtype=np.float64)
    priors = sum(_prior_constant(*(_full(each, side) for each in side.prior({}))) for side in problem.sides)
    return DenseTable(np.ascontiguousarray(data.values), weight, background / exposure, problem.constant - priors)


def _prior_constant(shape: Array, rate: Array) -> float:
    return float(np.sum(gammaln(shape) - shape * np.log(rate)))


def _full(prior: Array, side: Side) -> Array:
    return np.array(np.broadcast_to(prior, side.turn(np.empty(side.factor.shape)).shape), dtype=np.float64)


def _cells(side: Side, start: Array, sources: Array) -> FactorBound:
    shape, rate = (_full(each, side) for each in side.prior({}))
    mean = np.array(start, dtype=np.float64)
    empty = [np.ones_like(mean) for _ in range(4)]
    q_shape, q_rate, log, geometric = empty
    return FactorBound(shape, rate, q_shape, q_rate, mean, log, geometric, np.array(sources, dtype=np.float64))


METHOD: Method = Method(
    name="bound",
    verb="rank",
    likelihoods=(Poisson, NegativeBinomial),
    takes_known=True,
    options=RankBound,
    supports=supports,
    estimate=estimate,
    is_bound=True,
    runs=1,
)

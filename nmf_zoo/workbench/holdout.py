"""Held-out log-likelihood: fit without some of the data, and ask how probable these were.

Cells are held out at random (`Cells` of a sparse matrix that lists its observed cells, or of a table): they become
missing as with ``mask=``, the model is fitted to the others, and of each held-out cell it is said::

    log p(x | the others) = log (1 / S) sum_s p(x | W_s, H_s)      W_s, H_s ~ (approximate) posterior

Sparse counts whose other cells are zeros are thinned instead, since a list of all cells but some would be as long as
the table: each count goes to the held-out part with the probability `share`, one by one. The two parts of a Poisson
count are independent Poisson counts with means share * m and (1 - share) * m, and so are those of the zeros, which
cost nothing. The held-out part is scored at the posterior mean of m, column by column::

    sum_f x log(share m) - share m - log x!      all features, the zeros among them

Cells of one split are the same whatever the model is: differences between models are differences on the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method
from nmf_zoo.inference.registry import named, names, resolve_engine, verb_of, verdict
from nmf_zoo.inference.shared.layout import background_of_samples, weigh
from nmf_zoo.inference.shared.multiplied import totals_of_samples
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.options import check_least, check_share, check_types, names_checked
from nmf_zoo.results.posterior import Draw, mean_at
from nmf_zoo.runtime.engine import DRAW, START, Engine, Verdict, has_data
from nmf_zoo.runtime.run_one import Iterations, Sweeps, run_one
from nmf_zoo.search.optima import Point
from nmf_zoo.search.options import Search
from nmf_zoo.search.run import Local, key_within, point_of_solution, search_within
from nmf_zoo.structure import Array, Cells, Dense, Factorisation, scaled_offset

SPLIT, FIT = range(2)  # children of a restart's stream


@names_checked
@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Options of the held-out log-likelihood.

    Attributes
    ----------
    share : of the observed cells, or of the counts of a sparse matrix, that are held out, in (0, 1)
    engine : what fits the others, by name or options: "vb", "em", "gibbs"
    draws : draws of (W, H) that the predictive density averages over; EM has one
    tune : warm-up sweeps of a sampler
    max_iter, tol : of an optimiser
    """

    share: float = 0.1
    engine: Any = "vb"
    draws: int = 200
    tune: int = 500
    max_iter: int = 2000
    tol: float = 1e-4

    def __post_init__(self):
        check_types(self)
        check_share(self, "share")
        check_least(self, draws=1, tune=0, max_iter=1, tol=0)


class Split(NamedTuple):
    """A model of the data that were kept, and the cells that were not.

    Attributes
    ----------
    training : the model with the kept data
    tested : the model whose mean is that of the held-out part
    rows, cols, values : (cells,) the held-out cells; of thinned counts those that are not 0
    is_thinned : the other cells of the held-out part are zeros
    """

    training: Factorisation
    tested: Factorisation
    rows: Array
    cols: Array
    values: Array
    is_thinned: bool


def supports(structure: Factorisation, options: Holdout) -> Verdict:
    """Any model that the engine can run, with counts where they are thinned."""
    if structure.data is None:
        return has_data(structure)
    engine, engine_options = resolve(options.engine, structure)
    if not isinstance(engine, Engine):
        return Verdict(f"{engine.name!r} can't fit a part of the data here: use engine='gibbs' or 'vb'")
    if _is_thinned(structure) and not structure.is_integer:
        return Verdict("sparse data are split count by count, and some cells are no integers: use X.toarray()")
    if _is_thinned(structure) and not structure.likelihood.has_free_zeros:
        family = structure.likelihood.family
        return Verdict(
            f"sparse data are split count by count, and parts of {family} counts depend on each other: use X.toarray()"
        )
    if _n_held_out(structure, options.share) < 1:
        return Verdict(f"a share of {options.share} of its data is less than one cell or count")
    refusal = verdict(structure, engine, engine_options)
    ours = [name for name in names() if isinstance(named(name)[0], Engine)]
    able = [f"nz.Holdout(engine={other!r})" for other in ours if verdict(structure, other)]
    if refusal or not able:
        return refusal
    return Verdict(f"engine {engine.name!r} can't fit it ({refusal.reason}); use {' or '.join(able)}")


def estimate(structure: Factorisation, options: Holdout, run: EvidenceRun) -> Estimate:
    """The held-out log-likelihood in nats, one split per chain; its error is the spread over the held-out cells."""
    pairs = run.each(lambda job: score(structure, options, run.search, job), total=1)
    log_likelihood, errors = np.array(pairs).T
    return Estimate(log_evidence=log_likelihood, standard_error=errors)


def score(structure: Factorisation, options: Holdout, search: Search | None, job: Job) -> tuple[float, float]:
    """(held-out log-likelihood, its standard error over cells, or over the columns of thinned counts)

    With a ``search`` an optimiser's fit is the best that it finds.
    """
    split = hold_out(structure, options.share, child(job.key, SPLIT))
    draws = fitted_draws(split.training, options, search, job)
    parts = thinned_scores(split, draws) if split.is_thinned else cell_scores(split, draws)
    spread = float(np.std(parts, ddof=1)) if len(parts) > 1 else np.nan
    return float(np.sum(parts)), float(np.sqrt(len(parts))) * spread


# -- what is held out ------------------------------------------------------------------------------------------------


def hold_out(structure: Factorisation, share: float, key: np.uint64) -> Split:
    """Split the data at random; the same key gives the same split, whatever the model."""
    generator = generator_of(key)
    if _is_thinned(structure):
        return _thin(structure, share, generator)
    rows, cols, values = structure.observed_cells()
    held = np.sort(generator.choice(len(values), _n_held_out(structure, share), replace=False))
    data: Dense | Cells
    if isinstance(structure.data, Cells):
        kept = np.ones(len(values), dtype=bool)
        kept[held] = False
        data = replace(structure.data, rows=rows[kept], cols=cols[kept], values=values[kept])
    else:
        mask = np.ones(structure.shape, dtype=bool) if structure.data.mask is None else structure.data.mask.copy()
        mask[rows[held], cols[held]] = False
        data = Dense(values=np.where(mask, structure.data.values, 0.0), mask=mask)
    training = replace(structure, data=data, cells=None, imputed=None)
    return Split(training, structure, rows[held], cols[held], values[held], is_thinned=False)


def _thin(structure: Factorisation, share: float, generator: np.random.Generator) -> Split:
    """Each count goes to the held-out part with probability ``share``."""
    data: Any = structure.data
    held = generator.binomial(data.values.astype(np.int64), share).astype(np.float64)
    kept, seen = data.values - held, held > 0
    left = kept > 0
    part = replace(data, rows=data.rows[left], cols=data.cols[left], values=kept[left])
    training = dimmed(replace(structure, data=part, cells=None), 1.0 - share)
    tested = dimmed(replace(structure, data=None, cells=None), share)
    return Split(training, tested, data.rows[seen], data.cols[seen], held[seen], is_thinned=True)


def dimmed(structure: Factorisation, share: float) -> Factorisation:
    """The model of counts of which each was seen with the probability ``share``; W and H keep their priors."""
    likelihood = structure.likelihood
    exposure = np.full((1, 1), share) if likelihood.exposure is None else scaled_offset(likelihood.exposure, share)
    background = scaled_offset(likelihood.background, share)
    return replace(structure, likelihood=replace(likelihood, exposure=exposure, background=background))


def _is_thinned(structure: Factorisation) -> bool:
    return isinstance(structure.data, Cells) and structure.data.is_complete


def _n_held_out(structure: Factorisation, share: float) -> int:
    """Cells held out, at least one kept; of thinned data, counts to be expected."""
    values = structure.data.observed_values
    n = float(np.sum(values)) if _is_thinned(structure) else len(values)
    return int(min(round(share * n), n - 1))


# -- the fit ---------------------------------------------------------------------------------------------------------


def fitted_draws(structure: Factorisation, options: Holdout, search: Search | None, job: Job) -> Iterator[Draw]:
    """Draws of (W, H) given the data of ``structure``."""
    engine, engine_options = resolve(options.engine, structure)
    assert engine is not None  # refused by supports
    own = replace(job, key=child(job.key, FIT, structure.rank))
    problem = engine.prepare(structure, engine_options, job.workers)
    if engine.verb == "sample":
        values = _sampled(engine, problem, options, own)
    elif search is None:
        values = _drawn(engine, problem, options, _optimise(engine, problem, options, {}, own).fitted, own.key)
    else:
        values = _searched(engine, structure, problem, options, search, own)
    n_draws = len(next(iter(values.values())))
    for i in range(n_draws):
        draw = {name: array[i] for name, array in values.items()}
        W, H = (factor.value(draw) for factor in (structure.W, structure.H))
        yield Draw(W, H, draw, (0, i), (0, i))


def _searched(
    engine: Engine, structure: Factorisation, problem: Any, options: Holdout, search: Search, job: Job
) -> dict[str, Array]:
    """Draws from the best optimum that a search finds."""

    def fit(start: Point, max_iter: int, own: Job) -> Local:
        found = _optimise(engine, problem, replace(options, max_iter=max_iter), start, own)
        return found._replace(point=point_of_solution(engine, structure, problem, found.fitted, own.key))

    optima = search_within(job, structure, search, options.max_iter, fit, engine.maximise)
    return _drawn(engine, problem, options, optima.best.fitted, key_within(job.key, optima.best.source))


def _optimise(engine: Engine, problem: Any, options: Holdout, start: Point, job: Job) -> Local:
    """A fit from this start, its state as what it gave."""
    length = Iterations(max_iter=options.max_iter, tol=options.tol)
    for at in run_one(engine, problem, engine.init(problem, child(job.key, START), start), length, job):
        state, objective, done = at.state, float(at.step.info["objective"]), at.step.number
    return Local(objective, done, {}, state)


def _drawn(engine: Engine, problem: Any, options: Holdout, state: Any, key: np.uint64) -> dict[str, Array]:
    assert engine.finish is not None
    values, _ = engine.finish(problem, state, child(key, DRAW), options.draws)
    return values


def _sampled(engine: Engine, problem: Any, options: Holdout, job: Job) -> dict[str, Array]:
    length = Sweeps(tune=options.tune, draws=options.draws)
    steps = run_one(engine, problem, engine.init(problem, child(job.key, START), {}), length, job)
    kept = [at.values for at in steps if at.stats]
    if not kept:
        raise KeyboardInterrupt
    return {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}


def resolve(engine: Any, structure: Factorisation) -> tuple[Any, Any]:
    """The engine that fits, and its options."""
    return resolve_engine(engine, verb_of(engine), structure)


# -- the score -------------------------------------------------------------------------------------------------------


def cell_scores(split: Split, draws: Iterator[Draw]) -> Array:
    """log p(x | the others) of each held-out cell, (cells,)."""
    structure, x = split.tested, split.values
    law = structure.likelihood_at(split.rows, split.cols)
    constants, total, n_draws = law.log_constant(x), np.full(len(x), -np.inf), 0
    for draw in draws:
        mean = mean_at(structure, draw, split.rows, split.cols)
        total = np.logaddexp(total, law.log_density(x, mean, draw.values, constants))
        n_draws += 1
    return total - np.log(n_draws)


def thinned_scores(split: Split, draws: Iterator[Draw]) -> Array:
    """log p(held-out counts | posterior mean of W H) of each column, (N,)."""
    structure, n_samples = split.tested, split.tested.shape[1]
    law, weights = structure.likelihood_at(split.rows, split.cols), weigh(structure)
    of_batches = None if structure.likelihood.of_batches is None else totals_of_samples(structure)
    mean, totals, n_draws = np.zeros(len(split.values)), np.zeros(n_samples), 0
    for draw in draws:
        mean += law.expected(mean_at(structure, draw, split.rows, split.cols), draw.values)
        if of_batches is None:
            totals += np.sum(weights.over_features(draw.W) * draw.H.T, axis=1)
        else:
            totals += of_batches(draw.W, draw.H, draw.values)
        n_draws += 1
    mean, totals = mean / n_draws, totals / n_draws
    totals += background_of_samples(structure) if of_batches is None else 0.0
    listed = xlogy(split.values, mean) - gammaln(split.values + 1)
    return np.bincount(split.cols, listed, n_samples) - totals


METHOD: Method = Method(
    name="holdout",
    verb="rank",
    likelihoods=None,  # those of the engine that it is given, which it asks
    options=Holdout,
    supports=supports,
    estimate=estimate,
    runs=5,
)

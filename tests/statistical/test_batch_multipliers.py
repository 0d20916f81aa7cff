"""Counts in batches: Gibbs by Geweke's test, by exact moments and by calibration; VB's bound below exact evidence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.special import digamma, gammaln

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.batches import gibbs, vb
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Dense, Outer
from tests.planted import check_seen, plant, put
from tests.sizes import size
from tests.statistical.calibration import check_calibrated
from tests.statistical.gates import LEAST, check_means
from tests.statistical.geweke import (
    BACKGROUND,
    EXPOSURE,
    FIXED,
    LISTED,
    MASK,
    X23,
    X32,
    check_same_means,
    draw_prior,
    laid_out_cells,
    mean_of,
    seen,
    with_every_cell_laid_out,
)
from tests.structures import gamma, half_normal, model, multipliers, stack, unknown

pytestmark = pytest.mark.statistical
SWEEPS = PLANTED_SWEEPS = 2_500
# The first two mix slowly; of the last a law is missed late.
SLOW = {"rate of H": 5_000, "exposure of both sides, background": 4_000, "two batches": 4_000}
W_PRIOR, H_PRIOR = gamma(np.array([[0.9, 2.0]]), 0.8), gamma(np.array([[1.6], [0.7]]), 1.7)
SHAPES, RATES = np.array([[2.0, 3.0], [1.5, 4.0]]), np.array([[2.0, 2.5]])
TWO = multipliers([0, 1, 0], 2, 2, SHAPES, RATES)
SIDES = Outer(of_features=np.array([[0.4], [1.6]]), of_samples=np.array([[0.7, 1.0, 2.2]]))


def plain(batches=TWO, prior_w=W_PRIOR, prior_h=H_PRIOR, **options):
    return model(X23, 2, prior_w, prior_h, batches=batches, **options)


MODELS = {
    "two batches": plain(),
    "exposure of both sides, background": plain(exposure=SIDES, background=BACKGROUND),
    "exposure of cells, mask": plain(exposure=EXPOSURE, background=BACKGROUND, mask=MASK),
    "listed cells": plain(data=LISTED, exposure=EXPOSURE),
    "batches first": plain(batches=multipliers([0, 1, 0], 2, 2, SHAPES.T, RATES.T, transposed=True)),
    "a reference": plain(batches=multipliers([1, 0, 1], 2, 1, 2.5, 2.0), exposure=[[0.6], [1.4]]),
    "W fixed": plain(prior_w=FIXED, background=[[0.2], [0.5]]),
    "H fixed": model(X32, 2, gamma(1.3, 0.9), FIXED, batches=multipliers([1, 0], 3, 2, 2.0, 1.5), mask=MASK.T),
    "rate of H": plain(prior_h=gamma(1.2, unknown("r", "gamma", 4.0, 3.0))),
    "half-normal W": plain(prior_w=half_normal(1.3)),
}


def expected(structure, draws):
    """(n, F, N): multipliers times the mean."""
    own = structure.likelihood.multipliers
    M = draws[own.variable.name]
    M = M.swapaxes(1, 2) if own.transposed else M
    of_reference = np.ones((*M.shape[:2], int(own.has_reference)))
    return np.concatenate([M, of_reference], axis=2)[:, :, own.batch] * mean_of(structure, draws["W"], draws["H"])


def quantities(structure, draws):
    """Logarithms of all that is drawn, of the means and of the data."""
    n = len(draws["X"])
    names = [factor.name for factor in (structure.W, structure.H) if not factor.is_fixed] + list(structure.unknowns)
    tables = [np.log(draws[name]).reshape(n, -1) for name in names]
    tables += [np.log(expected(structure, draws)).reshape(n, -1), np.log1p(draws["X"]).reshape(n, -1)]
    return np.concatenate(tables, axis=1)


def state_of(problem, state):
    own = problem.data.multipliers
    values = {name: np.array(value) for name, value in state.counts.values.items()}
    return {
        "W": state.counts.W.copy(),
        "H": state.counts.Ht.T.copy(),
        own.variable.name: own.as_variable(state.M),
        **values,
    }


def set_data(problem, X):
    """Other data, in place: its cells, and their sums over batches."""
    own, layout = problem.data.multipliers, problem.counts.layout
    layout.values[:] = X[laid_out_cells(layout)]
    problem.data.counts[:] = own.sum_samples(X.T.astype(float)).T


def check_geweke(structure, sweeps, seed=0, wrong=lambda problem: problem, least=LEAST):
    """Raise unless prior and data agree with a chain that alternates sweeps and data."""
    rng, n, key = np.random.default_rng(seed), 4 * sweeps, seed_key(seed)
    marginal = draw_prior(structure, n, rng)
    marginal["X"] = rng.poisson(expected(structure, marginal)) * seen(structure)
    problem = wrong(gibbs.prepare(with_every_cell_laid_out(structure), Gibbs(), SERIAL))
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state, kept = gibbs.init(problem, child(key, 0), start), []
    for sweep in range(sweeps):
        now = state_of(problem, state)
        mean = expected(structure, {name: value[None] for name, value in now.items()})[0]
        now["X"] = rng.poisson(mean) * seen(structure)
        kept.append(now)
        set_data(problem, now["X"])
        state, _ = gibbs.step(problem, state, child(key, 1, sweep))
    check_same_means(quantities(structure, marginal), quantities(structure, stack(kept)), least)


@pytest.mark.parametrize("name", MODELS)
def test_two_ways_to_draw_agree(name):
    """Long: with an unknown rate in Python."""
    check_geweke(MODELS[name], size(SLOW.get(name, SWEEPS), 60_000))


# -- planted errors ------------------------------------------------------------------------------------------------


NARROW = multipliers([0, 1, 0], 2, 2, 6.0, [[5.0, 8.0]])  # a chain with an error in it stays where it can be judged
PLANTED = {"narrow": plain(batches=NARROW), "background": plain(batches=NARROW, background=0.6 * BACKGROUND)}


def check_is_seen(structure=PLANTED["narrow"], **options):
    """Wrong chains may mix slowly."""
    check_seen(lambda n: check_geweke(structure, n, least=50, **options), PLANTED_SWEEPS, "gate 2, standard errors")


def test_another_rate_is_seen():
    check_is_seen(wrong=lambda problem: dataclasses.replace(problem, rate=2.0 * problem.rate))


def test_means_without_their_background_are_seen():
    def without(problem):
        return dataclasses.replace(
            problem, data=dataclasses.replace(problem.data, background=0.0 * problem.data.counts)
        )

    check_is_seen(PLANTED["background"], wrong=without)


def test_scales_of_another_law_are_seen(monkeypatch):
    plant(monkeypatch, "Gibbs of batches: scales", lambda right: lambda tilt, *given: right(tilt + 1.0, *given))
    check_is_seen()


def test_batches_exchanged_are_seen():
    """The planted error: sums over the samples of the other batch."""

    def exchanged(problem):
        other = dataclasses.replace(problem.data.multipliers, batch=1 - problem.data.multipliers.batch)
        return dataclasses.replace(problem, data=dataclasses.replace(problem.data, multipliers=other))

    check_is_seen(wrong=exchanged)


# -- calibration ---------------------------------------------------------------------------------------------------

SIMULATIONS, THIN, TUNE = size(50, 1000), size(6, 12), size(150, 300)
ALLOCATIONS, TRAJECTORIES = nz.Gibbs(trajectories="never"), nz.Gibbs(trajectories="always")
LABELS = ["a", "a", "b", "a", "b"]


def declare(shape=3.0, **arguments):
    batches = nz.Batches(labels=LABELS, shape=shape, reference=arguments.pop("reference", None))
    return nz.gamma_nmf(
        None, 2, alpha_w=1.2, beta_w=1.5, alpha_h=0.9, beta_h=0.4, batch=batches, shape=(3, 5), **arguments
    )


@pytest.mark.parametrize("engine", [ALLOCATIONS, TRAJECTORIES], ids=["allocation", "trajectories"])
def test_ranks_are_uniform(engine):
    """Long: simulations, each with a warm-up."""
    check_calibrated(declare, engine, SIMULATIONS, tune=TUNE, thin=THIN, seed=1)


def test_ranks_are_uniform_beside_a_reference():
    """Long: simulations, each with a warm-up."""
    check_calibrated(lambda: declare(reference="a"), TRAJECTORIES, SIMULATIONS, tune=TUNE, thin=THIN, seed=1)


# -- exact moments -------------------------------------------------------------------------------------------------

COUNTS = np.array([[4.0, 9.0, 1.0], [0.0, 6.0, 3.0]])
BATCH, OF_M = np.array([0, 1, 0]), (2.0, 0.7)  # of each sample; shape and rate
GRID = np.exp(np.linspace(-7.0, 4.0, 700))


def log_evidence_of_multipliers(x, m):
    """log int Gamma(M) prod Poisson(x | M m) dM, without what depends on x alone; x, m: (samples of a batch, ...)."""
    total = sum(x)
    return sum(n * np.log(own) for n, own in zip(x, m, strict=True)) - (OF_M[0] + total) * np.log(OF_M[1] + sum(m))


def log_gamma(v, shape, rate):
    """The log density of log v."""
    return shape * np.log(v) - rate * v


def moments(log_p, logs, multipliers_given):
    """(posterior means of the logarithms and of E[M | ...]) on a grid"""
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return [np.sum(p * own) for own in (*logs, *multipliers_given)]


def exact_of_W(background):
    """H is known, (1, 3) of ones: each feature has a w; means of log w and of its M in both batches, (features, 3)."""
    found, mean = [], GRID + background
    for x in COUNTS:
        batches = [x[b == BATCH] for b in (0, 1)]
        log_p = log_gamma(GRID, 1.2, 0.4) + sum(log_evidence_of_multipliers(own, [mean] * len(own)) for own in batches)
        given = [(OF_M[0] + own.sum()) / (OF_M[1] + len(own) * mean) for own in batches]
        found.append(moments(log_p, [np.log(GRID)], given))
    return np.array(found)


def exact_of_H(background):
    """W is known, (2, 1): samples of a batch share M; means of log h (3,), and of M (2, 2)."""
    w, log_h, M = np.array([1.0, 0.6]), np.zeros(3), np.zeros((2, 2))
    for b in (0, 1):
        samples = np.flatnonzero(b == BATCH)
        h = np.meshgrid(*[GRID[::2]] * len(samples), indexing="ij")
        log_p = sum(log_gamma(own, 1.2, 0.4) for own in h)
        means = [[w[f] * own + background for own in h] for f in (0, 1)]
        log_p = log_p + sum(log_evidence_of_multipliers(COUNTS[f, samples], means[f]) for f in (0, 1))
        given = [(OF_M[0] + COUNTS[f, samples].sum()) / (OF_M[1] + sum(means[f])) for f in (0, 1)]
        found = moments(log_p, [np.log(own) for own in h], given)
        log_h[samples], M[:, b] = found[: len(samples)], found[len(samples) :]
    return log_h, M


def one_component(free, background):
    """The model of these counts with one component, "W" or "H" of it free."""
    own = multipliers(BATCH, 2, 2, *OF_M)
    of_W = gamma(1.2, 0.4) if free == "W" else np.array([[1.0], [0.6]])
    of_H = gamma(1.2, 0.4) if free == "H" else np.ones((1, 3))
    return model(COUNTS, 1, of_W, of_H, batches=own, background=np.full((1, 1), background))


def check_exact(free, trajectories="never", *, sweeps, background=0.0, wrong=lambda problem: problem):
    """Raise unless the means of log W or log H, and of M, are exact."""
    problem = wrong(gibbs.prepare(one_component(free, background), Gibbs(trajectories=trajectories), SERIAL))
    state, drawn = gibbs.init(problem, seed_key(1), {}), []
    for sweep in range(sweeps + 200):
        state, _ = (gibbs.tune if sweep < 200 else gibbs.step)(problem, state, child(seed_key(2), sweep))
        factor = state.counts.W if free == "W" else state.counts.Ht
        drawn.append(np.concatenate([np.log(factor).ravel(), state.M.ravel()]))
    of_W = exact_of_W(background)
    logs, M = exact_of_H(background) if free == "H" else (of_W[:, 0], of_W[:, 1:])
    right = np.concatenate([logs, M.ravel()])
    check_means([f"{free} and M, {i}" for i in range(len(right))], np.array(drawn[200:]), right)


@pytest.mark.parametrize("free", ["W", "H"])
@pytest.mark.parametrize("trajectories", ["never", "always"])
@pytest.mark.parametrize("background", [0.0, 1.3])
def test_moments_are_exact(free, trajectories, background):
    check_exact(free, trajectories, sweeps=size(4_000, 100_000), background=background)


def check_moments_tell(*given, **options):
    check_seen(lambda n: check_exact(*given, sweeps=n, **options), 4_000, "gate 2, standard errors")


@pytest.mark.parametrize(("free", "step"), [("H", "over_features"), ("W", "over_samples")])
def test_a_factor_drawn_without_multipliers_is_seen(free, step, monkeypatch):
    place = {"over_features": "batches: sums over features", "over_samples": "batches: sums over samples"}[step]
    put(monkeypatch, place, lambda weights, factor: getattr(weights.outer, step)(factor))

    def in_python(right):
        """Blocks of small tables have sums of their own."""
        return lambda problem, M: dataclasses.replace(right(problem, M), sweeps=None)

    plant(monkeypatch, "Gibbs of batches: the model given multipliers", in_python)
    check_moments_tell(free)


@pytest.mark.parametrize("free", ["H", "W"])
def test_trajectories_without_multipliers_are_seen(free, monkeypatch):
    """The planted error: allocation is right in one sweep of twenty, trajectories see no multipliers."""
    put(monkeypatch, "Gibbs of batches: multipliers of trajectories", lambda sweeps, table, batch: sweeps)
    check_moments_tell(free, "always")


@pytest.mark.parametrize("free", ["H", "W"])
def test_scales_that_forget_the_background_are_seen(free, monkeypatch):
    """Geweke's test can't see it: these moves leave the prior as it is, and data are drawn anew after them."""
    put(monkeypatch, "batches: whether scales leave the mean", True)
    check_moments_tell(free, background=1.3)


def test_multipliers_of_a_batch_too_many_are_seen():
    """The planted error: counts of both batches in each."""

    def wrong(problem):
        total = np.array(np.broadcast_to(problem.data.counts.sum(axis=1, keepdims=True), problem.data.counts.shape))
        return dataclasses.replace(problem, data=dataclasses.replace(problem.data, counts=total))

    check_moments_tell("W", wrong=wrong)


# -- the bound -----------------------------------------------------------------------------------------------------


def log_evidence():
    """log p(X) of the model whose H is known: each feature's w by quadrature, its multipliers in closed form."""
    total = -np.sum(gammaln(COUNTS + 1.0))
    for x in COUNTS:
        log_p = 1.2 * np.log(0.4) - gammaln(1.2) + log_gamma(GRID, 1.2, 0.4)
        for own in (x[b == BATCH] for b in (0, 1)):
            log_p = log_p + log_evidence_of_multipliers(own, [GRID] * len(own))
            log_p += OF_M[0] * np.log(OF_M[1]) - gammaln(OF_M[0]) + gammaln(OF_M[0] + own.sum())
        peak = log_p.max()
        total += peak + np.log(integrate.trapezoid(np.exp(log_p - peak), np.log(GRID)))
    return total


def climbed(structure, steps=500):
    problem = vb.prepare(structure, VB(), SERIAL)
    state, bounds = vb.init(problem, seed_key(3), {}), []
    for _ in range(steps):
        state, info = vb.step(problem, state)
        bounds.append(info.objective)
    return np.array(bounds)


def bound_at(logs):
    """The bound of gamma laws of w and of M, written anew: shapes and rates (2 features, w and two batches)."""
    shape, rate = np.exp(logs).reshape(2, 2, 3)
    mean, log = shape / rate, digamma(shape) - np.log(rate)
    prior_shape, prior_rate = np.array([1.2, *[OF_M[0]] * 2]), np.array([0.4, *[OF_M[1]] * 2])
    of_cells = COUNTS * (log[:, :1] + log[:, 1 + BATCH]) - mean[:, :1] * mean[:, 1 + BATCH] - gammaln(COUNTS + 1.0)
    of_prior = prior_shape * np.log(prior_rate) - gammaln(prior_shape) + (prior_shape - 1) * log - prior_rate * mean
    entropy = shape - np.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape)
    return np.sum(of_cells) + np.sum(of_prior) + np.sum(entropy)


def test_the_bound_is_the_best_of_its_family_and_below_the_exact_evidence():
    bounds = climbed(one_component("W", 0.0))
    assert np.min(np.diff(bounds)) > -1e-10
    best, start = -np.inf, np.zeros(12)
    for _ in range(20):
        found = optimize.minimize(lambda logs: -bound_at(logs), start, method="L-BFGS-B", options={"gtol": 1e-10})
        best, start = max(best, -found.fun), found.x
    assert bounds[-1] == pytest.approx(best, abs=1e-5)
    assert bounds[-1] < log_evidence()
    assert bounds[-1] > log_evidence() - 5.0


@pytest.mark.parametrize("name", ["two batches", "exposure of both sides, background", "a reference"])
def test_the_bound_never_falls(name):
    structure = MODELS[name]
    X = np.random.default_rng(4).poisson(3.0, structure.shape).astype(float)
    bounds = climbed(dataclasses.replace(structure, data=Dense(values=X)), 200)
    assert np.min(np.diff(bounds)) > -1e-9 * np.abs(bounds).max()


def test_a_bound_without_scales_as_they_are_is_seen(monkeypatch):
    """The planted error: sums of logarithms that forget what the scales took. The bound falls, or leads beyond."""
    put(monkeypatch, "batches: mean of shared scales", lambda own, counts: 0.0)
    bounds = climbed(one_component("W", 0.0))
    assert np.min(np.diff(bounds)) < -1e-6 or bounds[-1] > log_evidence()


# -- recovery ------------------------------------------------------------------------------------------------------


def two_batches(seed):
    """(X, batch, what multiplies each feature in the second batch) of counts whose batches share their components."""
    rng, batch = np.random.default_rng(seed), np.arange(60) % 2
    W, H = rng.gamma(1.0, 1.0, (20, 3)), rng.gamma(1.0, 4.0, (3, 60))
    M = np.stack([np.ones(20), rng.gamma(5.0, 0.2, 20)], axis=1)
    return rng.poisson(W @ H * M[:, batch]), batch, M[:, 1]


def test_multipliers_are_recovered_with_the_coverage_of_their_intervals():
    """Tables of counts. Multipliers drawn from the prior lie in nine of ten intervals of 90 %.

    Long: a chain for each table.
    """
    inside, errors, spread = [], [], []
    for seed in range(size(6, 60)):
        X, batch, truth = two_batches(seed)
        batches = nz.Batches(labels=batch, shape=5.0, reference=0)
        model = nz.gamma_nmf(X, 3, alpha_h=1.0, beta_h=0.25, batch=batches)
        drawn = nz.sample(400, tune=200, chains=1, engine="gibbs", random_seed=seed, quiet=True, model=model)
        M = _compat.group(drawn, "posterior")["M"].to_numpy()[0, :, :, 0]
        low, high = np.quantile(M, [0.05, 0.95], axis=0)
        inside.append((low <= truth) & (truth <= high))
        errors.append(np.log(M.mean(axis=0) / truth))
        spread.append(np.log(truth))
    share, n = np.mean(inside), np.size(inside)
    assert abs(share - 0.9) < 5 * np.sqrt(0.09 / n), f"{share:.3f} of {n} intervals of 90 % hold the truth"
    assert np.std(errors) < 0.5 * np.std(spread)

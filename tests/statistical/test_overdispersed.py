"""Negative binomial data: Gibbs by Geweke's test, exact moments and ranks, VB's bound below the exact evidence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pymc as pm
import pytest
from scipy import integrate, optimize, stats
from scipy.special import digamma, gammaln, logsumexp

import nmf_zoo as nz
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.overdispersed import gibbs, vb
from nmf_zoo.inference.overdispersed.trajectories import make_sides
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Dense
from tests.planted import check_seen, plant, put
from tests.sizes import size
from tests.statistical.beside_known import NAMES, PROFILE, known_beside, offsets_of, quadrature, statistics_of
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.gates import LEAST, check_means
from tests.statistical.geweke import (
    BACKGROUND,
    EXPOSURE,
    FIXED,
    MASK,
    X23,
    X32,
    check_same_means,
    draw_prior,
    free_part,
    mean_of,
    seen,
    without_jacobian,
)
from tests.statistical.walking import settle
from tests.structures import beside, gamma, model, stack, unknown

pytestmark = pytest.mark.statistical
SWEEPS = size(3_000, 60_000)
MISSED_LATE = {"H fixed": 4_500, "known alpha": 6_000}  # wrong multipliers show late there
PLANTED_SWEEPS = 3_000
WALKS = size(2_000, 40_000)  # sweeps with trajectories
NB = {"kind": "negative binomial"}
W_PRIOR, H_PRIOR = gamma(np.array([[0.9, 2.0]]), 0.8), gamma(np.array([[1.6], [0.7]]), 1.7)
OF_ALL = unknown("a", "gamma", 4.0, 2.0)
OF_FEATURES = unknown("a", "lognormal", 0.3, 0.6, variable_shape=(2,), shape=(2, 1))
OF_SAMPLES = unknown("a", "gamma", 5.0, 3.0, variable_shape=(3,), shape=(1, 3))


def plain(**options):
    return model(X23, 2, W_PRIOR, H_PRIOR, **NB, **options)


PARTLY = model(X23, 3, W_PRIOR, gamma([[1.6], [0.7], [1.0]], 1.7), alpha=0.8, exposure=EXPOSURE, **NB)
MODELS = {
    "known alpha": plain(alpha=0.8),
    "one alpha": plain(alpha=OF_ALL),
    "alpha of features": plain(alpha=OF_FEATURES, exposure=EXPOSURE, background=BACKGROUND),
    "alpha of samples, mask": plain(alpha=OF_SAMPLES, mask=MASK, exposure=[[0.4], [2.5]]),
    "W fixed": model(X23, 2, FIXED, H_PRIOR, alpha=OF_ALL, background=[[0.2], [0.5]], **NB),
    "H fixed": model(X32, 2, gamma(1.3, 0.9), FIXED, alpha=0.7, mask=MASK.T, **NB),
    "a component of W known": dataclasses.replace(
        PARTLY, W=beside(PARTLY.W, [[0.8, 0.0, 0.0], [1.4, 0.0, 0.0]], (1, 3))
    ),
    "rate of H": model(X23, 2, W_PRIOR, gamma(1.2, unknown("r", "gamma", 4.0, 3.0)), alpha=OF_ALL, **NB),
}
PARTLY = model(X23, 3, W_PRIOR, gamma([[1.6], [0.7], [1.0]], 1.7), alpha=0.8, **NB)
BESIDE = "a component of W is known"
MODELS[BESIDE] = dataclasses.replace(PARTLY, W=beside(PARTLY.W, [[0.8, 0.0, 0.0], [1.4, 0.0, 0.0]], (1, 3)))


def alpha_at(structure, draws, n):
    """(n, F, N)"""
    alpha = structure.likelihood.alpha
    value = np.broadcast_to(alpha.value, (n, 1, 1)) if not hasattr(alpha, "name") else draws[alpha.name]
    shape = (1,) * (2 - len(alpha.shape)) + tuple(alpha.shape)
    return np.broadcast_to(np.reshape(value, (n, *shape)), (n, *structure.shape))


def data_given(structure, draws, n, rng):
    """X of n draws: a Poisson count about a multiplied mean, written anew; 0 where not observed."""
    alpha = alpha_at(structure, draws, n)
    mean = mean_of(structure, draws["W"], draws["H"])
    return rng.poisson(mean * rng.gamma(alpha) / alpha) * seen(structure)


def quantities(structure, draws):
    n = len(draws["X"])
    random = [free_part(own, draws[own.name]) for own in (structure.W, structure.H) if not own.is_fixed]
    tables = [np.log(own).reshape(n, -1) for own in (*random, *(draws[name] for name in structure.unknowns))]
    tables += [np.log(mean_of(structure, draws["W"], draws["H"])).reshape(n, -1), np.log1p(draws["X"]).reshape(n, -1)]
    return np.concatenate(tables, axis=1)


def with_data(problem, X):
    """The problem of other data."""
    structure = dataclasses.replace(
        problem.structure, data=Dense(values=X.astype(float), mask=problem.structure.data.mask)
    )
    return dataclasses.replace(
        problem,
        structure=structure,
        pieces=dataclasses.replace(problem.pieces, structure=structure),
        cells=tuple(gibbs.cells_of_rows(structure, by_features=by) for by in (True, False)),
        sides=None if problem.sides is None else make_sides(structure, problem.options),
    )


ALLOCATIONS, TRAJECTORIES = Gibbs(trajectories="never"), Gibbs(trajectories="always")


def walk(problem, state, key):
    """A sweep with trajectories as if the warm-up were over."""
    settle(state)
    return gibbs.step(problem, state, key)


def check_geweke(structure, sweeps, seed=0, options=ALLOCATIONS, least=LEAST):
    """Raise unless prior and data agree with a chain that alternates sweeps and data."""
    rng, n, key = np.random.default_rng(seed), 4 * sweeps, seed_key(seed)
    marginal = draw_prior(structure, n, rng)
    marginal["X"] = data_given(structure, marginal, n, rng)
    problem = gibbs.prepare(structure, options, SERIAL)
    step = gibbs.step if problem.sides is None else walk
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state, kept = gibbs.init(problem, child(key, 0), start), []
    for sweep in range(sweeps):
        now = {"W": state.W.copy(), "H": state.Ht.T.copy(), **{k: np.array(v) for k, v in state.values.items()}}
        now["X"] = data_given(structure, {name: value[None] for name, value in now.items()}, 1, rng)[0]
        kept.append(now)
        problem = with_data(problem, now["X"])
        state, _ = step(problem, state, child(key, 1, sweep))
    check_same_means(quantities(structure, marginal), quantities(structure, stack(kept)), least)


@pytest.mark.parametrize("name", MODELS)
def test_two_ways_to_draw_agree(name):
    check_geweke(MODELS[name], max(SWEEPS, MISSED_LATE.get(name, 0)))


@pytest.mark.parametrize("name", ["alpha of features", "alpha of samples, mask", "rate of H"])
def test_trajectories_and_data_agree(name):
    check_geweke(MODELS[name], WALKS, seed=1, options=TRAJECTORIES)


def wrong_multipliers(monkeypatch):
    """Multipliers of twice the dispersion."""

    def wrong(right):
        return lambda out, cells, factors, alphas, *rest: right(
            out, cells, factors, (0.5 * alphas[0], alphas[1]), *rest
        )

    plant(monkeypatch, "Gibbs of overdispersed counts: multipliers and sources", wrong)


def wrong_jacobian(monkeypatch):
    """alpha drawn as if its logarithm had the density of its value."""
    plant(monkeypatch, "Gibbs of overdispersed counts: slices", without_jacobian)


def wrong_sides(monkeypatch):
    """Exposures left out of the weights of either factor."""

    def wrong(right):
        def unexposed(structure, *, by_features):
            cells = right(structure, by_features=by_features)
            return cells._replace(exposure=np.ones_like(cells.exposure))

        return unexposed

    plant(monkeypatch, "Gibbs of overdispersed counts: rows", wrong)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (wrong_multipliers, "H fixed"),
        (wrong_jacobian, "one alpha"),
        (wrong_sides, "alpha of samples, mask"),
        (wrong_sides, "a component of W known"),
    ],
)
def test_planted_errors_are_seen(spoil, name, monkeypatch):
    spoil(monkeypatch)
    check_seen(lambda n: check_geweke(MODELS[name], n, least=50), PLANTED_SWEEPS)


def test_moves_that_take_a_known_component_along_are_seen(monkeypatch):
    put(monkeypatch, "Gibbs of overdispersed counts: components that move", lambda structure: None)
    check_seen(lambda n: check_geweke(MODELS[BESIDE], n, least=50), PLANTED_SWEEPS)


def wrong_dispersion_of_rows(monkeypatch):
    """Trajectories at twice the inverse dispersion."""
    place = "Gibbs of overdispersed counts: trajectories given the dispersion"
    plant(monkeypatch, place, lambda right: lambda sides, priors, alpha: right(sides, priors, 2.0 * alpha))


def wrong_exposure_of_rows(monkeypatch):
    """Trajectories that take missing cells for zeros."""

    def wrong(right):
        def unmasked(structure):
            table = right(structure)
            return table._replace(exposure=np.ones_like(table.exposure) * np.max(table.exposure, axis=1, keepdims=True))

        return unmasked

    plant(monkeypatch, "Gibbs of overdispersed counts: tables of trajectories", wrong)


def wrong_background_of_rows(monkeypatch):
    """Trajectories without the background."""
    place = "Gibbs of overdispersed counts: tables of trajectories"
    plant(monkeypatch, place, lambda right: lambda structure: right(structure)._replace(background=np.zeros((2, 3))))


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (wrong_exposure_of_rows, "alpha of samples, mask"),
        (wrong_background_of_rows, "alpha of features"),
    ],
)
def test_planted_errors_of_trajectories_are_seen(spoil, name, monkeypatch):
    spoil(monkeypatch)
    check_seen(lambda n: check_geweke(MODELS[name], n, options=TRAJECTORIES, least=50), 2_000)


# -- one cell, by quadrature ---------------------------------------------------------------------------------------


SHAPE, RATE, ALPHA, COUNTS = 1.7, 0.6, 0.9, np.array([[3.0, 0.0, 7.0]])
TUNE, ONE_CELL = 200, 4_000
GRID = np.linspace(-12.0, 6.0, 4001)  # of log w


def log_posterior_of_w():
    """log p(w, X) + log w on the grid: H of ones, W one cell."""
    w = np.exp(GRID)
    of_data = stats.nbinom.logpmf(COUNTS.T, ALPHA, ALPHA / (ALPHA + w)).sum(axis=0)
    return of_data + stats.gamma.logpdf(w, SHAPE, scale=1 / RATE) + GRID


def one_cell(**options):
    return model(COUNTS, 1, gamma(SHAPE, RATE), np.ones((1, 3)), alpha=ALPHA, **NB, **options)


@pytest.mark.parametrize("options", [ALLOCATIONS, TRAJECTORIES], ids=["allocation", "trajectories"])
def test_gibbs_has_the_exact_moments_of_one_cell(options):
    """Trajectories as the warm-up leaves them."""
    check_one_cell(options, size(ONE_CELL, 80_000))


def test_trajectories_of_another_dispersion_are_seen(monkeypatch):
    wrong_dispersion_of_rows(monkeypatch)
    check_seen(lambda n: check_one_cell(TRAJECTORIES, n), ONE_CELL)


def check_one_cell(options, sweeps):
    log_p = log_posterior_of_w()
    weights = np.exp(log_p - logsumexp(log_p))
    exact = [weights @ GRID, weights @ np.exp(GRID), weights @ np.exp(-GRID)]
    problem = gibbs.prepare(one_cell(), options, SERIAL)
    state, drawn = gibbs.init(problem, seed_key(1), {}), []
    for sweep in range(TUNE + sweeps):
        state, _ = (gibbs.tune if sweep < TUNE else gibbs.step)(problem, state, child(seed_key(2), sweep))
        drawn.append(state.W.item())
    drawn = np.array(drawn[TUNE:])
    check_means(["log w", "w", "1 / w"], np.column_stack([np.log(drawn), drawn, 1 / drawn]), exact)


def climbed(structure, steps=300, problem=None):
    problem = problem or vb.prepare(structure, VB(), SERIAL)
    state, bounds = vb.init(problem, seed_key(3), {}), []
    for _ in range(steps):
        state, info = vb.step(problem, state)
        bounds.append(info.objective)
    return np.array(bounds)


def bound_at(logs, counts, prior, means):
    """The bound of q = Gamma(a, r), multipliers at their optimal law, written anew; ``logs`` are those of a, then r.

    prior : shapes and rates of the same cells
    means : of their expectations, or of exp(E[log .]), the counts' means
    """
    (a, r), (shape, rate) = np.reshape(np.exp(logs), (2, -1)), prior
    mean, log_mean = means(a / r), np.log(means(np.exp(digamma(a) - np.log(r))))
    of_data = counts * log_mean - (counts + ALPHA) * np.log(ALPHA + mean) + ALPHA * np.log(ALPHA)
    of_data += gammaln(ALPHA + counts) - gammaln(ALPHA) - gammaln(counts + 1)
    divergence = (a - shape) * digamma(a) - gammaln(a) + gammaln(shape) + shape * (np.log(r) - np.log(rate))
    return np.sum(of_data) - np.sum(divergence + a * (rate - r) / r)


def best_bound(n_cells, *given):
    """Of the family of so many gamma cells."""
    return -optimize.minimize(lambda logs: -bound_at(logs, *given), np.zeros(2 * n_cells), method="BFGS", tol=1e-9).fun


def test_the_bound_is_the_best_of_its_family_and_below_the_exact_evidence():
    exact = np.log(integrate.trapezoid(np.exp(log_posterior_of_w()), GRID))
    bounds = climbed(one_cell())
    best = best_bound(1, COUNTS.ravel(), (SHAPE, RATE), lambda cell: np.repeat(cell, 3))
    assert np.min(np.diff(bounds)) > -1e-10
    assert bounds[-1] == pytest.approx(best, abs=1e-7)
    assert bounds[-1] < exact


def test_the_bound_of_a_known_mean_is_the_evidence():
    """With both factors known but for a prior as narrow as a point nothing is approximated."""
    narrow = model(COUNTS, 1, gamma(1e9, 1e9 / 2.5), np.ones((1, 3)), alpha=ALPHA, **NB)
    exact = stats.nbinom.logpmf(COUNTS, ALPHA, ALPHA / (ALPHA + 2.5)).sum()
    assert climbed(narrow, 20)[-1] == pytest.approx(exact, abs=1e-5)


def test_a_bound_of_other_multipliers_is_seen(monkeypatch):
    """The planted error: multipliers of one, which is Poisson's weight, let the bound fall or end lower."""
    right = climbed(one_cell())[-1]
    plant(
        monkeypatch,
        "VB of overdispersed counts: expectations",
        lambda expected: lambda *given: expected(*given[:-1], np.full_like(given[-1], 1e12)),
    )
    assert climbed(one_cell())[-1] < right - 1e-3


# -- beside a known component, by quadrature -----------------------------------------------------------------------


PAIR, LOGS = np.array([[4.0], [1.0]]), np.arange(-16.0, 4.5, 0.25)
PRIORS = (1.3, np.array([1.6, 0.7])), (0.8, np.array([1.7, 0.6]))  # shapes, then rates: of new weights and of H
SHARES = 3_000  # sweeps
OFFSETS = {"exposure": np.array([[0.4], [2.5]]), "background": np.array([[0.3], [0.6]])}
OF_NEW, OF_H = gamma(1.3, 0.8), gamma([[1.6], [0.7]], [[1.7], [0.6]])
KNOWN_COMPONENTS = {
    "of W": known_beside(model(PAIR, 2, OF_NEW, OF_H, alpha=ALPHA, **NB)),
    "of W, exposure, background": known_beside(model(PAIR, 2, OF_NEW, OF_H, alpha=ALPHA, **NB, **OFFSETS)),
    "of H": known_beside(model(PAIR.T, 2, gamma([[1.6, 0.7]], [[1.7, 0.6]]), OF_NEW, alpha=ALPHA, **NB)),
}


def exact_beside(structure):
    """(log p(X), means of the logarithms)"""
    exposure, background = offsets_of(structure)

    def log_cell(f, mean):
        return stats.nbinom.logpmf(PAIR[f, 0], ALPHA, ALPHA / (ALPHA + exposure[f] * mean + background[f]))

    (new_shape, shapes), (new_rate, rates) = PRIORS
    of_h = [stats.gamma(a, scale=1 / r).logpdf for a, r in zip(shapes, rates, strict=True)]
    return quadrature(log_cell, LOGS, stats.gamma(new_shape, scale=1 / new_rate).logpdf, of_h)


def check_beside(name, sweeps):
    structure = KNOWN_COMPONENTS[name]
    problem, kept = gibbs.prepare(structure, Gibbs(), SERIAL), []
    state = gibbs.init(problem, seed_key(4), {})
    for sweep in range(TUNE + sweeps):
        state, _ = (gibbs.tune if sweep < TUNE else gibbs.step)(problem, state, child(seed_key(5), sweep))
        kept.append({"W": state.W.copy(), "H": state.Ht.T.copy()})
    check_means(NAMES, statistics_of(stack(kept[TUNE:])), exact_beside(structure)[1])


@pytest.mark.parametrize("name", KNOWN_COMPONENTS)
def test_gibbs_has_the_exact_posterior_beside_a_known_component(name):
    check_beside(name, size(SHARES, 80_000))


def exchanged_priors(prior_cells):
    """The activations of the known component under the prior of the new one's, and these under that."""

    def exchanged(*given):
        priors = prior_cells(*given)
        return priors._replace(shape_h=priors.shape_h[:, ::-1].copy(), rate_h=priors.rate_h[:, ::-1].copy())

    return exchanged


def test_activations_under_the_priors_of_other_components_are_seen(monkeypatch):
    plant(monkeypatch, "Gibbs of overdispersed counts: priors of cells", exchanged_priors)
    check_seen(lambda n: check_beside("of W", n), SHARES)


def means_beside(structure):
    """Those of the counts by cells w1, w2, h1, h2."""
    exposure, background = offsets_of(structure)
    return lambda cells: exposure * (PROFILE * cells[2] + cells[:2] * cells[3]) + background


@pytest.mark.parametrize("name", KNOWN_COMPONENTS)
def test_the_bound_beside_a_known_component_is_the_best_of_its_family_and_below_the_exact_evidence(name):
    structure = KNOWN_COMPONENTS[name]
    bounds, prior = climbed(structure), [np.r_[new, new, of_h] for new, of_h in PRIORS]
    assert np.min(np.diff(bounds)) > -1e-10
    assert bounds[-1] == pytest.approx(best_bound(4, PAIR[:, 0], prior, means_beside(structure)), abs=1e-7)
    assert bounds[-1] < exact_beside(structure)[0]


def test_a_bound_of_means_in_the_place_of_expected_logarithms_is_seen(monkeypatch):
    """The planted error leads above what the family can reach."""

    def of_means(right):
        def moments(*given):
            q = right(*given)
            return q._replace(log=np.log(q.mean))

        return moments

    structure = KNOWN_COMPONENTS["of W"]
    right = climbed(structure)[-1]
    plant(monkeypatch, "VB of overdispersed counts: moments", of_means)
    assert climbed(structure)[-1] > right + 0.5


# -- calibration ---------------------------------------------------------------------------------------------------


def beside_templates():
    """A component of W known, one new, and an unknown dispersion; an exposure of samples."""
    with pm.Model() as declared:
        alpha = pm.Gamma("alpha", np.float64(4.0), np.float64(2.0))
        own = {"alpha_w": 1.5, "beta_w": 1.2, "alpha_h": [[2.5], [0.9]], "beta_h": [[1.7], [0.3]]}
        offsets = {"exposure": [[0.5, 1.0, 1.6, 0.8]], "shape": (3, 4)}
        nz.negative_binomial_nmf(None, 2, known=[[0.8], [1.4], [0.2]], alpha=alpha, **own, **offsets)
    return declared


def check_ranks(simulations, seed, **options):
    check_calibrated(beside_templates, ALLOCATIONS, simulations, tune=60, thin=6, seed=seed, **options)


def test_gibbs_is_calibrated_beside_a_known_component():
    """Long: simulations, each with a warm-up."""
    check_ranks(size(50, 400), seed=1)


def test_activations_under_the_priors_of_other_components_are_seen_in_ranks(monkeypatch):
    """Long: simulations, each with a warm-up."""
    plant(monkeypatch, "Gibbs of overdispersed counts: priors of cells", exchanged_priors)
    check_seen(lambda n: check_ranks(n, seed=2, least=SEEING), 50, "gate 2, uniform ranks", SEEING)

"""Gibbs and VB of normal data with errors of measurement: exact answers, Geweke's test, calibration, planted errors."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
import scipy.sparse
from scipy.integrate import cumulative_simpson, simpson
from scipy.special import log_ndtr
from scipy.stats import expon, halfnorm, kstest, norm, truncnorm

import nmf_zoo as nz
from nmf_zoo.inference.counts.gibbs import MOVES, Gibbs
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.normal import gibbs, vb
from nmf_zoo.inference.normal.squares import MeasuredCells
from nmf_zoo.kernels.normal.factor_draws import draw_cell, draw_on
from nmf_zoo.kernels.normal.factor_moments import truncated_moments
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import TruncatedNormalPrior
from tests.planted import check_seen, plant, put
from tests.sizes import size
from tests.statistical.beside_known import NAMES, known_beside, offsets_of, quadrature, statistics_of
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.gates import check_means
from tests.statistical.geweke import (
    BACKGROUND,
    EXPOSURE,
    FIXED,
    LISTED,
    MASK,
    X23,
    check_geweke,
    draw_data,
    draw_prior,
    without_jacobian,
)
from tests.structures import beside, gamma, half_normal, model, stack, truncated_normal, unknown

SWEEPS, SLOW_SWEEPS, PLANTED_SWEEPS = size(2_500, 60_000), size(5_000, 60_000), 3_000
SIGMA = np.array([[0.8, 2.0, 3.0], [1.5, 0.7, 4.0]])


# -- draws of one cell -----------------------------------------------------------------------------------------------

LAWS = [(0.0, q, s) for q, s in product((1e-4, 1.0, 300.0), (-1e3, -2.0, 0.0, 5.0))]


@pytest.mark.statistical
@pytest.mark.parametrize(("power", "precision", "shift"), LAWS)
def test_draws_of_a_truncated_normal_are_exact(power, precision, shift):
    drawn = [draw_cell(1.0, power, precision, shift, child(seed_key(1), i)) for i in range(3000)]
    mu, sigma = shift / precision, precision**-0.5
    assert kstest(drawn, truncnorm(-mu / sigma, np.inf, mu, sigma).cdf).pvalue > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("power", [-0.7, 1.5])
def test_other_shapes_are_left_as_they_are_by_a_slice(power):
    """Draws of the law, after one step each, still have it; and planted, with half the power, they don't."""
    precision, shift = 2.0, 1.0
    v = np.geomspace(1e-9, 30.0, 400_001)
    mass = cumulative_simpson(v**power * np.exp(shift * v - precision * v**2 / 2), x=v, initial=0)
    mass /= mass[-1]
    start = np.interp(np.random.default_rng(1).random(4000), mass, v)

    def moved(power):
        return [draw_cell(old, power, precision, shift, child(seed_key(2), i)) for i, old in enumerate(start)]

    assert kstest(moved(power), lambda x: np.interp(x, v, mass)).pvalue > 1e-4
    assert kstest(moved(power / 2), lambda x: np.interp(x, v, mass)).pvalue < 1e-4


def test_extremes_do_not_loop():
    for low, high, precision, shift in product((0.0, 1.0), (2.0, np.inf), (0.0, 1e-300, 1e200), (-1e150, 0.0, 1e3)):
        drawn = draw_on(low, high, precision, shift, np.uint64(1))
        assert (low <= drawn <= high) or (high == np.inf and precision == 0.0 and shift >= 0.0)


@pytest.mark.parametrize("shift", [-1e4, -80.0, -31.0, -29.0, -3.0, 0.0, 0.5, 30.0])
def test_moments_are_exact(shift):
    """Against Simpson's rule, whose grid ends where nothing is left."""
    precision = 2.5
    mean, variance, log_total = truncated_moments(precision, shift)
    mode = max(shift / precision, 0.0)
    reach = min(12.0 / precision**0.5, 60.0 / max(-shift, 1e-9))
    v = np.linspace(max(mode - reach, 0.0), mode + reach, 200_001)
    density = np.exp(shift * (v - mode) - precision * (v**2 - mode**2) / 2)
    total = simpson(density, x=v)
    expected = simpson(v * density, x=v) / total
    assert mean == pytest.approx(expected, rel=1e-8)
    assert variance == pytest.approx(simpson((v - expected) ** 2 * density, x=v) / total, rel=1e-6)
    assert log_total == pytest.approx(np.log(total) + shift * mode - precision * mode**2 / 2, rel=1e-8, abs=1e-8)


# -- exact posteriors ------------------------------------------------------------------------------------------------


def log_prior(prior, v):
    """Written anew, of one cell."""
    if isinstance(prior, TruncatedNormalPrior):
        mu, sigma = float(prior.mu.value), float(prior.sigma.value)
        return -0.5 * ((v - mu) / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi)) - log_ndtr(mu / sigma)
    return np.vectorize(lambda one: prior.log_density(np.array([[one]]), {}))(v)


PRIORS = {
    "exponential": (gamma(1.0, 0.7), gamma(1.0, 1.2)),
    "half-normal": (half_normal(1.3), half_normal(0.8)),
    "truncated normal": (truncated_normal(0.9, 0.6), truncated_normal(-0.5, 1.1)),
    "other shapes": (gamma(0.6, 0.7), gamma(2.5, 2.0)),
}
X12, SIGMA12 = np.array([[1.3, 0.4]]), np.array([[0.4, 0.9]])


def exact_of(prior_w, prior_h):
    """(log p(X), E[w], E[w^2], E[h], E[w h]) of a table of one row and two columns, by quadrature in logarithms.

    Given w the two h are independent.
    """
    log_w, log_h = np.linspace(-18.0, 3.0, 701), np.linspace(-22.0, 3.5, 1201)
    w, h = np.exp(log_w), np.exp(log_h)
    of_h = log_prior(prior_h, h) + log_h
    totals = []
    for n in range(2):
        rest = (X12[0, n] - np.outer(w, h)) / SIGMA12[0, n]
        cells = np.exp(-0.5 * rest**2 - np.log(SIGMA12[0, n] * np.sqrt(2 * np.pi)) + of_h)
        totals.append((simpson(cells, x=log_h), simpson(cells * h, x=log_h)))
    of_w = np.exp(log_prior(prior_w, w) + log_w)
    (first, with_h), (second, _) = totals
    evidence = simpson(of_w * first * second, x=log_w)
    moments = [
        of_w * w * first * second,
        of_w * w**2 * first * second,
        of_w * with_h * second,
        of_w * w * with_h * second,
    ]
    return np.log(evidence), *(simpson(own, x=log_w) / evidence for own in moments)


def chain(structure, sweeps, moves=MOVES, seed=0, tune=100):
    """States after each sweep."""
    problem, key = gibbs.prepare(structure, Gibbs(moves=moves), SERIAL), seed_key(seed)
    state, kept = gibbs.init(problem, child(key, 0), {}), []
    for sweep in range(tune + sweeps):
        state, _ = gibbs.step(problem, state, child(key, 1, sweep))
        if sweep >= tune:
            kept.append(
                {"W": state.W.copy(), "H": state.Ht.T.copy(), **{k: np.array(v) for k, v in state.values.items()}}
            )
    return stack(kept)


@pytest.mark.statistical
@pytest.mark.parametrize("moves", [MOVES, ()], ids=["moves", "none"])
@pytest.mark.parametrize("priors", PRIORS)
def test_gibbs_has_the_exact_posterior(priors, moves):
    expected = exact_of(*PRIORS[priors])[1:]
    drawn = chain(model(X12, 1, *PRIORS[priors], kind="normal", sigma=SIGMA12), size(1_500, 40_000), moves)
    w, h = drawn["W"][:, 0, 0], drawn["H"][:, 0, 0]
    check_means(["w", "w^2", "h", "w h"], np.column_stack([w, w**2, h, w * h]), np.array(expected))


@pytest.mark.parametrize("priors", ["exponential", "half-normal", "truncated normal"])
def test_the_bound_is_below_the_exact_evidence(priors):
    evidence = exact_of(*PRIORS[priors])[0]
    bounds = bounds_of(model(X12, 1, *PRIORS[priors], kind="normal", sigma=SIGMA12), 200)
    assert np.all(np.diff(bounds) >= -1e-9 * np.abs(bounds[1:]))
    assert evidence - 1.0 < bounds[-1] < evidence


def test_the_bound_is_the_evidence_where_q_is_the_posterior():
    """One unknown cell: its posterior is a truncated normal, which q is, too."""
    prior = half_normal(1.3)
    structure = model(X12, 1, prior, np.array([[0.7, 1.9]]), kind="normal", sigma=SIGMA12)
    w = np.linspace(0.0, 15.0, 200_001)
    rest = (X12[0][:, None] - np.array([[0.7], [1.9]]) * w) / SIGMA12[0][:, None]
    log_likelihood = np.sum(-0.5 * rest**2 - np.log(SIGMA12[0] * np.sqrt(2 * np.pi))[:, None], axis=0)
    density = np.exp(log_likelihood - w**2 / (2 * 1.3**2)) * np.sqrt(2 / np.pi) / 1.3
    assert bounds_of(structure, 3)[-1] == pytest.approx(np.log(simpson(density, x=w)), abs=1e-8)


def test_a_bound_of_points_is_seen(monkeypatch):
    """The planted error: each factor given the other's means alone, as if nothing were uncertain there."""

    def of_points(right):
        return lambda problem, which, q, other: right(problem, which, q, other._replace(variance=0.0 * other.variance))

    plant(monkeypatch, "VB of normal data: updates", of_points)
    priors = PRIORS["half-normal"]
    bounds = bounds_of(model(X12, 1, *priors, kind="normal", sigma=SIGMA12), 50)
    assert np.min(np.diff(bounds)) < -1e-3 or bounds[-1] > exact_of(*priors)[0]


def bounds_of(structure, iterations):
    problem = vb.prepare(structure, VB(), SERIAL)
    state, found = vb.init(problem, seed_key(1), {}), []
    for _ in range(iterations):
        state, info = vb.step(problem, state)
        found.append(info.objective)
    return np.array(found)


# -- beside a known component ----------------------------------------------------------------------------------------

X21, SIGMA21 = np.array([[1.3], [2.1]]), np.array([[0.5], [0.8]])
OFFSETS = {"exposure": np.array([[0.6], [1.7]]), "background": np.array([[0.2], [0.1]])}
LOGS, BESIDE_SWEEPS = np.arange(-14.0, 3.0, 0.14), 2_500
NARROW, HALF_NORMALS = halfnorm(scale=0.4), (halfnorm(scale=1.4), halfnorm(scale=0.6))
EXPONENTIALS, TRUNCATED = (expon(scale=1 / 0.7), expon(scale=1 / 1.6)), truncnorm(-1.5, np.inf, 0.9, 0.6)


def of_errors(x, *priors, **offsets):
    sigma = SIGMA21 if x.shape == (2, 1) else SIGMA21.T
    return known_beside(model(x, 2, *priors, kind="normal", sigma=sigma, **offsets))


# model, the same priors of SciPy: of new weights and of both activations
BESIDE = {
    "half-normal": (of_errors(X21, half_normal(0.4), half_normal([[1.4], [0.6]])), NARROW, HALF_NORMALS),
    "exposure, background": (
        of_errors(X21, truncated_normal(0.9, 0.6), gamma(1.0, [[0.7], [1.6]]), **OFFSETS),
        TRUNCATED,
        EXPONENTIALS,
    ),
    "a component of H": (of_errors(X21.T, gamma(1.0, [[0.7, 1.6]]), half_normal(0.4)), NARROW, EXPONENTIALS),
}


def exact_beside(name):
    """(log p(X), means of the logarithms)"""
    structure, prior_w, priors_h = BESIDE[name]
    exposure, background = offsets_of(structure)

    def log_cell(f, mean):
        return norm.logpdf(X21[f, 0], exposure[f] * mean + background[f], SIGMA21[f, 0])

    return quadrature(log_cell, LOGS, prior_w.logpdf, [own.logpdf for own in priors_h])


def check_beside(name, sweeps, moves=MOVES):
    draws = chain(BESIDE[name][0], sweeps, moves)
    check_means(NAMES, statistics_of(draws), exact_beside(name)[1])


@pytest.mark.statistical
@pytest.mark.parametrize("moves", [MOVES, ()], ids=["moves", "none"])
@pytest.mark.parametrize("name", BESIDE)
def test_gibbs_has_the_exact_posterior_beside_a_known_component(name, moves):
    check_beside(name, size(BESIDE_SWEEPS, 40_000), moves)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["half-normal", "a component of H"])
def test_moves_that_take_a_known_component_along_are_seen(monkeypatch, name):
    put(monkeypatch, "Gibbs of normal data: whether components may move", True)
    check_seen(lambda n: check_beside(name, n), BESIDE_SWEEPS)


@pytest.mark.parametrize("name", BESIDE)
def test_the_bound_is_below_the_exact_evidence_beside_a_known_component(name):
    evidence, _ = exact_beside(name)
    bounds = bounds_of(BESIDE[name][0], 200)
    assert np.all(np.diff(bounds) >= -1e-9 * np.abs(bounds[1:]))
    assert evidence - 0.5 < bounds[-1] < evidence


def test_a_bound_with_priors_of_known_cells_is_seen(monkeypatch):
    """The planted error: constants of the prior for known cells, too; it is narrow, so that these are above 0."""
    plant(
        monkeypatch,
        "VB of normal data: constants of the priors",
        lambda right: lambda factor: right(dataclasses.replace(factor, known=None)),
    )
    assert bounds_of(BESIDE["half-normal"][0], 200)[-1] > exact_beside("half-normal")[0] + 1.0


# -- Geweke ----------------------------------------------------------------------------------------------------------

EXPONENTIAL = gamma(1.0, [[0.9, 1.6]])
MODELS = {
    "errors per cell": model(X23, 2, EXPONENTIAL, half_normal([[1.4], [0.6]]), kind="normal", sigma=SIGMA),
    "per feature": model(
        X23, 2, half_normal([[0.7, 1.8]]), truncated_normal(0.6, 0.8), kind="normal", sigma=SIGMA[:, :1]
    ),
    "other shapes": model(X23, 2, gamma([[0.8, 2.0]], 1.5), gamma(1.5, 1.2), kind="normal", sigma=SIGMA),
    "mask, exposure, background": model(
        *(X23, 2, EXPONENTIAL, half_normal(0.9), MASK, EXPOSURE, BACKGROUND), kind="normal", sigma=SIGMA
    ),
    "listed cells": model(X23, 2, EXPONENTIAL, half_normal(0.9), data=LISTED, kind="normal", sigma=SIGMA),
    "a known factor": model(X23, 2, FIXED, half_normal(0.9), kind="normal", sigma=SIGMA[:1]),
    "one sigma": model(
        X23, 2, EXPONENTIAL, half_normal(0.9), kind="normal", sigma=unknown("s", "inverse_gamma", 6.0, 10.0)
    ),
    "a sigma per feature": model(
        *(X23, 2, EXPONENTIAL, half_normal(0.9)),
        kind="normal",
        sigma=unknown("s", "gamma", 6.0, 3.0, variable_shape=(2,), shape=(2, 1)),
        mask=MASK,
    ),
    "a sigma per sample": model(
        *(X23, 2, EXPONENTIAL, half_normal(0.9)),
        kind="normal",
        sigma=unknown("s", "lognormal", 0.6, 0.3, variable_shape=(3,), shape=(1, 3)),
        data=LISTED,
    ),
    "a rate": model(X23, 2, gamma(1.0, unknown("r", "gamma", 5.0, 4.0)), half_normal(0.9), kind="normal", sigma=SIGMA),
}
PARTLY = model(X23, 3, half_normal([[0.7, 1.8]]), half_normal(0.8), kind="normal", sigma=SIGMA)
MODELS["a component of W is known"] = dataclasses.replace(
    PARTLY, W=beside(PARTLY.W, [[0.8, 0.0, 0.0], [1.4, 0.0, 0.0]], (1, 3))
)


SLOW = "other shapes", "a rate", "errors per cell"  # 0.06 to 0.09 draws a sweep; a precision is missed late


def simulate_successively(structure, sweeps, moves, seed, step):
    """One sweep given X, then X given the factors, in turn."""
    rng, key, step = np.random.default_rng(seed), seed_key(seed), step or gibbs.step
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    problem = gibbs.prepare(structure, Gibbs(moves=moves), SERIAL)
    state = gibbs.init(problem, child(key, 0), start)
    kept = []
    for sweep in range(sweeps):
        X = draw_data(structure, state.W, state.Ht.T, rng, state.values)
        data = structure.data
        values = X[data.rows, data.cols] if data is LISTED else X
        given = dataclasses.replace(structure, data=dataclasses.replace(data, values=values))
        problem.squares.y = MeasuredCells(given).y
        weighted = None if problem.weighted is None else problem.squares.weigh({})
        problem = dataclasses.replace(problem, structure=given, weighted=weighted)
        values = {name: np.array(value) for name, value in state.values.items()}
        kept.append({"W": state.W.copy(), "H": state.Ht.T.copy(), "X": X, **values})
        state, _ = step(problem, state, child(key, 1, sweep))
    return stack(kept)


def geweke(structure, sweeps, **options):
    check_geweke(structure, sweeps, MOVES, 1, simulate_successively=simulate_successively, **options)


@pytest.mark.statistical
@pytest.mark.parametrize("name", MODELS)
def test_joint_draws_agree(name):
    """Long: thousands of sweeps, data drawn anew between them in Python."""
    geweke(MODELS[name], SLOW_SWEEPS if name in SLOW else SWEEPS)


def without_priors_of_W(move_shears):
    def shear(W, Ht, of_W, of_H, key):
        move_shears(W, Ht, of_H._replace(**{name: 0.0 * term for name, term in of_W._asdict().items()}), of_H, key)

    return shear


PLANTED = {
    "precision in place of its root": ("normal data: precisions", lambda right: lambda *given: np.sqrt(right(*given))),
    "no rate": (
        "Gibbs of normal data: priors of cells",
        lambda right: lambda *given: right(*given)._replace(rate=0.0 * right(*given).rate),
    ),
    "no Jacobian of sigma": ("Gibbs of normal data: slices", without_jacobian),
    "a shear without W's prior": ("Gibbs of normal data: shears", without_priors_of_W),
}


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("precision in place of its root", "errors per cell"),
        ("no rate", "errors per cell"),
        ("no Jacobian of sigma", "one sigma"),
        ("a shear without W's prior", "per feature"),
    ],
)
def test_planted_errors_are_seen(monkeypatch, wrong, name):
    plant(monkeypatch, *PLANTED[wrong])
    check_seen(lambda n: geweke(MODELS[name], n, least=50), PLANTED_SWEEPS)  # wrong chains may mix slowly


# -- calibration, recovery -------------------------------------------------------------------------------------------


@pytest.mark.statistical
def test_gibbs_is_calibrated():
    """Long: simulations, each with a warm-up."""
    sigma = np.random.default_rng(1).uniform(0.2, 1.0, (4, 5))

    def declare():
        return nz.normal_nmf(None, 2, beta_w=1.0, sigma_h=1.5, sigma=sigma, shape=(4, 5))

    check_calibrated(declare, "gibbs", size(50, 400), tune=150, thin=5, seed=1)


def stored_cells_beside_a_known_component():
    """Of the cells that a sparse matrix stores, with an exposure of features and samples; two components are new."""
    stored = scipy.sparse.csr_array([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
    exposure = np.array([[0.7], [1.0], [1.5]]), np.array([[0.5, 1.0, 1.6, 0.8]])
    own = {"known": [[0.8], [1.4], [0.2]], "sigma_w": 1.2, "sigma_h": 1.5, "sigma": 0.4, "exposure": exposure}
    return nz.normal_nmf(stored, 3, observed="stored", **own)


@pytest.mark.statistical
def test_gibbs_is_calibrated_of_stored_cells_beside_a_known_component():
    """Long: simulations, each with a warm-up."""
    check_calibrated(stored_cells_beside_a_known_component, "gibbs", size(50, 400), tune=60, thin=6, seed=1)


@pytest.mark.statistical
def test_a_precision_in_place_of_its_root_is_seen_in_ranks(monkeypatch):
    """Long: simulations, each with a warm-up."""
    plant(monkeypatch, *PLANTED["precision in place of its root"])
    check_seen(
        lambda n: check_calibrated(
            stored_cells_beside_a_known_component, "gibbs", n, tune=60, thin=6, seed=2, least=SEEING
        ),
        50,
        "gate 2, uniform ranks",
        SEEING,
    )


@pytest.mark.statistical
def test_sources_and_intervals():
    """Simulated sources, errors known per cell: 90 % intervals hold the truth, and weighing is better than not.

    Cells of one table err together, so that what its intervals hold is 0.03 from table to table.
    """
    held = []
    for seed in range(size(4, 20)):
        rng = np.random.default_rng(seed)
        truth = rng.dirichlet(np.full(12, 0.4), 3).T @ rng.gamma(2.0, 5.0, (3, 60))
        sigma = 0.02 + 0.1 * truth
        sigma[::3] *= 10.0  # species that are measured badly
        X = np.maximum(truth + sigma * rng.standard_normal(truth.shape), 0.0)
        weighted = nz.normal_nmf(X, 3, sigma=sigma, beta_w=4.0, beta_h=0.1)
        post = nz.sample(250, tune=250, chains=2, model=weighted, engine="gibbs", random_seed=1, quiet=True).posterior
        mean = np.einsum("cdfk,cdkn->cdfn", post["W"].to_numpy(), post["H"].to_numpy()).reshape(-1, *truth.shape)
        low, high = np.quantile(mean, [0.05, 0.95], axis=0)
        held.append(np.mean((low < truth) & (truth < high)))
        plain = nz.fit(model=nz.normal_nmf(X, 3), engine="em", search=None, random_seed=1, quiet=True)["posterior"]
        unweighted = plain["W"].to_numpy()[0, 0] @ plain["H"].to_numpy()[0, 0]
        errors = [np.mean(((found - truth) / sigma) ** 2) for found in (mean.mean(axis=0), unweighted)]
        assert errors[0] < 0.2 * errors[1]
    assert abs(np.mean(held) - 0.9) < 4 * 0.03 / np.sqrt(len(held))

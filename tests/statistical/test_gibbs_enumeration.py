"""Gibbs against exact posteriors of enumerable problems: allocations by chi-square, factors by the two gates."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from tests.planted import check_seen, plant, put
from tests.sizes import size
from tests.statistical.enumeration import Case, check_draws, check_sources, enumerate_posterior
from tests.statistical.geweke import with_sums
from tests.structures import beside, gamma, model, sample_gibbs, unknown

pytestmark = pytest.mark.statistical
SWEEPS = size(2_500, 80_000)

X22 = np.array([[2.0, 1.0], [0.0, 3.0]])
MASK22 = np.array([[True, True], [False, True]])
EXPOSURE22 = np.array([[0.5, 2.0], [1.0, 1.5]])
BACKGROUND22 = np.array([[0.7, 0.2], [0.4, 1.1]])
CELLS22 = {"mask": MASK22, "exposure": EXPOSURE22, "background": BACKGROUND22}
W22 = np.array([[0.8, 1.9], [1.4, 0.3]])
A22, R22 = np.array([[0.6, 1.7], [2.4, 0.9]]), np.array([[1.3, 0.4], [0.8, 2.1]])
X12 = np.array([[3.0, 2.0]])


def fixed_left(**cells):
    return Case(structure=model(X22, 2, W22, gamma(A22, R22), **cells), priors=lambda v: (1.0, 0.0, A22, R22))


def fixed_right(**cells):
    structure = model(X22, 2, gamma(A22, R22), W22, **cells)
    return Case(structure=structure, priors=lambda v: (A22, R22, 1.0, 0.0), transposed=True)


def wide(prior_w, prior_h, priors, x=X12, **options):
    """One feature, two samples: a plane of log W."""
    hyper = options.pop("hyper", {})
    w_grid = options.pop("w_grid", np.arange(-45.0, 8.0, 0.5))
    structure = model(x, options.pop("rank", 2), prior_w, prior_h, **options)
    return Case(structure=structure, priors=priors, hyper=hyper, w_grid=w_grid)


def tall(prior_w, prior_h, priors, **options):
    """The same turned over: two features, one sample, so that the features are the long side."""
    case = wide(prior_w, prior_h, priors, x=options.pop("x", X12.T), **options)
    return dataclasses.replace(case, transposed=True)


def partly_known(of_w=True, **cells):
    """Two features and two samples with one component of W known, or of H."""
    known, free = [[0.8, 0.0], [1.4, 0.0]], gamma([[0.6], [2.4]], [[1.3], [0.8]])
    if of_w:
        structure = model(X22, 2, free, gamma(A22, R22), **cells)
        structure = dataclasses.replace(structure, W=beside(structure.W, known, (1, 2)))
        return Case(structure=structure, priors=lambda v: ([[0.6], [2.4]], [[1.3], [0.8]], A22, R22))
    structure = model(X22, 2, gamma(A22, R22), gamma([[0.6, 2.4]], [[1.3, 0.8]]), **cells)
    structure = dataclasses.replace(structure, H=beside(structure.H, np.transpose(known), (1, 2)))
    return Case(structure=structure, priors=lambda v: (A22, R22, [[0.6, 2.4]], [[1.3, 0.8]]), transposed=True)


def new_beside_known(prior_w, prior_h, priors, **options):
    """One feature, two samples, of three components the first known."""
    case = wide(prior_w, prior_h, priors, rank=3, w_grid=np.arange(-24.0, 8.0, 0.5), **options)
    structure = case.structure
    W = beside(structure.W, [[0.8, 0.0, 0.0]], (1, 3))
    return dataclasses.replace(case, structure=dataclasses.replace(structure, W=W))


def log_gamma_prior(a, r):
    return stats.gamma(a, scale=1 / r).logpdf


LOG_GRID = np.arange(-4.0, 3.0, 0.25)
HEAVY = np.arange(-40.0, 12.0, 0.5)  # with a flat factor
COARSE = np.arange(-36.0, 6.0, 0.75)  # with several hyperparameters
SHAPE = unknown("a", "gamma", 12.0, 8.0)
HYPER_A = {"a": (LOG_GRID, log_gamma_prior(12, 8))}
RATE_H = unknown("r", "lognormal", 0.3, 0.6, variable_shape=(2,), shape=(2, 1))
MEAN_W = unknown("m", "inverse_gamma", 5.0, 4.0)
RATE_W = unknown("s", "half_normal", 1.5)
MEAN_H = unknown("u", "uniform", 0.2, 2.5)
RATE_OF_ROW = unknown("u", "gamma", 4.0, 3.0, variable_shape=(1,), shape=(1, 1))
RATE_OF_COLUMN = unknown("v", "gamma", 5.0, 4.0, variable_shape=(1,))
LOG_RATES = np.arange(-5.0, 2.6, 0.4)
COLUMN = np.array([[0.7], [2.2]])
ROW = np.array([[0.8, 1.6]])

CASES = {
    "W fixed": lambda: fixed_left(),
    "W fixed, mask, exposure, background": lambda: fixed_left(**CELLS22),
    "H fixed": lambda: fixed_right(),
    "H fixed, mask, exposure, background": lambda: fixed_right(**CELLS22),
    "a component of W": lambda: partly_known(),
    "a component of H, mask, exposure, background": lambda: partly_known(of_w=False, **CELLS22),
    "rate of new components": lambda: new_beside_known(
        gamma(0.8, RATE_W),
        gamma(0.9, 0.8),
        lambda v: (0.8, v["s"], 0.9, 0.8),
        hyper={"s": (np.arange(-12.0, 2.2, 0.5), stats.halfnorm(scale=1.5).logpdf)},
    ),
    "one shape of new components and of H": lambda: new_beside_known(
        gamma(SHAPE, 1.5), gamma(SHAPE, 0.8), lambda v: (v["a"], 1.5, v["a"], 0.8), hyper=HYPER_A
    ),
    "both gamma": lambda: wide(gamma(ROW, 1.5), gamma(A22, R22), lambda v: (ROW, 1.5, A22, R22)),
    "both gamma, tall": lambda: tall(gamma(A22, R22), gamma(COLUMN, 0.7), lambda v: (A22, R22, COLUMN, 0.7)),
    "mask, exposure, background": lambda: wide(
        gamma(ROW, 1.5),
        gamma(COLUMN, 0.8),
        lambda v: (ROW, 1.5, COLUMN, 0.8),
        x=np.array([[2.0, 1.0, 4.0]]),
        mask=[[True, True, False]],
        exposure=[[0.6, 1.7, 1.0]],
        background=[[0.5, 0.9, 0.3]],
    ),
    "flat W": lambda: wide(
        None,
        gamma(2.5, 0.7),
        lambda v: (1.0, 0.0, 2.5, 0.7),
        x=np.array([[2.0, 1.0]]),
        w_grid=HEAVY,
    ),
    "flat H": lambda: tall(
        gamma(2.5, 0.7),
        None,
        lambda v: (2.5, 0.7, 1.0, 0.0),
        x=np.array([[2.0], [1.0]]),
        w_grid=HEAVY,
    ),
    "shape of W": lambda: wide(
        gamma(SHAPE, 1.5),
        gamma(0.9, 0.8),
        lambda v: (v["a"], 1.5, 0.9, 0.8),
        hyper=HYPER_A,
    ),
    "one shape of both": lambda: wide(
        gamma(SHAPE, 1.5),
        gamma(SHAPE, 0.8),
        lambda v: (v["a"], 1.5, v["a"], 0.8),
        hyper=HYPER_A,
    ),
    "Gamma(a, a) and its rate": lambda: wide(
        gamma(SHAPE, SHAPE),
        gamma(1.3, SHAPE),
        lambda v: (v["a"], v["a"], 1.3, v["a"]),
        hyper=HYPER_A,
    ),
    "rates of H by component": lambda: wide(
        gamma(ROW, 1.5),
        gamma(0.9, RATE_H),
        lambda v: (ROW, 1.5, 0.9, v["r"][:, None]),
        hyper={"r": (np.arange(-3.0, 3.6, 0.4), stats.lognorm(0.6, scale=np.exp(0.3)).logpdf)},
        w_grid=COARSE,
    ),
    "mean of W, shape of H": lambda: wide(
        gamma(0.8, mean=MEAN_W),
        gamma(SHAPE, mean=1.4),
        lambda v: (0.8, 0.8 / v["m"], v["a"], v["a"] / 1.4),
        hyper={
            "m": (np.arange(-2.5, 4.0, 0.3), stats.invgamma(5.0, scale=4.0).logpdf),
            "a": (np.arange(-3.0, 2.5, 0.3), log_gamma_prior(12, 8)),
        },
        w_grid=COARSE,
    ),
    "rate of W, mean of H, tall": lambda: tall(
        gamma(0.8, RATE_W),
        gamma(1.2, mean=MEAN_H),
        lambda v: (0.8, v["s"], 1.2, 1.2 / v["u"]),
        hyper={
            "s": (np.arange(-12.0, 2.2, 0.5), stats.halfnorm(scale=1.5).logpdf),
            # the uniform density jumps, hence the midpoint rule between its ends
            "u": (midpoints(np.log(0.2), np.log(2.5), 25), stats.uniform(0.2, 2.3).logpdf),
        },
        w_grid=COARSE,
    ),
    "hpf": lambda: wide(
        gamma(0.8, RATE_OF_ROW),
        gamma(1.3, RATE_OF_COLUMN),
        lambda v: (0.8, v["u"], 1.3, v["v"]),
        x=np.array([[3.0]]),
        hyper={"u": (LOG_RATES, log_gamma_prior(4, 3)), "v": (LOG_RATES, log_gamma_prior(5, 4))},
        w_grid=COARSE,
    ),
    "ard": lambda: by_relevance(
        "inverse_gamma", (np.arange(-2.5, 3.5, 0.3), stats.invgamma(6.0, scale=5.0).logpdf), lambda t: 1 / t
    ),
    "ard of rates": lambda: by_relevance("gamma", (np.arange(-3.5, 2.5, 0.3), log_gamma_prior(6, 5)), lambda t: t),
}


def by_relevance(kind, hyper, rate_of):
    """One for each component, shared by its cells in W and H, which are exponential."""
    of_w, of_h = (unknown("t", kind, 6.0, 5.0, variable_shape=(2,), shape=shape) for shape in ((1, 2), (2, 1)))
    priors = [gamma(1.0, own) if kind == "gamma" else gamma(1.0, mean=own) for own in (of_w, of_h)]

    def numbers(v):
        rate = rate_of(v["t"])
        return 1.0, rate, 1.0, rate[:, None]

    return wide(*priors, numbers, x=np.array([[2.0, 1.0]]), hyper={"t": hyper}, w_grid=COARSE)


def midpoints(first, last, n):
    return first + (last - first) * (np.arange(n) + 0.5) / n


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_exact_posterior(name):
    """Long: chi-square wants 250 independent draws."""
    case = CASES[name]()
    check_draws(case, sample_gibbs(case.structure, SWEEPS, seed=1))


@pytest.mark.parametrize("moves", [(), ("scale",), ("shear",)])
@pytest.mark.parametrize("name", ["both gamma", "flat H"])
def test_each_move_alone(name, moves):
    case = CASES[name]()
    check_draws(case, sample_gibbs(case.structure, 2 * SWEEPS, moves=moves, seed=2))


# -- the exact side, checked on its own ----------------------------------------------------------------------------


def test_one_component_has_a_closed_form():
    """K = 1, W fixed: h ~ Gamma(a + sum x, r + sum w), and only one allocation."""
    w, a, r = np.array([[0.4], [1.2]]), 0.7, 1.9
    exact = enumerate_posterior(Case(structure=model(X22, 1, w, gamma(a, r)), priors=lambda v: (1.0, 0.0, a, r)))
    assert len(exact.probabilities) == 1
    for n, total in enumerate(X22.sum(axis=0)):
        law = stats.gamma(a + total, scale=1 / (r + 1.6))
        np.testing.assert_allclose(exact.means[f"log H0{n}"], law.expect(np.log), rtol=1e-8)


def test_grid_is_fine_and_wide_enough():
    """Halving the step or widening the grid does not move the answer."""
    case = CASES["both gamma"]()
    exact = enumerate_posterior(case).means
    for grid in (np.arange(-60.0, 10.0, 0.5), np.arange(-45.0, 8.0, 0.25)):
        other = enumerate_posterior(dataclasses.replace(case, w_grid=grid)).means
        np.testing.assert_allclose(list(other.values()), list(exact.values()), atol=1e-6)


# -- planted errors ------------------------------------------------------------------------------------------------


def planted_weights(wrong):
    """The engine with the wrong mask * exposure."""

    def weigh(structure):
        weight = wrong(structure)
        return SimpleNamespace(
            over_samples=lambda Ht: weight @ Ht, over_features=lambda W: weight.T @ W, total=lambda W, Ht: 0.0
        )

    return weigh


def test_a_dropped_prior_rate_is_seen(monkeypatch):
    case = CASES["W fixed"]()
    plant(monkeypatch, "Gibbs: priors of cells", lambda right: lambda *arguments: drop_rates(right(*arguments)))
    check_seen(lambda n: check_draws(case, sample_gibbs(case.structure, n, seed=1)), SWEEPS)


def drop_rates(priors):
    return priors._replace(rate_w=0 * priors.rate_w, rate_h=0 * priors.rate_h)


WRONG_WEIGHTS = {
    "mask inverted": lambda s: ~s.data.mask * s.likelihood.exposure,
    "mask forgotten": lambda s: s.likelihood.exposure,
    "exposure forgotten": lambda s: s.data.mask * 1.0,
}


@pytest.mark.parametrize("name", WRONG_WEIGHTS)
def test_planted_weights_are_seen(name, monkeypatch):
    case = CASES["W fixed, mask, exposure, background"]()
    put(monkeypatch, "Gibbs: weights of cells", planted_weights(WRONG_WEIGHTS[name]))
    check_seen(lambda n: check_draws(case, sample_gibbs(case.structure, n, seed=1)), SWEEPS)


def test_a_forgotten_background_is_seen(monkeypatch):
    case = CASES["W fixed, mask, exposure, background"]()
    plant(monkeypatch, "Gibbs: layout of the counts", lambda right: lambda s: right(s)._replace(offset=np.empty(0)))
    check_seen(lambda n: check_draws(case, sample_gibbs(case.structure, n, seed=1)), SWEEPS)


@pytest.mark.parametrize("name", ["hpf", "ard"])
def test_rates_of_twice_the_cells_are_seen(name, monkeypatch):
    """Without scale moves, which draw the rate of all W anew and hide it."""
    plant(monkeypatch, "hyperparameters: sums of groups", with_sums(lambda s: s._replace(n_cells=2 * s.n_cells)))
    case = CASES[name]()
    check_seen(lambda n: check_draws(case, sample_gibbs(case.structure, n, moves=("shear",), seed=1)), SWEEPS)


def test_wrong_allocations_are_seen_in_the_allocations():
    """A C drawn with one wrong weight, next to right factors."""
    x = np.array([[5.0, 4.0], [1.0, 2.0]])
    case = Case(structure=model(x, 2, W22, gamma(A22, R22)), priors=lambda v: (1.0, 0.0, A22, R22))
    wrong = model(x, 2, W22 * [[1.5, 1.0], [1.0, 1.0]], gamma(A22, R22))
    right = enumerate_posterior(case)
    check_seen(lambda n: check_sources(right, sample_gibbs(wrong, n, seed=1)), SWEEPS, r"gate 2, chi-square.*for")


def test_too_few_draws_are_refused():
    case = CASES["both gamma"]()
    with pytest.raises(AssertionError, match="gate 1"):
        check_draws(case, sample_gibbs(case.structure, 100, seed=1))

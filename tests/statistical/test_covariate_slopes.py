"""Covariates of samples: Gibbs by exact moments, by Geweke's test and by calibration; slopes are recovered."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import digamma

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts import gibbs, slopes
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Unknown
from tests.planted import check_seen, plant, put
from tests.sizes import size
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.gates import LEAST, check_means
from tests.statistical.geweke import (
    BACKGROUND,
    DRAWS_OF_HYPER_PRIORS,
    X23,
    check_same_means,
    draw_factor_prior,
    free_part,
    laid_out_cells,
    mean_of,
    with_every_cell_laid_out,
)
from tests.structures import beside, gamma, log_linear, model, stack, unknown

pytestmark = pytest.mark.statistical

# -- exact moments -------------------------------------------------------------------------------------------------

COUNTS = np.array([[4.0, 9.0, 1.0, 0.0], [0.0, 6.0, 3.0, 2.0]])
WEIGHTS, DESIGN = np.array([[1.0], [0.6]]), np.array([[0.5, 1.0], [1.5, 0.0], [-1.0, 0.3], [0.2, -1.2]])
ALPHA, MU, SIGMA = 1.2, np.array([0.3, -0.2]), np.array([0.8, 1.1])
OF_MEAN = 4.0, 9.0  # shape and scale of the inverse-gamma prior of the mean
DRAWS, PLANTED = size(3_000, 40_000), 3_000


def exact_moments():
    """Of slopes, their squares and product, of log m and of log h: H in closed form, the others on a grid."""
    slopes, log_m = np.linspace(-5.0, 5.0, 81), np.linspace(-4.0, 5.0, 91)
    first, second, log_m = np.meshgrid(slopes, slopes, log_m, indexing="ij")
    log_p = -((first - MU[0]) ** 2 / SIGMA[0] ** 2 + (second - MU[1]) ** 2 / SIGMA[1] ** 2) / 2
    log_p += -OF_MEAN[0] * log_m - OF_MEAN[1] * np.exp(-log_m)
    log_h = []
    for counts, covariates in zip(COUNTS.sum(axis=0), DESIGN, strict=True):
        log_rate = np.log(ALPHA) - log_m - covariates[0] * first - covariates[1] * second
        log_total = np.log(np.exp(log_rate) + WEIGHTS.sum())
        log_p += ALPHA * log_rate - (ALPHA + counts) * log_total
        log_h.append(digamma(ALPHA + counts) - log_total)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return [np.sum(p * own) for own in (first, second, first**2, second**2, first * second, log_m, *log_h)]


def draw_moments(trajectories, draws):
    """The same of a chain, W known."""
    prior = log_linear(gamma(ALPHA, mean=unknown("m", "inverse_gamma", *OF_MEAN)), DESIGN, MU, SIGMA, rank=1)
    problem = gibbs.prepare(model(COUNTS, 1, WEIGHTS, prior), Gibbs(trajectories=trajectories), SERIAL)
    state, kept = gibbs.init(problem, seed_key(1), {}), []
    for sweep in range(draws + 200):
        state, _ = (gibbs.tune if sweep < 200 else gibbs.step)(problem, state, child(seed_key(2), sweep))
        first, second = state.values["slopes"][0]
        of_slopes = first, second, first**2, second**2, first * second
        kept.append([*of_slopes, float(np.log(state.values["m"])), *np.log(state.Ht[:, 0])])
    return np.array(kept[200:])


def check_exact(trajectories="never", draws=PLANTED):
    """Raise unless the moments of slopes and of log H are exact."""
    expected = exact_moments()
    check_means([str(i) for i in range(len(expected))], draw_moments(trajectories, draws), expected)


@pytest.mark.parametrize("trajectories", ["never", "always"])
def test_moments_are_exact(trajectories):
    check_exact(trajectories, DRAWS)


def check_moments_tell(trajectories="never"):
    check_seen(lambda n: check_exact(trajectories, n), PLANTED, "gate 2, standard errors")


def test_slopes_of_other_activations_are_seen(monkeypatch):
    plant(monkeypatch, "Gibbs: slopes", lambda right: lambda structure, H, *rest: right(structure, 1.3 * H, *rest))
    check_moments_tell("always")


def test_a_prior_of_slopes_that_is_forgotten_is_seen(monkeypatch):
    put(
        monkeypatch,
        "covariates: prior of slopes",
        lambda own: (np.zeros(own.shape), np.full(own.shape, 1.5)),
    )
    check_moments_tell()


def test_means_that_forget_the_covariates_are_seen(monkeypatch):
    """The planted error: hyperparameters learned from H as if covariates did nothing."""
    put(monkeypatch, "Gibbs: effects of covariates", lambda structure, values: np.ones(structure.H.shape[::-1]))
    check_moments_tell()


# -- two ways to draw ----------------------------------------------------------------------------------------------

SWEEPS, PLANTED_SWEEPS = size(1_500, 30_000), 1_500
OF_SAMPLES = DESIGN[:3]
W_PRIOR, BASE = gamma(np.array([[0.9, 2.0]]), 1.5), gamma(np.array([[1.6], [0.9]]), 1.7)
FREE_MEAN = gamma(1.6, mean=unknown("m", "inverse_gamma", 9.0, 8.0, variable_shape=(2,), shape=(2, 1)))


def plain(prior_h, **options):
    return model(X23, 2, W_PRIOR, prior_h, **options)


def beside_known():
    """One component of H known, and another of W."""
    whole = plain(log_linear(gamma(1.6, 1.7), OF_SAMPLES, 0.1, 0.4, rank=1))
    known = beside(whole.H, np.array([[0.7, 1.4, 0.3], [0.0, 0.0, 0.0]]), (1, 2))
    return type(whole)(likelihood=whole.likelihood, W=whole.W, H=known, data=whole.data)


MODELS = {
    "means unknown": plain(log_linear(FREE_MEAN, OF_SAMPLES, [0.2, -0.3], [[0.3, 0.4], [0.35, 0.5]])),
    "covariates first, background": plain(
        log_linear(BASE, OF_SAMPLES, [0.2, -0.3], 0.4, transposed=True), background=BACKGROUND
    ),
    "known component": beside_known(),
}


def draw_prior(structure, n, rng):
    """n draws of the hyperparameters, W and H."""
    prior, values = structure.H.prior, {}
    covariates = prior.covariates
    mu, sigma = prior.covariates.variable.prior.args
    values[covariates.variable.name] = rng.normal(mu, sigma, (n, *covariates.variable.variable_shape))
    for own in prior.base.parameters.values():
        if isinstance(own, Unknown):
            draw = DRAWS_OF_HYPER_PRIORS[own.prior.kind]
            values[own.name] = draw(rng, (n, *own.variable_shape), *own.prior.args)
    effects = np.stack([covariates.effects({covariates.variable.name: own}) for own in values["slopes"]])
    base = slopes.at_base(structure).H
    values["W"] = draw_factor_prior(structure.W, values, n, rng)
    H = draw_factor_prior(base, values, n, rng)
    free_part(base, H)[...] *= effects
    return {**values, "H": H}


def quantities(structure, draws):
    """Slopes; logarithms of all else that is drawn, of means and of data."""
    n, tables = len(draws["X"]), [draws["slopes"]]
    tables += [np.log(draws[name]) for name in structure.unknowns if name != "slopes"]
    tables += [np.log(draws["W"]), np.log(free_part(structure.H, draws["H"]))]
    tables += [np.log(mean_of(structure, draws["W"], draws["H"])), np.log1p(draws["X"])]
    table = np.concatenate([own.reshape(n, -1) for own in tables], axis=1)
    return table[:, np.std(table, axis=0) > 0.0]


def check_geweke(structure, sweeps=SWEEPS, seed=0, least=LEAST):
    """Raise unless prior and data agree with a chain that alternates sweeps and data."""
    rng, n, key = np.random.default_rng(seed), 4 * sweeps, seed_key(seed)
    marginal = draw_prior(structure, n, rng)
    marginal["X"] = rng.poisson(mean_of(structure, marginal["W"], marginal["H"]))
    problem = gibbs.prepare(with_every_cell_laid_out(structure), Gibbs(), SERIAL)
    start = {name: value[0] for name, value in draw_prior(structure, 1, rng).items()}
    state, kept, cells = gibbs.init(problem, child(key, 0), start), [], laid_out_cells(problem.layout)
    for sweep in range(sweeps):
        now = {"W": state.W.copy(), "H": state.Ht.T.copy(), **{name: np.array(v) for name, v in state.values.items()}}
        now["X"] = rng.poisson(mean_of(structure, now["W"], now["H"]))
        kept.append(now)
        problem.layout.values[:] = now["X"][cells]
        state, _ = gibbs.step(problem, state, child(key, 1, sweep))
    check_same_means(quantities(structure, marginal), quantities(structure, stack(kept)), least)


@pytest.mark.parametrize("name", MODELS)
def test_two_ways_to_draw_agree(name):
    """Long: 3,000 sweeps in Python, and products of all pairs of quantities."""
    check_geweke(MODELS[name])


def test_activations_under_stale_slopes_are_seen(monkeypatch):
    """The planted error: H drawn under the slopes at which the chain began. Long: 3,000 sweeps in Python."""

    def wrong(right):
        began = {}
        return lambda structure, values: right(
            structure, {**values, "slopes": began.setdefault("slopes", np.array(values["slopes"]))}
        )

    plant(monkeypatch, "Gibbs: priors of cells", wrong)
    structure = MODELS["covariates first, background"]
    check_seen(lambda n: check_geweke(structure, n, least=50), PLANTED_SWEEPS, "gate 2, standard errors")


# -- calibration ---------------------------------------------------------------------------------------------------

SIMULATIONS, THIN, TUNE = size(50, 1000), size(3, 12), size(60, 300)


def declare():
    priors = {"alpha_w": 1.2, "beta_w": 1.5, "alpha_h": 0.9, "mean_h": 2.0}
    return nz.gamma_nmf(None, 2, design=DESIGN, slopes=0.6, shape=(3, 4), **priors)


def test_ranks_are_uniform():
    """Long: simulations, each with a warm-up."""
    check_ranks(SIMULATIONS)


def check_ranks(simulations, **options):
    check_calibrated(declare, nz.Gibbs(trajectories="always"), simulations, tune=TUNE, thin=THIN, seed=1, **options)


def test_a_prior_of_other_slopes_is_seen(monkeypatch):
    """The planted error: draws as if the prior of slopes were half as wide."""

    def narrow(right):
        return lambda own: (right(own)[0], right(own)[1] / 2.0)

    plant(monkeypatch, "covariates: prior of slopes", narrow)
    check_seen(lambda n: check_ranks(n, least=SEEING), 50, "gate 2, uniform ranks", SEEING)


# -- recovery ------------------------------------------------------------------------------------------------------


def table_of(seed):
    """(X, design, W, slopes) of counts whose components depend on a trait and on a treatment."""
    rng = np.random.default_rng(seed)
    design = np.stack([rng.normal(size=60), np.repeat([-0.5, 0.5], 30)], axis=1)
    W, truth = rng.gamma(0.5, 1.0, (20, 2)), rng.normal(0.0, 0.8, (2, 2))
    H = rng.gamma(2.0, 4.0 * np.exp(truth @ design.T))
    return rng.poisson(W @ H), design, W, truth


def test_slopes_are_recovered_with_the_coverage_of_their_intervals():
    """Slopes drawn from the prior lie in nine of ten intervals of 90 %."""
    inside, errors, spread = [], [], []
    for seed in range(size(10, 60)):
        X, design, W, truth = table_of(seed)
        priors = {"alpha_w": 0.5, "beta_w": 1.0, "alpha_h": 2.0, "beta_h": 0.25}
        declared = nz.gamma_nmf(X, 2, design=design, slopes=0.8, **priors)
        run = {"draws": 300, "tune": 150, "chains": 1, "engine": "gibbs", "random_seed": seed, "quiet": True}
        posterior = _compat.group(nz.sample(model=declared, **run), "posterior")
        found = posterior["W"].to_numpy()[0].mean(axis=0)
        order = linear_sum_assignment(-np.corrcoef(W.T, found.T)[:2, 2:])[1]
        drawn = posterior["slopes"].to_numpy()[0][:, order]
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        inside.append((low <= truth) & (truth <= high))
        errors.append(drawn.mean(axis=0) - truth)
        spread.append(truth)
    share, n = np.mean(inside), np.size(inside)
    assert abs(share - 0.9) < 4 * np.sqrt(0.09 / n), f"{share:.3f} of {n} intervals of 90 % hold the truth"
    assert np.std(errors) < 0.5 * np.std(spread)

"""Gibbs with half-normal factors: its draws against exact laws, Geweke's test, calibration; then planted errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.integrate import cumulative_simpson, quad
from scipy.stats import halfnorm, kstest, poisson

import nmf_zoo as nz
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.kernels.random.modified_half_normal import (
    draw_half_normal_factor,
    draw_modified_half_normal,
    propose_until_accepted,
)
from tests.planted import check_seen, plant
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
    X32,
    check_geweke,
    with_sums,
    without_change_of_volume,
)
from tests.statistical.test_gibbs_geweke import beside
from tests.structures import gamma, half_normal, model, sample_gibbs, unknown

SWEEPS = size(2_000, 60_000)
PLANTED_SWEEPS = 2_000
LAWS = [(s, c, q) for s in (1.0, 2.0, 9.0, 1e4) for c in (0.0, 1e-3, 1.0, 300.0) for q in (1e-6, 0.5, 40.0)]


def draws_of(shape, rate, curve, n, seed=0):
    cells = (np.full((n, 1), value) for value in (shape, rate, curve))
    out = np.empty((n, 1))
    draw_half_normal_factor(out, *cells, 0, n, seed_key(seed))
    return out[:, 0]


def exact_cdf(shape, rate, curve):
    """By Simpson's rule in log w, 12 standard deviations and more to either side of its peak."""
    mode = 2 * shape / (rate + np.sqrt(rate**2 + 4 * curve * shape))
    spread = 1 / np.sqrt(rate * mode + 2 * curve * mode**2)
    logs = np.log(mode) + spread * np.linspace(-40, 12, 20_001)
    w = np.exp(logs)
    log_density = shape * (logs - np.log(mode)) - rate * (w - mode) - curve * (w**2 - mode**2) / 2
    mass = cumulative_simpson(np.exp(log_density), x=logs, initial=0)
    return lambda v: np.interp(np.log(v), logs, mass / mass[-1])


@pytest.mark.statistical
@pytest.mark.parametrize(("shape", "rate", "curve"), LAWS)
def test_draws_have_the_exact_distribution(shape, rate, curve):
    drawn = draws_of(shape, rate, curve, 4000)
    assert kstest(drawn, exact_cdf(shape, rate, curve)).pvalue > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", ["the rate", "the curve", "a count"])
def test_a_wrong_law_is_seen(wrong):
    right = 3.0, 1.0, 0.5
    planted = {"the rate": (3.0, 1.2, 0.5), "the curve": (3.0, 1.0, 0.8), "a count": (2.5, 1.0, 0.5)}[wrong]
    assert kstest(draws_of(*planted, 4000), exact_cdf(*right)).pvalue < 1e-4


@pytest.mark.parametrize("share", [0.0, 1e-12, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", [1.0, 3.0, 1e6, 1e14])
def test_most_proposals_are_accepted(shape, share):
    counts = [propose_until_accepted(shape * (1 - share), shape * share, np.uint64(key))[1] for key in range(400)]
    assert np.mean(counts) < 1.8


def test_what_is_no_law_gives_nan_and_extremes_do_not_loop():
    for wrong in [(0.5, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0), (np.inf, 1.0, 1.0), (1.0, np.nan, 1.0)]:
        assert np.isnan(draw_modified_half_normal(*wrong, np.uint64(1)))
    tiny, huge = 1e-300, 1e300
    for extreme in [(1.0, 0.0, tiny), (1.0, 0.0, huge), (1e15, 1e-200, 1e-280), (2.0, huge, huge), (1.0, tiny, 1.0)]:
        assert 0 <= draw_modified_half_normal(*extreme, np.uint64(1)) < np.inf


# -- posteriors that are known ---------------------------------------------------------------------------------------


@pytest.mark.statistical
def test_one_cell_has_the_exact_moments():
    """x ~ Poisson(w h), h known, w half-normal."""
    h, x, sigma = 1.7, 5, 1.2
    drawn = sample_gibbs(model([[x]], 1, half_normal(sigma), np.array([[h]])), size(4000, 20_000))["W"].ravel()

    def moment(power):
        return quad(lambda w: w ** (x + power) * np.exp(-w * h - w**2 / (2 * sigma**2)), 0, np.inf)[0]

    expected = np.array([moment(power) / moment(0) for power in (1, 2)])
    check_means(["w", "w^2"], np.column_stack([drawn, drawn**2]), expected)


BESIDE, LOGS = np.array([[4.0], [1.0]]), np.arange(-14.0, 3.0, 0.2)  # beside one known of two components
NEW, KNOWN_AND_NEW = halfnorm(scale=1.3), (halfnorm(scale=1.4), halfnorm(scale=0.6))
BESIDE_SWEEPS = 2_000


def check_beside_a_known_component(sweeps):
    structure = known_beside(model(BESIDE, 2, half_normal(1.3), half_normal([[1.4], [0.6]]), exposure=[[0.4], [2.5]]))
    exposure, _ = offsets_of(structure)

    def log_cell(f, mean):
        return poisson.logpmf(BESIDE[f, 0], exposure[f] * mean)

    _, expected = quadrature(log_cell, LOGS, NEW.logpdf, [own.logpdf for own in KNOWN_AND_NEW])
    check_means(NAMES, statistics_of(sample_gibbs(structure, sweeps, seed=3)), expected)


@pytest.mark.statistical
def test_beside_a_known_component_it_has_the_exact_posterior():
    check_beside_a_known_component(size(BESIDE_SWEEPS, 60_000))


@pytest.mark.statistical
def test_another_precision_is_seen_by_quadrature(monkeypatch):
    plant(monkeypatch, "Gibbs: precisions of half-normal cells", lambda right: lambda *given: 0.6 * right(*given))
    check_seen(check_beside_a_known_component, BESIDE_SWEEPS)


# -- Geweke ----------------------------------------------------------------------------------------------------------

SIGMAS_W, SIGMAS_H = [[0.7, 1.8]], [[1.4], [0.6]]


def by_component(role, kind, *args, of):
    return half_normal(**{role: unknown("t", kind, *args, variable_shape=(2,), shape=(1, 2) if of == "W" else (2, 1))})


def little(prior_w, prior_h, **options):
    return model(X23, 2, prior_w, prior_h, exposure=[[0.3, 0.2, 0.4]], **options)


MODELS = {
    "plain": model(X23, 2, half_normal(SIGMAS_W), half_normal(SIGMAS_H)),
    "tall": model(X32, 2, half_normal(SIGMAS_W), half_normal(SIGMAS_H)),
    "rank 1": model(X23, 1, half_normal(0.6), half_normal(1.9)),
    "of cells and rows": model(X23, 2, half_normal([[0.6, 2.1], [1.3, 0.4]]), half_normal([[1.6, 0.5, 1.0]])),
    "beside gammas": model(X23, 2, gamma([[0.5, 2.0]], 0.8), half_normal(SIGMAS_H), background=BACKGROUND),
    "beside a known factor": model(X23, 2, FIXED, half_normal(SIGMAS_H), exposure=EXPOSURE),
    "mask": model(X23, 2, half_normal(SIGMAS_W), gamma([[1.6], [0.7]], 1.7), mask=MASK),
    "listed cells, exposure": model(
        X23, 2, half_normal(SIGMAS_W), half_normal(SIGMAS_H), data=LISTED, exposure=EXPOSURE
    ),
    "variances of both": little(
        by_component("variance", "inverse_gamma", [6.0, 4.0], [5.0, 4.0], of="W"),
        by_component("variance", "inverse_gamma", [6.0, 4.0], [5.0, 4.0], of="H"),
    ),
    "precisions of both": little(
        by_component("precision", "gamma", [6.0, 4.0], [5.0, 3.0], of="W"),
        by_component("precision", "gamma", [6.0, 4.0], [5.0, 3.0], of="H"),
    ),
    "a variance and a mean": little(
        by_component("variance", "inverse_gamma", [6.0, 4.0], [5.0, 4.0], of="W"),
        gamma(0.9, mean=unknown("t", "inverse_gamma", [6.0, 4.0], [5.0, 4.0], variable_shape=(2,), shape=(2, 1))),
    ),
    "sigmas of W": little(by_component("sigma", "lognormal", 0.2, 0.4, of="W"), gamma([[1.6], [0.7]], 1.7)),
    "a precision of H, log-normal": little(
        gamma([[0.5, 2.0]], 0.8), half_normal(precision=unknown("p", "lognormal", 0.2, 0.5))
    ),
}
PARTLY_KNOWN = model(X23, 3, half_normal([[0.7, 1.8]]), half_normal([[1.4], [0.6], [1.0]]), exposure=EXPOSURE)
MODELS["a component of W is known"] = dataclasses.replace(
    PARTLY_KNOWN, W=beside(PARTLY_KNOWN.W, [[0.8, 0.0, 0.0], [1.4, 0.0, 0.0]], (1, 3))
)


@pytest.mark.statistical
@pytest.mark.parametrize("name", MODELS)
def test_joint_draws_agree(name):
    sweeps = max(SWEEPS, 3_000) if name == "variances of both" else SWEEPS  # of which errors are seen late
    check_geweke(MODELS[name], sweeps, seed=1)


@pytest.mark.statistical
def test_without_the_scale_move():
    check_geweke(MODELS["plain"], SWEEPS, moves=(), seed=2)


def check_is_seen(name, **options):
    check_seen(
        lambda n: check_geweke(MODELS[name], n, seed=4, least=50, **options), PLANTED_SWEEPS, "gate 2, standard errors"
    )


@pytest.mark.statistical
@pytest.mark.parametrize("by", [0.6, 1.6])
def test_another_precision_is_seen(by, monkeypatch):
    plant(
        monkeypatch,
        "Gibbs: precisions of half-normal cells",
        lambda right: lambda *given: None if right(*given) is None else by * right(*given),
    )
    check_is_seen("plain", moves=())


@pytest.mark.statistical
def test_a_scale_without_the_change_of_volume_is_seen(monkeypatch):
    plant(monkeypatch, "half-normal cells: density along a scale", without_change_of_volume)
    check_is_seen("plain")


@pytest.mark.statistical
def test_squares_that_are_not_halved_are_seen(monkeypatch):
    plant(monkeypatch, "hyperparameters: sums of groups", with_sums(lambda sums: sums._replace(total=2 * sums.total)))
    check_is_seen("variances of both")


@pytest.mark.statistical
def test_a_count_too_many_is_seen(monkeypatch):
    plant(monkeypatch, "Gibbs: half-normal cells", lambda right: lambda out, shape, *rest: right(out, shape + 1, *rest))
    check_is_seen("plain", moves=())


# -- calibration -----------------------------------------------------------------------------------------------------

ARD = nz.ARD(cells="half-normal")
PRECISIONS = nz.ARD(shape=4.0, scale=2.0, cells="half-normal", law="gamma")


def precisions_beside_a_known_component():
    return nz.gamma_nmf(None, 3, known=[[0.8], [1.4], [0.2]], prior=PRECISIONS, shape=(3, 4))


@pytest.mark.statistical
@pytest.mark.parametrize(
    "declare",
    [
        lambda: nz.poisson_nmf(None, 2, sigma_w=[0.7, 1.8], sigma_h=[[1.4], [0.6]], shape=(3, 4)),
        lambda: nz.gamma_nmf(None, 2, prior=ARD, shape=(3, 4)),
        precisions_beside_a_known_component,
    ],
    ids=["half-normals", "ard", "ard of precisions beside a known component"],
)
def test_ranks_are_uniform(declare):
    """Long: a chain for each simulation."""
    check_calibrated(declare, "gibbs", size(50, 1000), tune=size(40, 150), thin=size(4, 12), seed=1)


@pytest.mark.statistical
def test_squares_that_are_not_halved_are_seen_in_ranks(monkeypatch):
    """Long: a chain for each simulation."""
    plant(monkeypatch, "hyperparameters: sums of groups", with_sums(lambda sums: sums._replace(total=2 * sums.total)))
    check_seen(
        lambda n: check_calibrated(
            precisions_beside_a_known_component, "gibbs", n, tune=40, thin=4, seed=2, least=SEEING
        ),
        50,
        "gate 2, uniform ranks",
        SEEING,
    )

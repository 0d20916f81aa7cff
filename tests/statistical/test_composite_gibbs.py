"""Geweke's test and calibration of composite Gibbs: masks, exposure, background, hyperpriors; planted errors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.powers import gibbs
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.composite_chain import simulate_successively
from tests.statistical.geweke import (
    BACKGROUND,
    EXPOSURE,
    FIXED,
    LISTED,
    MASK,
    X23,
    X32,
    check_geweke,
    drop_jacobian,
    step_on,
)
from tests.structures import beside, inverse_gamma, model, unknown

pytestmark = pytest.mark.statistical
SWEEPS = size(2_500, 60_000)
PLANTED_SWEEPS, SHEARS = 4_000, 6_000
SIMULATIONS, PLANTED_SIMULATIONS = size(50, 1000), 50
THIN, TUNE = size(8, 16), size(80, 200)

power_model = partial(model, kind="exponential")

# No two priors are alike, so that an exchange of factors, components or signs shows.
COMPONENTS_W, COMPONENTS_H = np.array([[1.5, 3.0]]), np.array([[2.6], [1.2]])


def plain(**options):
    return power_model(X23, 2, inverse_gamma(COMPONENTS_W, 0.8), inverse_gamma(COMPONENTS_H, 1.7), **options)


def partly_known(**options):
    """Rank 3 with the first component of W known, 0 in one frequency."""
    W, H = inverse_gamma([[1.5, 3.0]], 0.8), inverse_gamma([[2.6], [1.2], [1.9]], 1.7)
    structure = power_model(X23, 3, W, H, **options)
    return replace(structure, W=beside(structure.W, [[0.8, 0.0, 0.0], [0.0, 0.0, 0.0]], (1, 3)))


MODELS = {
    "plain": plain(),
    "tall": power_model(X32, 2, inverse_gamma(COMPONENTS_W, 0.8), inverse_gamma(COMPONENTS_H, 1.7)),
    "rank 3": power_model(
        np.zeros((2, 2)),
        3,
        inverse_gamma([[1.5, 3.0, 2.0]], [[1.0, 0.6, 2.0]]),
        inverse_gamma([[2.6], [1.2], [1.9]], 1.7),
    ),
    "square": power_model(np.zeros((2, 2)), 2, inverse_gamma(2.5, 1.0), inverse_gamma(2.7, 1.2)),
    "rank 1": power_model(X23, 1, inverse_gamma(1.1, 0.8), inverse_gamma(2.9, 1.7)),
    "heavy tails": power_model(X23, 2, inverse_gamma(0.6, 0.3), inverse_gamma(0.9, 0.2)),
    "light tails": power_model(X23, 2, inverse_gamma(9.0, 4.0), inverse_gamma(15.0, 6.0)),
    "every cell its own": power_model(
        X23,
        2,
        inverse_gamma([[1.6, 3.1], [2.3, 1.4]], [[0.5, 2.0], [1.0, 0.3]]),
        inverse_gamma([[1.6, 2.5, 2.0], [1.7, 2.5, 1.2]], [[1.0, 2.0, 0.5], [0.8, 1.5, 3.0]]),
    ),
    "mask": plain(mask=MASK),
    "exposure": plain(exposure=EXPOSURE),
    "exposure of frames": plain(exposure=[[0.4, 1.0, 2.5]]),
    "background": plain(background=BACKGROUND),
    "background, rank 1": power_model(X23, 1, inverse_gamma(1.1, 0.8), inverse_gamma(2.9, 1.7), background=BACKGROUND),
    "mask, exposure, background": plain(mask=MASK, exposure=EXPOSURE, background=BACKGROUND),
    "listed cells, exposure": plain(data=LISTED, exposure=EXPOSURE),
    "W known": power_model(X23, 2, FIXED, inverse_gamma(COMPONENTS_H, 1.7), exposure=EXPOSURE),
    "a component of W known": partly_known(exposure=EXPOSURE),
    "H known": power_model(X32, 2, inverse_gamma(COMPONENTS_W, 1.7), FIXED, mask=MASK.T),
}

BY_COMPONENT = unknown("b", "inverse_gamma", 4.0, 5.0, variable_shape=(2,), shape=(2, 1))
HYPER_MODELS = {
    "shape of W, scales of H by component": power_model(
        X23, 2, inverse_gamma(unknown("a", "gamma", 12.0, 5.0), 0.8), inverse_gamma(2.3, BY_COMPONENT), mask=MASK
    )
}

check = partial(check_geweke, simulate_successively=simulate_successively)


@pytest.mark.parametrize("name", MODELS)
def test_all_moves(name):
    sweeps = 4 * SWEEPS if name == "heavy tails" else SWEEPS  # they mix slowly
    check(MODELS[name], sweeps, seed=1)


@pytest.mark.parametrize("moves", [(), ("scale",), ("shear",)])
@pytest.mark.parametrize("name", ["plain", "rank 3", "mask, exposure, background"])
def test_each_move(name, moves):
    sweeps = max(SWEEPS, SHEARS) if moves == ("shear",) else SWEEPS  # whose errors are seen late
    check(MODELS[name], sweeps, moves=moves, seed=5)


def test_compiled_sweeps():
    """As where frames lie in one chunk."""
    compiled = partial(simulate_successively, is_compiled=True)
    check_geweke(MODELS["mask, exposure, background"], SWEEPS, seed=6, simulate_successively=compiled)


@pytest.mark.parametrize("name", HYPER_MODELS)
def test_hyperparameters(name):
    check(HYPER_MODELS[name], SWEEPS, seed=2)


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(structure, moves=(), sweeps=PLANTED_SWEEPS, **options):
    """Wrong chains may mix slowly."""
    check_seen(
        lambda n: check(structure, n, moves=moves, seed=3, least=50, **options), sweeps, "gate 2, standard errors"
    )


def sweep_in_numpy(draw_powers, between=lambda problem, state, key: None):
    """A sweep without moves, with powers (F, K, N) by a function of W, H and the data; ``between`` comes before W."""

    def step(problem, state, key):
        rng, given, power = np.random.default_rng(int(key)), problem.given, problem.frames.spectra.power.T
        variances = state.Wt.T[:, :, None] * state.Ht.T
        C = draw_powers(variances, power[:, None], rng)
        scale_h = given.scale_h + np.sum(C / state.Wt.T[:, :, None], axis=0).T
        state.Ht[:] = scale_h / rng.gamma(given.shape_h)
        between(problem, state, key)
        scale_w = given.scale_w + np.sum(C / state.Ht.T, axis=2).T
        state.Wt[:] = scale_w / rng.gamma(given.shape_w)
        return state, None

    return step


def correct_prior_draws(variances, power, rng):
    parts = rng.normal(size=(2, *variances.shape)) * np.sqrt(variances / 2)
    c, total = parts[0] + 1j * parts[1], variances.sum(axis=1, keepdims=True)
    return np.abs(c + variances / total * (np.sqrt(power) - c.sum(axis=1, keepdims=True))) ** 2


def expect(variances, power, rng):
    share = variances / variances.sum(axis=1, keepdims=True)
    return share**2 * power + variances * (1 - share)


def move_early(*moves):
    def between(problem, state, key):
        gibbs.move_along_orbit(moves, state.factors, problem.given, problem.priors, key)

    return between


def test_the_sweep_in_numpy_is_right():
    check(MODELS["square"], SWEEPS, seed=4, step=sweep_in_numpy(correct_prior_draws))


def test_expected_powers_instead_of_draws_are_seen():
    """What is right for EM and for averages is wrong inside Gibbs."""
    check_is_seen(MODELS["plain"], step=sweep_in_numpy(expect))


def test_a_shear_between_the_powers_and_a_factor_is_seen():
    """It changes what the powers say."""
    one_cell = power_model(np.zeros((1, 1)), 3, inverse_gamma(2.5, 1.0), inverse_gamma(2.7, 1.2))
    step = sweep_in_numpy(correct_prior_draws, move_early("shear"))
    check_is_seen(one_cell, sweeps=2 * PLANTED_SWEEPS, step=step)


def test_a_scale_at_that_place_is_right():
    check(MODELS["square"], SWEEPS, seed=4, step=sweep_in_numpy(correct_prior_draws, move_early("scale")))


def with_given(wrong):
    """A sweep by wrong(Given, priors) in the place of the factors' laws given the powers."""
    return step_on(gibbs, lambda problem: replace(problem, given=wrong(problem.given, problem.priors)))


WRONG_GIVENS = {
    "F instead of alpha + F": lambda given, priors: given._replace(shape_h=given.shape_h - priors.shape_h.T),
    "N instead of alpha + N": lambda given, priors: given._replace(shape_w=given.shape_w - priors.shape_w),
    "half the scales of H": lambda given, _: given._replace(scale_h=given.scale_h / 2),
    "half the scales of W": lambda given, _: given._replace(scale_w=given.scale_w / 2),
}


@pytest.mark.parametrize("name", WRONG_GIVENS)
def test_wrong_conditionals_are_seen(name):
    """Where the priors say much, so that little of them is missed soon."""
    check_is_seen(MODELS["light tails"], sweeps=PLANTED_SWEEPS // 2, step=with_given(WRONG_GIVENS[name]))


WRONG_TILTS = {
    "of the other sign": lambda tilt: -tilt,
    "one too large": lambda tilt: tilt + 1,
    "of shapes that count cells": lambda tilt: tilt + 3.0 - 2.0,
}


@pytest.mark.parametrize("name", WRONG_TILTS)
def test_a_wrong_order_of_the_scales_law_is_seen(name):
    wrong = with_given(lambda given, _: given._replace(tilt=WRONG_TILTS[name](given.tilt)))
    check_is_seen(MODELS["plain"], moves=("scale",), step=wrong)


def test_an_exchanged_scale_is_seen(monkeypatch):
    """c on the wrong side: 1 / c has another law."""
    plant(
        monkeypatch,
        "Gibbs of powers: scaling of the factors",
        lambda right: lambda factors, scale: right(factors, 1 / scale),
    )
    check_is_seen(MODELS["rank 1"], moves=("scale",))


def test_new_components_with_the_priors_of_others_are_seen():
    exchanged = with_given(lambda given, _: given._replace(shape_w=given.shape_w[[0, 2, 1]]))
    check_is_seen(MODELS["a component of W known"], step=exchanged)


WRONG_SHEARS = {
    "half the scales": lambda aw, bw, ah, bh: (aw, bw / 2, ah, bh / 2),
    "shapes one too large": lambda aw, bw, ah, bh: (aw + 1, bw, ah + 1, bh),
    "shapes of the other component": lambda aw, bw, ah, bh: (aw[::-1].copy(), bw, ah[::-1].copy(), bh),
}


@pytest.mark.parametrize("name", WRONG_SHEARS)
def test_a_wrong_shear_is_seen(name, monkeypatch):
    wrong = WRONG_SHEARS[name]
    plant(
        monkeypatch,
        "Gibbs of powers: shears",
        lambda right: lambda W, H, *rest: right(W, H, *wrong(*rest[:-1]), rest[-1]),
    )
    check_is_seen(MODELS["plain"], moves=("shear",))


def with_spectra(wrong):
    """A sweep that sees wrong(Spectra)."""

    def other(problem):
        frames = problem.frames
        return replace(problem, frames=frames._replace(spectra=wrong(frames.spectra)))

    return step_on(gibbs, other)


def test_an_inverted_mask_is_seen():
    check_is_seen(MODELS["mask"], step=with_spectra(lambda spectra: spectra._replace(seen=~spectra.seen)))


def test_a_forgotten_background_is_seen():
    forgotten = with_spectra(lambda spectra: spectra._replace(background=np.empty((0, 0))))
    check_is_seen(MODELS["background"], step=forgotten)


def test_a_missing_jacobian_of_hyperparameters_is_seen(monkeypatch):
    drop_jacobian(monkeypatch)
    check_is_seen(next(iter(HYPER_MODELS.values())), sweeps=PLANTED_SWEEPS // 2)


# -- calibration ---------------------------------------------------------------------------------------------------

MASK34 = np.array([[True, False, True, True], [True, True, False, True], [False, True, True, True]])
PRIORS = {"alpha_w": 2.2, "beta_w": 1.5, "alpha_h": 1.8, "beta_h": 0.6}


def with_known_profiles():
    free = nz.is_nmf(None, 2, alpha_h=[[1.7], [2.8]], beta_h=[[0.5], [1.2]], shape=(3, 4))
    return pm.do(free, {"W": np.array([[0.8, 1.9], [1.4, 0.3], [0.2, 1.1]])})


CALIBRATED = {
    "is_nmf": lambda: nz.is_nmf(None, 2, **PRIORS, shape=(3, 4)),
    "is_nmf, mask": lambda: nz.is_nmf(np.ones((3, 4)), 2, **PRIORS, mask=MASK34),
    "known profiles": with_known_profiles,
    "a component of W known": lambda: nz.is_nmf(None, 3, known=[[0.8], [0.0], [0.2]], **PRIORS, shape=(3, 4)),
}
check_ranks = partial(check_calibrated, engine=nz.Gibbs(trajectories="never"), tune=TUNE, thin=THIN)


@pytest.mark.parametrize("name", CALIBRATED)
def test_ranks_are_uniform(name):
    check_ranks(CALIBRATED[name], simulations=SIMULATIONS, seed=1)


def test_a_dropped_prior_scale_is_seen_by_ranks(monkeypatch):
    plant(
        monkeypatch,
        "Gibbs of powers: conditionals",
        lambda right: lambda *arguments: right(*arguments)._replace(scale_h=np.zeros((4, 2))),
    )
    check_seen(
        lambda n: check_ranks(CALIBRATED["known profiles"], simulations=n, seed=2, least=SEEING),
        PLANTED_SIMULATIONS,
        "gate 2, uniform ranks",
        SEEING,
    )

"""Gamma chains and BGAR beside powers: Geweke's test of Gibbs, EM's monotone path to a flat point; planted errors."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.counts.em import EM
from nmf_zoo.inference.smooth import power_em, power_gibbs
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.geweke import BACKGROUND, EXPOSURE, FIXED, MASK, X23
from tests.statistical.smooth_geweke import (
    bgar,
    check_geweke,
    forget_the_draw_before,
    gamma_chain,
    replaced,
    with_prior,
)
from tests.structures import gamma, inverse_gamma, model, unknown

POWERS = {"kind": "exponential"}
W_PRIOR = inverse_gamma(np.array([[4.0, 5.0]]), 3.0)
CHAIN = gamma_chain([[6.0], [4.0]], [[4.0], [7.0]], 0.7, (4.0, 3.0))
OFFSETS = {"exposure": EXPOSURE, "background": BACKGROUND, "mask": MASK & [[True, False, True]]}
SHAPE = unknown("a", "gamma", 9.0, 2.0)
MODELS = {
    "gamma chain": model(X23, 2, W_PRIOR, CHAIN, **POWERS),
    "gamma chain, gamma W, offsets, a missing time": model(X23, 2, gamma(3.0, 2.0), CHAIN, **OFFSETS, **POWERS),
    "gamma chain, W known, one shape": model(X23, 2, FIXED, gamma_chain(SHAPE, SHAPE, 0.9, (3.0, 3.0)), **POWERS),
    "bgar": model(X23, 2, W_PRIOR, bgar([[4.0], [3.0]], [[2.0], [1.5]], [[0.5], [0.3]]), **POWERS),
}
SWEEPS = 2_500


@pytest.mark.statistical
@pytest.mark.parametrize("name", MODELS)
def test_two_ways_to_draw_agree(name):
    """Long: sweeps go one by one in Python, with new data after each."""
    check_geweke(power_gibbs, MODELS[name], size(SWEEPS, 60_000))


DATA = "Gibbs of smooth powers: terms of the data"


def forget_the_sources(monkeypatch):
    """H drawn as if every cell had half of its sources' powers."""
    plant(monkeypatch, DATA, lambda right: lambda power, rate, scale: right(power, rate, 0.5 * scale))


def mistake_a_cell(monkeypatch):
    """One cell of each frame too many in the power of h."""
    plant(monkeypatch, DATA, lambda right: lambda power, rate, scale: right(power - 1.0, rate, scale))


def mistake_what_comes(monkeypatch):
    """H drawn as if more came and less stayed."""
    plant(monkeypatch, "BGAR: activations", with_prior(lambda prior: replaced(prior, rho=0.4 * prior.rho.value)))


def forget_the_next_time(monkeypatch):
    """H drawn as if the time after said more."""
    plant(
        monkeypatch,
        "gamma chain: activations",
        with_prior(lambda prior: replaced(prior, alpha_z=2.0 * prior.alpha_z.value)),
    )


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (forget_the_sources, "gamma chain"),
        (mistake_a_cell, "gamma chain, gamma W, offsets, a missing time"),
        (forget_the_next_time, "gamma chain"),
        (mistake_what_comes, "bgar"),
    ],
)
def test_planted_errors_are_seen(spoil, name, monkeypatch):
    """Long: as many sweeps as the tests that expect none."""
    spoil(monkeypatch)
    check_seen(lambda n: check_geweke(power_gibbs, MODELS[name], n, least=50), SWEEPS)


# -- EM ----------------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(6)
F, K, N = 5, 2, 8
MEAN = RNG.gamma(2.0, 1.0, (F, K)) @ np.exp(np.cumsum(0.3 * RNG.normal(size=(K, N)), axis=1))
X = RNG.exponential(MEAN)
SEEN = RNG.random((F, N)) < 0.8
SEEN[:, 3] = False
PRIOR = gamma_chain([[3.0], [8.0]], [[2.0], [9.0]], 0.9, (2.0, 1.5))
FITTED = {
    "inverse-gamma W": model(X, K, inverse_gamma(2.0, 1.5), PRIOR, **POWERS),
    "gamma W, missing": model(X, K, gamma(1.5, 0.8), PRIOR, mask=SEEN, background=np.full((F, N), 0.2), **POWERS),
    "W known": model(X, K, RNG.gamma(2.0, 1.0, (F, K)), PRIOR, exposure=RNG.uniform(0.5, 2.0, (F, N)), **POWERS),
}


def fitted(structure, options, steps):
    """(the last state, the objectives)"""
    assert power_em.supports(structure, options)
    problem = power_em.prepare(structure, options, SERIAL)
    state, found = power_em.init(problem, seed_key(3), {}), []
    for _ in range(steps):
        state, info = power_em.step(problem, state)
        found.append(info.objective)
    return state, np.array(found)


def log_joint(structure, W, Ht):
    """In the logarithms."""
    return (
        structure.log_joint({"W": W, "H": Ht.T}) + np.log(Ht).sum() + (0.0 if structure.W.is_fixed else np.log(W).sum())
    )


def largest_slope(structure, state):
    """Of the log joint in the logarithm of any cell, by central differences."""
    found = []
    for which in (1,) if structure.W.is_fixed else (0, 1):
        for at in np.ndindex(state[which].shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = [state.W.copy(), state.Ht.copy()]
                moved[which][at] *= np.exp(sign * 1e-5)
                ends.append(log_joint(structure, *moved))
            found.append((ends[0] - ends[1]) / 2e-5)
    return np.max(np.abs(found))


@pytest.mark.parametrize("accelerate", ["newton", None])
@pytest.mark.parametrize("name", FITTED)
def test_em_never_loses_and_stops_where_the_density_is_flat(name, accelerate):
    options = EM(mode="log", accelerate=accelerate)
    state, objective = fitted(FITTED[name], options, 3_000 if accelerate is None else 800)
    assert np.max(np.diff(objective)) <= 1e-9 * np.abs(objective[-1])
    assert objective[-1] == pytest.approx(-log_joint(FITTED[name], state.W, state.Ht), rel=1e-10)
    assert largest_slope(FITTED[name], state) < 1e-2


def test_a_wrong_minorant_is_seen(monkeypatch):
    """The planted error: z without the shape of the draw before."""
    plant(monkeypatch, "EM of smooth chains: law of auxiliaries", forget_the_draw_before)
    state, objective = fitted(FITTED["inverse-gamma W"], EM(mode="log", accelerate=None), 300)
    assert np.max(np.diff(objective)) > 1e-3 or largest_slope(FITTED["inverse-gamma W"], state) > 0.1

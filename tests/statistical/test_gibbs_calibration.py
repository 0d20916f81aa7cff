"""Simulation-based calibration of Gibbs as it runs, from its own start, on models of the zoo; then planted errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
import scipy.sparse

import nmf_zoo as nz
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.geweke import drop_jacobian, with_sums

pytestmark = pytest.mark.statistical
SIMULATIONS, PLANTED = size(100, 1000), 50  # on some of the models a missing Jacobian takes 100
THIN, TUNE = size(6, 12), size(60, 150)
ALLOCATIONS = nz.Gibbs(trajectories="never")

MASK = np.array([[True, False, True, True], [True, True, False, True], [False, True, True, True]])
TEMPLATES = np.array([[0.8, 1.9], [1.4, 0.3], [0.2, 1.1]])
ACTIVATIONS = [[0.6, 1.9, 0.4, 1.0]]
EXPOSURE = np.array([[0.4], [1.0], [2.5]]), np.array([[0.5, 1.0, 1.6, 0.8]])
RATES = nz.ARD(shape=4.0, scale=2.0, law="gamma")
W_PRIOR, H_PRIOR = {"alpha_w": 1.2, "beta_w": 1.5}, {"alpha_h": 0.8, "beta_h": 0.6}


def with_known_templates(X, **priors):
    """GaP whose W is given. It may be called inside a model that declares hyperparameters."""
    return pm.do(nz.gap(X, 2, **priors), {"W": TEMPLATES})


def with_unknown_rates(prior=pm.Gamma, args=(6.0, 4.0), n_samples=4, alpha_h=((0.7,), (1.8,))):
    """Of each component's activations; which component is which, the templates say."""
    with pm.Model():
        rates = prior("r", *args, shape=(2, 1))
        return with_known_templates(None, alpha_h=alpha_h, beta_h=rates, shape=(3, n_samples))


def with_unknown_shape_and_mean():
    with pm.Model():
        unknown = {"alpha_h": pm.Gamma("a", 8.0, 6.0), "mean_h": pm.LogNormal("m", 0.2, 0.5)}
        return nz.gamma_nmf(None, 2, **W_PRIOR, **unknown, shape=(3, 4))


def beside(known):
    """Two components known, and one with a rate that is not."""
    return nz.gamma_nmf(None, 3, known=known, prior=nz.HPF(shape=3.0), alpha_w=1.2, alpha_h=0.8, shape=(3, 4))


KNOWN = {
    "gamma_nmf": lambda: nz.gamma_nmf(None, 2, **W_PRIOR, **H_PRIOR, shape=(3, 4)),
    "gamma_nmf, mask": lambda: nz.gamma_nmf(np.ones((3, 4)), 2, **W_PRIOR, **H_PRIOR, mask=MASK),
    "gap with known templates": lambda: with_known_templates(
        None, alpha_h=[[0.7], [1.8]], beta_h=[[0.5], [1.2]], shape=(3, 4)
    ),
}
UNKNOWN = {
    "gap, rates unknown": lambda: with_unknown_rates(),
    "gamma_nmf, shape and mean unknown": with_unknown_shape_and_mean,
}


def known_in_both():
    """One component of W known and another of H, of three; an exposure of features and samples, and a background."""
    offsets = {"exposure": EXPOSURE, "background": 0.2}
    return nz.gamma_nmf(
        np.ones((3, 4)), 3, known=TEMPLATES[:, :1], known_h=ACTIVATIONS, **W_PRIOR, **H_PRIOR, **offsets
    )


def believed():
    """One component of W and H believed and another new, of the cells that a sparse matrix stores."""
    stored = scipy.sparse.csr_array(np.where(MASK, 1.0, 0.0))
    known = {"known": TEMPLATES[:, :1], "known_h": ACTIVATIONS, "known_strength": 4.0}
    return nz.gamma_nmf(stored, 2, observed="stored", **known, **W_PRIOR, **H_PRIOR)


def relevance_rates():
    """Of two new components; one is known."""
    return nz.gamma_nmf(None, 3, known=TEMPLATES[:, :1], prior=RATES, shape=(3, 4))


BESIDE = {"hpf beside known components": lambda: beside(TEMPLATES)}
HIERARCHIES = {
    "hpf": lambda: nz.gamma_nmf(None, 2, prior=nz.HPF(shape=3.0), alpha_w=1.2, alpha_h=0.8, shape=(3, 4)),
    "ard": lambda: nz.gamma_nmf(None, 2, prior="ard", shape=(3, 4)),
}
FORMS = {"known in both, offsets": known_in_both, "believed, stored cells": believed, "ard of rates": relevance_rates}
MODELS = KNOWN | UNKNOWN | HIERARCHIES | BESIDE | FORMS


@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_uniform(name):
    """Long: a chain for each simulation."""
    simulations = size(50, 1000) if name in FORMS else SIMULATIONS
    check_calibrated(MODELS[name], ALLOCATIONS, simulations, tune=TUNE, thin=THIN, seed=1)


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(declare):
    check_seen(
        lambda n: check_calibrated(declare, ALLOCATIONS, n, tune=60, thin=6, seed=2, least=SEEING),
        PLANTED,
        "gate 2, uniform ranks",
        SEEING,
    )


def test_a_dropped_prior_rate_is_seen(monkeypatch):
    plant(
        monkeypatch,
        "Gibbs: priors of cells",
        lambda right: lambda *arguments: right(*arguments)._replace(rate_h=np.zeros((4, 2))),
    )
    check_is_seen(MODELS["gap with known templates"])


def test_a_missing_jacobian_is_seen(monkeypatch):
    """Long: a chain for each simulation."""
    drop_jacobian(monkeypatch)
    check_is_seen(lambda: with_unknown_rates(pm.LogNormal, (0.0, 1.5), n_samples=1, alpha_h=0.5))


def test_an_exposure_of_samples_that_is_forgotten_is_seen(monkeypatch):
    plant(
        monkeypatch,
        "Gibbs: weights of cells",
        lambda right: lambda structure: replace(right(structure), of_samples=np.full((1, 1), 1.6)),
    )
    check_is_seen(MODELS["known in both, offsets"])


def test_a_belief_of_another_strength_is_seen(monkeypatch):
    """The means of its cells are as they were."""

    def weaker(priors):
        factor = np.array([[0.25, 1.0]])
        return priors._replace(shape_w=factor * priors.shape_w, rate_w=factor * priors.rate_w)

    plant(monkeypatch, "Gibbs: priors of cells", lambda right: lambda *arguments: weaker(right(*arguments)))
    check_is_seen(MODELS["believed, stored cells"])


@pytest.mark.parametrize("name", [*HIERARCHIES, "ard of rates"])
def test_rates_of_twice_the_cells_are_seen(name, monkeypatch):
    """Long: a chain for each simulation."""
    plant(monkeypatch, "hyperparameters: sums of groups", with_sums(lambda s: s._replace(n_cells=2 * s.n_cells)))
    check_is_seen(MODELS[name])


def with_all_columns(given):
    every = np.arange(max(own.columns.size for own in given.cells))
    return replace(given, cells=tuple(own._replace(columns=every) for own in given.cells))


def test_known_cells_among_those_that_rates_are_learned_from_are_seen(monkeypatch):
    """Long: a chain for each simulation."""
    plant(
        monkeypatch,
        "hyperparameters: sums of groups",
        lambda right: lambda given, W, Ht: right(with_all_columns(given), W, Ht),
    )
    check_is_seen(lambda: beside(6.0 * TEMPLATES))  # which say of the rate what is far from it

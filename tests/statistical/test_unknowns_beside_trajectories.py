"""Gibbs with unknown hyperparameters, trajectories and moves of scales, calibrated as it runs; then planted errors."""

from __future__ import annotations

import pymc as pm
import pytest

import nmf_zoo as nz
from tests.planted import check_seen, put
from tests.sizes import size
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.test_gibbs_calibration import UNKNOWN, W_PRIOR

pytestmark = pytest.mark.statistical
THIN, TUNE = size(4, 12), size(100, 300)
WALKS = nz.Gibbs(trajectories="always")


def with_unknown_scales():
    """A mean of W, and a rate of H for each component."""
    with pm.Model():
        means = {"mean_w": pm.LogNormal("m", 0.1, 0.6), "beta_h": pm.Gamma("r", 5.0, 4.0, shape=(2, 1))}
        return nz.gamma_nmf(None, 2, alpha_w=1.2, alpha_h=1.5, **means, shape=(3, 4))


def with_an_unknown_scale_of_powers():
    with pm.Model():
        return nz.is_nmf(None, 2, alpha_h=2.5, beta_h=pm.Gamma("s", 4.0, 3.0), alpha_w=3.0, beta_w=2.0, shape=(3, 4))


def with_a_wide_rate():
    with pm.Model():
        return nz.gamma_nmf(None, 2, **W_PRIOR, alpha_h=1.5, beta_h=pm.Gamma("r", 0.7, 1.0), shape=(3, 4))


SHAPE_AND_MEAN = "gamma_nmf, shape and mean unknown"
MODELS = {SHAPE_AND_MEAN: UNKNOWN[SHAPE_AND_MEAN], "gamma_nmf, scales unknown": with_unknown_scales}


@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_uniform(name):
    """Long: simulations, each with a warm-up."""
    check_calibrated(MODELS[name], WALKS, size(50, 1000), tune=TUNE, thin=THIN, seed=1)


def test_ranks_are_uniform_on_powers():
    """Long: simulations, each with a warm-up."""
    check_calibrated(with_an_unknown_scale_of_powers, nz.Gibbs(), size(50, 1000), tune=TUNE, thin=THIN, seed=1)


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(declare):
    check_seen(
        lambda n: check_calibrated(declare, WALKS, n, tune=TUNE, thin=4, seed=2, least=SEEING),
        50,
        "gate 2, uniform ranks",
        SEEING,
    )


def test_trajectories_under_a_guess_of_the_unknowns_are_seen(monkeypatch):
    """Long: as the test of the right one."""
    put(monkeypatch, "Gibbs: priors of trajectories", lambda sweeps, priors: sweeps)
    check_is_seen(with_a_wide_rate)

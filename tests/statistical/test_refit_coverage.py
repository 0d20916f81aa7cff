"""Intervals of activations where all components are known: how often they hold the truth, drawn from the prior."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import nmf_zoo as nz
from nmf_zoo._compat import group
from tests.sizes import size

pytestmark = pytest.mark.statistical
F, K, N = 12, 3, size(200, 2000)
SHARE, ERRORS = 0.9, 4.0
EVENNESS = {"distinct": 0.1, "overlapping": 1.0}  # Dirichlet parameter of the components


def simulated(evenness, exposure=1.0):
    """(model without the exposure, H)"""
    rng = np.random.default_rng(1)
    W, H = rng.dirichlet(np.full(F, evenness), K).T, rng.gamma(1.0, 100.0, (K, N))
    return nz.gamma_nmf(rng.poisson(exposure * (W @ H)), K, known=W, alpha_h=1.0, beta_h=0.01), H


def by_gibbs(model):
    idata = nz.sample(400, tune=200, chains=1, start="random", engine="gibbs", model=model, random_seed=1, quiet=True)
    draws = group(idata, "posterior")["H"].to_numpy()[0]
    return np.quantile(draws, [(1 - SHARE) / 2, (1 + SHARE) / 2], axis=0)


def by_vb(model):
    fit = group(nz.fit(engine="vb", tol=1e-7, model=model, random_seed=1, quiet=True), "fit")
    law = stats.gamma(fit["H_shape"].to_numpy()[0], scale=1 / fit["H_rate"].to_numpy()[0])
    return law.ppf((1 - SHARE) / 2), law.ppf((1 + SHARE) / 2)


def coverage(intervals, H):
    """(share of the cells of H inside, its standard error: samples are independent)"""
    low, high = intervals
    of_samples = np.mean((low < H) & (high > H), axis=0)
    return of_samples.mean(), of_samples.std() / np.sqrt(N)


@pytest.mark.parametrize("name", EVENNESS)
def test_those_of_gibbs_hold_as_many_as_they_say(name):
    model, H = simulated(EVENNESS[name])
    found, error = coverage(by_gibbs(model), H)
    assert abs(found - SHARE) < ERRORS * error


def test_those_of_a_wrong_model_do_not():
    """Planted: an exposure of 1.1 that the model does not have."""
    model, H = simulated(EVENNESS["distinct"], exposure=1.1)
    found, error = coverage(by_gibbs(model), H)
    assert found < SHARE - ERRORS * error


def test_those_of_vb_are_nearly_right_where_components_are_distinct_and_too_narrow_where_they_overlap():
    """q has no correlations, which are what uncertain activations of overlapping components consist of."""
    distinct, overlapping = (coverage(by_vb(model), H) for model, H in map(simulated, EVENNESS.values()))
    assert distinct[0] > SHARE - 0.05
    assert overlapping[0] < SHARE - 0.15 - ERRORS * overlapping[1]

"""Gibbs sampling of beta-gamma autoregressions: Geweke, exact moments of two cells, calibration; planted errors."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.smooth import gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.planted import check_seen, plant
from tests.sizes import size
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.gates import check_means
from tests.statistical.geweke import BACKGROUND, EXPOSURE, FIXED, MASK, X23, without_jacobian
from tests.statistical.smooth_evidence import COUNTS, W_LAW, exact_moments_of_bgar, moments_of
from tests.statistical.smooth_geweke import bgar, check_geweke, forget_the_mask, replaced, with_prior
from tests.structures import gamma, model, unknown

pytestmark = pytest.mark.statistical
W_PRIOR = gamma(np.array([[2.5, 3.0]]), 2.0)
PLAIN = bgar([[3.0], [2.0]], [[2.0], [1.5]], [[0.6], [0.3]])
OFFSETS = {"exposure": EXPOSURE, "background": BACKGROUND, "mask": MASK & [[True, False, True]]}
UNKNOWN = unknown("a", "gamma", 9.0, 3.0), unknown("r", "gamma", 9.0, 4.0), unknown("c", "beta", 4.0, 4.0)
MODELS = {
    "plain": model(X23, 2, W_PRIOR, PLAIN),
    "offsets, a missing time": model(X23, 2, W_PRIOR, PLAIN, **OFFSETS),
    "one time": model(X23[:, :1], 2, W_PRIOR, PLAIN),
    "W known, a pole": model(X23, 2, FIXED, bgar(1.3, 0.8, 0.7)),
    "unknown": model(X23, 2, W_PRIOR, bgar(*UNKNOWN)),
}
SWEEPS = 2_500


@pytest.mark.parametrize("name", MODELS)
def test_two_ways_to_draw_agree(name):
    """Long: sweeps go one by one in Python, slice by slice, with new data after each."""
    sweeps = 4_000 if name == "unknown" else SWEEPS  # whose parameters mix slowly
    check_geweke(gibbs, MODELS[name], size(sweeps, 60_000))


def forget_beta(monkeypatch):
    """What stays drawn as if beta were next to nothing."""
    plant(monkeypatch, "BGAR: auxiliaries", with_prior(lambda prior: replaced(prior, beta=0.2)))


def mistake_what_comes(monkeypatch):
    """H drawn as if more came and less stayed."""
    plant(monkeypatch, "BGAR: activations", with_prior(lambda prior: replaced(prior, rho=0.5 * prior.rho.value)))


def exchange_the_scale(monkeypatch):
    """A scale's move with the law of a row of independent gamma cells."""

    def wrong(right):
        return lambda self, prior, Ht, *given: (prior.alpha.value.ravel() * len(Ht), right(self, prior, Ht, *given)[1])

    plant(monkeypatch, "BGAR: law of a scale", wrong)


def mistake_a_coordinate(monkeypatch):
    """A part of a Jacobian left out, of auxiliaries and activations alike: without all of it there is no density."""

    def wrong(right):
        return lambda density, *rest: right(lambda at: density(at) - 0.4 * at, *rest)

    plant(monkeypatch, "BGAR: slices", wrong)


def drop_a_jacobian_of_hyperparameters(monkeypatch):
    plant(monkeypatch, "chains: slices", without_jacobian)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (forget_beta, "plain"),
        (mistake_what_comes, "plain"),
        (exchange_the_scale, "plain"),
        (mistake_a_coordinate, "plain"),
        (drop_a_jacobian_of_hyperparameters, "unknown"),
        (forget_the_mask, "offsets, a missing time"),
    ],
)
def test_planted_errors_are_seen(spoil, name, monkeypatch):
    """Wrong chains may mix slowly."""
    spoil(monkeypatch)
    check_seen(lambda n: check_geweke(gibbs, MODELS[name], n, least=50), SWEEPS)


# -- two cells, by a sum over three independent gammas -----------------------------------------------------------------


NAMES = ["log h_1", "log h_2", "log^2 h_1", "log^2 h_2", "product"]


def log_h_of(law, sweeps, tune=200):
    """log h of every sweep after the first ones, (sweeps, 2)."""
    problem = gibbs.prepare(model(COUNTS, 1, gamma(*W_LAW), bgar(*law)), Gibbs(), SERIAL)
    state, drawn = gibbs.init(problem, seed_key(1), {}), []
    for sweep in range(tune + sweeps):
        state, _ = gibbs.step(problem, state, child(seed_key(2), sweep))
        drawn.append(np.log(state.Ht[:, 0]))
    return np.array(drawn[tune:])


@pytest.mark.parametrize("law", [(3.0, 1.2, 0.6), (1.5, 0.8, 0.8)], ids=["smooth", "a pole"])
def test_two_cells_have_their_exact_moments(law):
    exact, drawn = exact_moments_of_bgar(*law), log_h_of(law, size(4_000, 80_000))
    check_means(NAMES, moments_of(drawn), exact)
    with pytest.raises(AssertionError, match="gate 2"):
        check_means(NAMES, moments_of(drawn), exact_moments_of_bgar(law[0], law[1], 0.3))


# -- from its own start ------------------------------------------------------------------------------------------------


def with_unknown_correlation():
    with pm.Model():
        rho = pm.Beta("c", 4.0, 4.0)
        return nz.hmm_nmf(None, 2, chain=nz.BGAR(3.0, 1.0, rho), alpha_w=2.0, shape=(3, 4))


@pytest.mark.parametrize("declare", [with_unknown_correlation])
def test_ranks_are_uniform(declare):
    """Long: a chain for each simulation, slice by slice in Python."""
    check_calibrated(declare, Gibbs(), size(50, 1000), tune=size(60, 150), thin=size(6, 12), seed=1)


def test_an_exchanged_scale_is_seen_in_ranks(monkeypatch):
    """Long: a chain for each simulation, slice by slice in Python."""
    exchange_the_scale(monkeypatch)
    check_seen(
        lambda n: check_calibrated(with_unknown_correlation, Gibbs(), n, tune=60, thin=6, seed=2, least=SEEING),
        50,
        "gate 2, uniform ranks",
        SEEING,
    )

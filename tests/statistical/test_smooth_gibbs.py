"""Gibbs sampling of gamma Markov chains: Geweke's test, exact moments of two cells, calibration; planted errors."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.smooth import gibbs
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from tests.planted import check_seen, plant
from tests.sizes import at_full_size, size
from tests.statistical.calibration import SEEING, check_calibrated
from tests.statistical.gates import check_means
from tests.statistical.geweke import BACKGROUND, EXPOSURE, FIXED, MASK, X23, without_jacobian
from tests.statistical.smooth_evidence import COUNTS, W_LAW, exact_moments, log_gamma_chain, moments_of
from tests.statistical.smooth_geweke import check_geweke, forget_the_mask, gamma_chain, replaced, with_prior
from tests.structures import gamma, model, unknown

pytestmark = pytest.mark.statistical
W_PRIOR = gamma(np.array([[2.5, 3.0]]), 2.0)
PLAIN = gamma_chain([[6.0], [4.0]], [[4.0], [7.0]], 0.7, (3.0, 2.5))
SHAPES = unknown("a", "gamma", 9.0, 2.0, variable_shape=(2,), shape=(2, 1)), unknown("b", "lognormal", 1.2, 0.3)
RATES = unknown("c", "gamma", 9.0, 9.0), (3.0, unknown("r", "gamma", 9.0, 3.0))
ONE_SHAPE = [unknown("a", "gamma", 9.0, 2.0)] * 2
OFFSETS = {"exposure": EXPOSURE, "background": BACKGROUND, "mask": MASK & [[True, False, True]]}
MODELS = {
    "plain": model(X23, 2, W_PRIOR, PLAIN),
    "offsets, a missing time": model(X23, 2, W_PRIOR, PLAIN, **OFFSETS),
    "one time": model(X23[:, :1], 2, W_PRIOR, PLAIN),
    "W known": model(X23, 2, FIXED, gamma_chain(3.0, 2.5, 0.8, (2.0, 1.5))),
    "unknown shapes": model(X23, 2, W_PRIOR, gamma_chain(*SHAPES, 0.9, (3.0, 3.0))),
    "unknown rates": model(X23, 2, gamma(3.0, unknown("w", "gamma", 9.0, 4.0)), gamma_chain(6.0, 5.0, *RATES)),
    "one shape of both draws": model(X23, 2, W_PRIOR, gamma_chain(*ONE_SHAPE, 0.9, (3.0, 3.0))),
}
WIDE = unknown("a", "gamma", 5.0, 1.2, variable_shape=(2,), shape=(2, 1)), unknown("b", "lognormal", 1.2, 0.5)
PLANTED = MODELS | {"unknown shapes": model(X23, 2, W_PRIOR, gamma_chain(*WIDE, 0.9, (3.0, 3.0)))}
SLOW = ["W known", "offsets, a missing time", "unknown shapes", "unknown rates"]
SWEEPS = dict.fromkeys(MODELS, 2_500) | dict.fromkeys(SLOW, 4_000) | {"plain": 16_000, "unknown shapes": 5_000}


@pytest.mark.parametrize("name", MODELS)
def test_two_ways_to_draw_agree(name):
    """Long: sweeps go one by one in Python, with new data after each."""
    check_geweke(gibbs, MODELS[name], size(SWEEPS[name], 100_000))


def forget_the_time_before(monkeypatch):
    """z drawn without what the time before says."""
    plant(monkeypatch, "gamma chain: auxiliaries", with_prior(lambda prior: replaced(prior, beta_z=1e-6)))


def exchange_the_scale(monkeypatch):
    """A scale's move with the law of a row of independent gamma cells."""

    def wrong(right):
        def of_all(self, prior, Ht, *given):
            power, rate = right(self, prior, Ht, *given)
            return power * len(Ht), rate

        return of_all

    plant(monkeypatch, "gamma chain: law of a scale", wrong)


def drop_a_jacobian(monkeypatch):
    """Hyperparameters as if their logarithms had the density of the values."""
    plant(monkeypatch, "chains: slices", without_jacobian)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (forget_the_time_before, "plain"),
        (exchange_the_scale, "plain"),
        (drop_a_jacobian, "unknown shapes"),
        (drop_a_jacobian, "unknown rates"),
        (forget_the_mask, "offsets, a missing time"),
    ],
)
def test_planted_errors_are_seen(spoil, name, monkeypatch):
    """Wrong chains may mix slowly; Jacobians are missed soonest where priors are wide."""
    spoil(monkeypatch)
    most, least = 4_000 if name == "plain" else 2_500, 1_250 if "unknown" in name else 1
    check_seen(lambda n: check_geweke(gibbs, PLANTED[name], n, least=50), most, least=least)


# -- two cells, by quadrature ------------------------------------------------------------------------------------------


LAW = 2.5, 1.8, 0.7, 1.5, 0.9
DRAWS, PLANTED_DRAWS = size(6_000, 80_000), 4_000


def log_h_of(structure, sweeps, tune=200):
    """log h of every sweep after the first ones, (sweeps, 2)."""
    problem = gibbs.prepare(structure, Gibbs(), SERIAL)
    state, drawn = gibbs.init(problem, seed_key(1), {}), []
    for sweep in range(tune + sweeps):
        state, _ = gibbs.step(problem, state, child(seed_key(2), sweep))
        drawn.append(np.log(state.Ht[:, 0]))
    return np.array(drawn[tune:])


def two_cells(alpha_z, alpha_h, beta_z, *initial):
    return model(COUNTS, 1, gamma(*W_LAW), gamma_chain(alpha_z, alpha_h, beta_z, initial))


NAMES = ["log h_1", "log h_2", "log^2 h_1", "log^2 h_2", "product"]


def exact_moments_of(*law):
    return exact_moments(lambda first, second: log_gamma_chain(first, second, *law))


def test_two_cells_have_their_exact_moments():
    drawn = moments_of(log_h_of(two_cells(*LAW), DRAWS))
    check_means(NAMES, drawn, exact_moments_of(*LAW))
    with pytest.raises(AssertionError, match="gate 2"):
        check_means(NAMES, drawn, exact_moments_of(*LAW[:2], 1.0, *LAW[3:]))


def test_forgetting_the_next_time_is_seen(monkeypatch):
    """H drawn without what the time after says: alpha_z + 1 in the place of alpha_z."""
    one_more = with_prior(lambda prior: replaced(prior, alpha_z=prior.alpha_z.value + 1.0))
    plant(monkeypatch, "gamma chain: activations", one_more)
    exact = exact_moments_of(*LAW)
    check_seen(
        lambda n: check_means(NAMES, moments_of(log_h_of(two_cells(*LAW), n)), exact), PLANTED_DRAWS, least=2_000
    )


# -- from its own start ------------------------------------------------------------------------------------------------


def with_unknown_shape():
    with pm.Model():
        alpha = pm.Gamma("a", 9.0, 3.0)
        return nz.hmm_nmf(None, 2, chain=nz.GammaChain(alpha, 2.0, initial=(2.0, 1.0)), alpha_w=2.0, shape=(3, 4))


CALIBRATED = {
    "known": lambda: nz.hmm_nmf(None, 2, chain=nz.GammaChain(3.0, 2.0, 0.3, (2.0, 1.0)), alpha_w=2.0, shape=(3, 4)),
    "unknown shape": with_unknown_shape,
}
SIMULATIONS = size(50, 1000)


@pytest.mark.parametrize("name", CALIBRATED)
def test_ranks_are_uniform(name):
    """Long: a chain for each simulation."""
    check_calibrated(CALIBRATED[name], Gibbs(), SIMULATIONS, tune=size(60, 150), thin=size(6, 12), seed=1)


def count_weights_twice(monkeypatch):
    """H drawn as if the sums of W were twice what they are."""
    plant(
        monkeypatch,
        "Gibbs of smooth chains: terms of the data",
        lambda right: lambda power, rate, scale: right(power, 2.0 * rate, scale),
    )


def test_weights_that_count_twice_are_seen_in_ranks(monkeypatch):
    """Long: a chain for each simulation."""
    count_weights_twice(monkeypatch)
    check_seen(
        lambda n: check_calibrated(CALIBRATED["known"], Gibbs(), n, tune=60, thin=6, seed=2, least=SEEING),
        50,
        "gate 2, uniform ranks",
        SEEING,
    )


@at_full_size
@pytest.mark.usefixtures("compiled_graphs")
def test_nuts_has_the_exact_moments_of_two_cells():
    """By the closed form. Long: PyMC compiles the density."""
    alpha_z, alpha_h, beta_z, *first = LAW
    chain = nz.GammaChain(alpha_z, alpha_h, beta_z, tuple(first))
    declared = nz.hmm_nmf(COUNTS.astype(int), 1, chain=chain, alpha_w=W_LAW[0], beta_w=W_LAW[1])
    idata = nz.sample(3_000, tune=1_000, chains=1, engine="nuts", random_seed=1, quiet=True, model=declared)
    log_h = np.log(_compat.group(idata, "posterior")["H"].to_numpy()[0, :, 0])
    check_means(NAMES, moments_of(log_h), exact_moments_of(*LAW))
    with pytest.raises(AssertionError, match="gate 2"):
        check_means(NAMES, moments_of(log_h), exact_moments_of(*LAW[:2], 2.0, *LAW[3:]))

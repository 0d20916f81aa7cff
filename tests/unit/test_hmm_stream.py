"""Exact online EM through nz.stream: against the equations, in any cut, saved and resumed, with missing cells."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, RunFailed, UnsupportedModel
from tests.naive.hmm import basis_chain as naive_chains

F, K, T = 4, 2, 60
RNG = np.random.default_rng(3)
W0 = RNG.gamma(1.0, 3.0, (F, K))
X = RNG.poisson(W0 @ RNG.integers(0, 2, (K, T)) + 0.2).astype(float)
GAPS = np.where(RNG.random(X.shape) < 0.9, X, np.nan)
GAPS[:, :7], GAPS[:, 20] = X[:, :7], np.nan
EXPOSURE = RNG.uniform(0.5, 2.0, (F, 1))
EACH = nz.BasisChain(nz.free(), nz.free(tie="obs"), 0.3)


def declare(chain=EACH, n_features=F, **arguments):
    given = {"exposure": EXPOSURE[:n_features], "background": 0.2, "shape": (n_features, 1)} | arguments
    return nz.hmm_nmf(None, K, chain=chain, **given)


def follow(x, cuts=(), start=W0, burn_in=5, **arguments):
    stream = nz.stream(
        declare(**arguments), engine=nz.ChainOnlineEM(burn_in=burn_in, exponent=0.7), initvals={"W": start}
    )
    for part in np.split(x, cuts, axis=1):
        stream.update(part)
    return stream


def in_equations(x, start):
    """W, p, q, ... of the slow twin."""
    weight, background = EXPOSURE[: len(x)] * ~np.isnan(x), np.full(x.shape, 0.2)
    law = *np.full((2, K), 0.5), np.full(K, 0.3)
    return naive_chains.learn_online(
        np.nan_to_num(x), weight, background, start, *law, 0.7, 5, (True, "tied", "separate")
    )


@pytest.mark.parametrize("x", [X, GAPS], ids=["complete", "missing"])
def test_it_follows_the_equations(x):
    W, p, q, *_ = in_equations(x, W0)
    result = follow(x).result()
    posterior = result.posterior
    np.testing.assert_allclose(posterior["W"].to_numpy()[0, 0], W, rtol=1e-8)
    np.testing.assert_allclose(posterior["p"].to_numpy()[0, 0], p[0], rtol=1e-8)
    np.testing.assert_allclose(posterior["q"].to_numpy()[0, 0], q, rtol=1e-8)


@pytest.mark.parametrize("x", [X, GAPS], ids=["complete", "missing"])
def test_blocks_and_a_stop_change_nothing(x, tmp_path):
    whole, cut = follow(x), follow(x[:, :31], cuts=(1, 8, 9))
    cut.save(tmp_path / "stream")
    resumed = nz.resume_stream(tmp_path / "stream")
    resumed.update(x[:, 31:])
    assert resumed.columns_seen == T
    np.testing.assert_array_equal(resumed.W, whole.W)
    np.testing.assert_array_equal(resumed.result().posterior["q"], whole.result().posterior["q"])


def test_it_finds_the_weights():
    rng = np.random.default_rng(1)
    W = np.array([[20.0, 0.0], [0.0, 15.0], [5.0, 5.0], [1.0, 9.0]])
    model = nz.hmm_nmf(None, K, chain=nz.BasisChain(0.8, 0.7), background=0.1, shape=(F, 3000))
    H = nz.simulate(nz.hmm_nmf(None, K, chain=nz.BasisChain(0.8, 0.7), alpha_w=1.0, shape=(F, 3000)), random_seed=4)[
        "H"
    ]
    stream = nz.stream(model, engine=nz.ChainOnlineEM(exponent=0.8), random_seed=2)
    stream.update(rng.poisson(W @ H.to_numpy() + 0.1))
    found = stream.W.to_numpy()
    found = found[:, np.argsort(found[1])]
    np.testing.assert_allclose(found, W, atol=1.0)


def test_one_feature_with_missing_times():
    x = X[:1].copy()
    x[0, 11] = np.nan
    expected = in_equations(x, W0[:1])
    np.testing.assert_allclose(follow(x, n_features=1, start=W0[:1]).W, expected[0], rtol=1e-8)


def test_priors_hold_the_parameters_back():
    flat, held = follow(X), follow(X, alpha_w=50.0, mean_w=1.0)
    assert abs(float(held.W.mean()) - 1.0) < abs(float(flat.W.mean()) - 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chain": nz.UnitChain(0.9)}, "its updates are for binary chains"),
        ({"shape": (F, 2), "exposure": 1.0 + np.arange(2 * F).reshape(F, 2)}, "differs between samples"),
    ],
)
def test_what_it_cannot_run(arguments, message):
    with pytest.raises(UnsupportedModel, match=message):
        nz.stream(declare(**arguments), engine=nz.ChainOnlineEM())


@pytest.mark.parametrize("initial", ["stationary", nz.free()])
def test_the_first_time_is_used_and_not_learned(initial):
    """Its law is that of the start: with p = q = 1/2, one half."""
    found = follow(X, chain=nz.BasisChain(nz.free(), nz.free(), initial))
    half = follow(X, chain=nz.BasisChain(nz.free(), nz.free(), 0.5))
    np.testing.assert_array_equal(found.W, half.W)
    posterior = found.result().posterior
    assert "initial" not in posterior or posterior["initial"].item() == 0.5


def test_one_probability_for_p_and_q_and_priors_of_their_own():
    with pm.Model() as model:
        stay = pm.Uniform("stay", 0.6, 0.7)
        W = pm.HalfFlat("W", shape=(F, K))
        H = nz.BasisChain("H", stay, stay, shape=(K, 1))
        pm.Poisson("X", W @ H + 0.2, shape=(F, 1))
    stream = nz.stream(model, random_seed=1)
    stream.update(X)
    assert 0.6 <= stream.result().posterior["stay"].item() <= 0.7


def test_columns_without_a_possible_state():
    stream = nz.stream(declare(background=None), initvals={"W": np.full((F, K), 1e-200)}, engine=nz.ChainOnlineEM())
    stream.update(np.zeros((F, 3)))
    before = stream.W.to_numpy().copy()
    assert stream.columns_seen == 3
    stream.activations(X)
    np.testing.assert_array_equal(stream.W, before)
    zero = nz.stream(known_zeros(), random_seed=1)
    with pytest.raises(RunFailed, match="column 0"):
        zero.update(np.ones((F, 1)))
    zero.update(np.zeros((F, 1)))
    with pytest.raises(RunFailed, match="column 1"):
        zero.activations(np.array([[0.0, 1.0]] * F))


def known_zeros():
    return pm.do(declare(chain=nz.BasisChain(0.9, 0.8), background=None), {"W": np.zeros((F, K))})


def smoothed(x, W, p, q, initial):
    """P(on) (K, T) by summing over all paths."""
    weight, background = EXPOSURE * ~np.isnan(x), np.full(x.shape, 0.2)
    return naive_chains.smooth(np.nan_to_num(x), weight, background, W, p, q, initial)[1].T


def test_activations_are_those_of_a_series():
    """From the law of the first time, or in the middle of a series from the stationary one."""
    stream = follow(GAPS)
    posterior = stream.result().posterior
    W, p, q = (posterior[name].to_numpy()[0, 0] for name in ("W", "p", "q"))
    stationary = (1 - p) / (2 - p - q)
    for first, initial in ((0, np.full(K, 0.3)), (15, stationary)):
        found = stream.activations(GAPS[:, 15:21], first=first)
        expected = smoothed(GAPS[:, 15:21], W, np.full(K, p), q, np.broadcast_to(initial, K))
        np.testing.assert_allclose(found["H_mean"], expected, rtol=1e-8)
        np.testing.assert_allclose(found["H_sd"], np.sqrt(expected * (1 - expected)), rtol=1e-6)
    assert found["obs"].to_numpy().tolist() == list(range(15, 21))


def test_what_is_said_of_the_last_column():
    """The filter's last mean is the smoother's, with the parameters held."""
    stream = follow(GAPS[:, :6], start=W0, burn_in=100)
    found, expected = stream.filtered, smoothed(GAPS[:, :6], W0, np.full(K, 0.5), np.full(K, 0.5), np.full(K, 0.3))
    np.testing.assert_allclose(found["H_mean"].to_numpy()[:, 0], expected[:, -1], rtol=1e-8)
    assert found["obs"].item() == 5
    with pytest.raises(InputError, match="no column yet"):
        _ = nz.stream(declare()).filtered
    with pytest.raises(InputError, match="without a chain"):
        _ = nz.stream(nz.gap(None, rank=2, shape=(3, 2))).filtered


def test_the_name_takes_exact_steps_where_states_are_few():
    assert isinstance(nz.stream(declare())._options, nz.ChainOnlineEM)
    wide = nz.hmm_nmf(None, 13, chain=nz.BasisChain(0.9, 0.8), shape=(F, 1))
    assert isinstance(nz.stream(wide)._options, nz.ParticleOnlineEM)


def test_states_that_are_too_many():
    """The table grows with features, too: where a batch of EM would fit."""
    for rank, n_features in ((25, F), (14, 4000)):
        model = nz.hmm_nmf(None, rank, chain=nz.BasisChain(0.9, 0.8), shape=(n_features, 1))
        with pytest.raises(UnsupportedModel, match=rf"2\^{rank} states, .* GB: .* engine=nz.ParticleOnlineEM"):
            nz.stream(model, engine=nz.ChainOnlineEM())


@pytest.mark.parametrize("option", [{"exponent": 0.5}, {"exponent": "fast"}, {"burn_in": 0}, {"batch": 1.5}])
def test_options(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        nz.ChainOnlineEM(**option)

"""Exact online EM through nz.stream: against the equations, in any cut, saved and resumed, with missing cells."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import nmf_zoo as nz
from nmf_zoo.errors import InputError, RunFailed, UnsupportedModel
from tests import naive_chains

F, K, T = 4, 2, 60
RNG = np.random.default_rng(3)
W0 = RNG.gamma(1.0, 3.0, (F, K))
X = RNG.poisson(W0 @ RNG.integers(0, 2, (K, T)) + 0.2).astype(float)
GAPS = np.where(RNG.random(X.shape) < 0.9, X, np.nan)
GAPS[:, :7], GAPS[:, 20] = X[:, :7], np.nan
EXPOSURE = RNG.uniform(0.5, 2.0, (F, 1))
EACH = nz.BasisChain(nz.free(), nz.free(tie="sample"), 0.3)


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
    stream = nz.stream(model, random_seed=2)
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
        ({"chain": nz.UnitChain(0.9)}, "no binary chain"),
        ({"chain": nz.BasisChain(0.9, nz.free(), "stationary")}, "has no known law"),
        ({"chain": nz.BasisChain(0.9, 0.8, nz.free())}, "has no known law"),
        ({"shape": (F, 2), "exposure": np.array([1.0, 2.0])}, "differs between samples"),
    ],
)
def test_what_it_cannot_run(arguments, message):
    with pytest.raises(UnsupportedModel, match=message):
        nz.stream(declare(**arguments))


def test_columns_without_a_possible_state_and_activations():
    stream = nz.stream(declare(background=None), initvals={"W": np.full((F, K), 1e-200)}, engine=nz.ChainOnlineEM())
    stream.update(np.zeros((F, 3)))
    before = stream.W.to_numpy().copy()
    assert stream.columns_seen == 3
    with pytest.raises(InputError, match="hmm_exact"):
        stream.activations(X)
    np.testing.assert_array_equal(stream.W, before)
    zero = nz.stream(known_zeros(), random_seed=1)
    with pytest.raises(RunFailed, match="column 0"):
        zero.update(np.ones((F, 1)))


def known_zeros():
    return pm.do(declare(chain=nz.BasisChain(0.9, 0.8), background=None), {"W": np.zeros((F, K))})


@pytest.mark.parametrize("option", [{"exponent": 0.5}, {"exponent": "fast"}, {"burn_in": 0}, {"batch": 1.5}])
def test_options(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        nz.ChainOnlineEM(**option)

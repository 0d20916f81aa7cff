"""``nz.filter``: the likelihood of chains and what is known as times go by, against a forward recursion in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.stats import poisson

import nmf_zoo as nz
from nmf_zoo.errors import InputError, RunFailed, UnsupportedModel

F, K, T = 3, 2, 7
RNG = np.random.default_rng(4)
W = RNG.gamma(2.0, 2.0, (F, K))
X = RNG.poisson(W @ RNG.integers(0, 2, (K, T)) + 0.5)
ON, OFF, BACKGROUND = 0.8, 0.7, 0.5  # to stay on, to stay off


def forward(X):
    """(log p(X), P(on | X up to t) (K, T)), every component on or off at first with equal chances."""
    states = np.array(list(itertools.product((0, 1), repeat=K)))
    move = np.array([[OFF, 1 - OFF], [1 - ON, ON]])
    law = np.full(len(states), 0.5**K)
    steps = np.prod([move[states[:, None, k], states[None, :, k]] for k in range(K)], axis=0)
    total, on = 0.0, []
    for t in range(X.shape[1]):
        law = law if t == 0 else law @ steps
        law = law * poisson.pmf(X[:, t, None], W @ states.T + BACKGROUND).prod(axis=0)
        total, law = total + np.log(law.sum()), law / law.sum()
        on.append(law @ states)
    return total, np.array(on).T


def model():
    return nz.hmm_nmf(X, K, chain=nz.BasisChain(OFF, ON), background=BACKGROUND)


def labelled():
    return nz.hmm_nmf(pd.DataFrame(X, index=list("abc")), K, chain=nz.BasisChain(OFF, ON), background=BACKGROUND)


@pytest.mark.parametrize("block", [None, 2])
def test_exact_against_a_forward_recursion(block, monkeypatch):
    from nmf_zoo.inference.hmm import recursions

    if block:
        monkeypatch.setattr(recursions, "block_length", lambda *sizes: block)
    found, (total, on) = nz.filter(model(), W, marginals=True), forward(X)
    assert found.attrs["method"] == "exact"
    np.testing.assert_allclose(found["log_likelihood"], total, rtol=1e-12)
    np.testing.assert_allclose(found["mean"], on, rtol=1e-10)
    # Where a component is almost surely on, 1 - P(on) has the last digits of P(on) alone.
    np.testing.assert_allclose(np.square(found["sd"]), on * (1 - on), rtol=1e-10, atol=1e-15)
    assert found["mean"].dims == ("component", "obs")
    assert float(nz.filter(model(), W)["log_likelihood"]) == pytest.approx(total, rel=1e-12)
    assert "mean" not in nz.filter(model(), W)


def test_particles_are_unbiased():
    total, on = forward(X)
    runs = [
        nz.filter(model(), W, method="particles", marginals=True, particles=200, random_seed=seed) for seed in range(60)
    ]
    ratios = np.exp([float(run["log_likelihood"]) - total for run in runs])
    assert abs(ratios.mean() - 1.0) < 5.0 * ratios.std(ddof=1) / np.sqrt(len(ratios))
    means = np.stack([run["mean"].to_numpy() for run in runs])
    assert np.abs(means.mean(axis=0) - on).max() < 0.03
    again = nz.filter(model(), W, method="particles", particles=200, random_seed=3)
    assert float(again["log_likelihood"]) == float(runs[3]["log_likelihood"])
    assert again["effective"].shape == (T,)


def test_what_is_known_has_the_labels_of_components():
    coords = {"component": ["hum", "bell"]}
    named = nz.hmm_nmf(X, K, chain=nz.BasisChain(OFF, ON), background=BACKGROUND, coords=coords)
    assert list(nz.filter(named, W, marginals=True)["mean"]["component"].values) == ["hum", "bell"]


def test_known_weights_and_other_chains():
    known = pm.do(model(), {"W": W})
    assert float(nz.filter(known)["log_likelihood"]) == pytest.approx(forward(X)[0], rel=1e-12)
    real = nz.hmm_nmf(X, K, chain=nz.LogNormalAR(0.0, 0.5, 0.5), background=BACKGROUND)
    found = nz.filter(real, W, particles=500, random_seed=1, marginals=True)
    assert found.attrs["method"] == "particles: 500, auxiliary"
    assert np.all(found["mean"] > 0)
    free = nz.hmm_nmf(X, K, chain=nz.BasisChain(nz.free(), ON), background=BACKGROUND)
    (name,) = (unknown.name for unknown in nz.read(free).H.unknowns)
    value = nz.filter(free, W, values={name: OFF})["log_likelihood"]
    assert float(value) == pytest.approx(forward(X)[0], rel=1e-12)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: nz.filter(model()), InputError, "W: got None; expected the weights"),
        (lambda: nz.filter(model(), W.T), InputError, r"W: got shape \(2, 3\); expected \(3, 2\)"),
        (lambda: nz.filter(model(), -W), InputError, "W: got values that are negative"),
        (lambda: nz.filter(labelled(), pd.DataFrame(W, index=list("cba"))), InputError, "W: got labels of 'feature'"),
        (lambda: nz.filter(model(), W, method="best"), InputError, "method: got 'best'"),
        (lambda: nz.filter(nz.hmm_nmf(X, K), W), InputError, "values: got no value of"),
        (lambda: nz.filter(nz.gamma_nmf(X, K), W), UnsupportedModel, "filter: H is no chain in time"),
        (lambda: nz.filter(nz.hmm_nmf(None, K, shape=(F, T)), W), UnsupportedModel, "nothing is observed"),
        (
            lambda: nz.filter(nz.hmm_nmf(X, K, chain=nz.LogNormalAR(0.0, 0.5, 0.5)), W, method="exact"),
            UnsupportedModel,
            "no binary chain",
        ),
        (
            lambda: nz.filter(nz.hmm_nmf(X, K, chain=nz.BasisChain(OFF, ON)), np.zeros((F, K))),
            RunFailed,
            "no state of the chains can make the counts of obs 0",
        ),
    ],
)
def test_refusals(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


@pytest.mark.parametrize("value", [0.0, 1.5, np.nan])
def test_values_are_those_that_the_chain_can_have(value):
    free = nz.hmm_nmf(X, K, chain=nz.BasisChain(nz.free(), ON), background=BACKGROUND)
    with pytest.raises(InputError, match=rf"values: got p = {value}; expected numbers inside \(0, 1\)"):
        nz.filter(free, W, values={"p": value})
    with pytest.raises(InputError, match=r"values: got 'q'; expected one of \['p'\]"):
        nz.filter(free, W, values={"p": OFF, "q": ON})

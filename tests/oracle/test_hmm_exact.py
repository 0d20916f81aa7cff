"""Exact EM of binary chains: its objective against sums over all paths, its steps, its solution and its draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.hmm import exact
from nmf_zoo.inference.hmm.support import supports_exact
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import BasisChainPrior, Dense, Factor, Factorisation, Fixed, Flat, Poisson
from tests.naive.hmm import basis_chain as naive_chains
from tests.structures import gamma, parameter, unknown, weight_of

KEY = seed_key(1)
K, F, T = 2, 3, 5
RNG = np.random.default_rng(6)
X = RNG.poisson(3.0, (F, T)).astype(float)
EXPOSURE, BACKGROUND = RNG.gamma(3.0, 0.5, (F, T)), RNG.gamma(1.0, 0.5, (F, T))
MASK = RNG.random((F, T)) < 0.8
FREE = {"p": unknown("p", "uniform", 0.0, 1.0), "q": unknown("q", "uniform", 0.0, 1.0)}
EACH = {name: unknown(name, "uniform", 0.0, 1.0, variable_shape=(K,), shape=(K, 1)) for name in "pq"}
BETA = {"p": unknown("p", "beta", 3.0, 2.0), "q": unknown("q", "beta", 2.0, 2.0, variable_shape=(K,), shape=(K, 1))}
ONE = unknown("stay", "uniform", 0.0, 1.0)
CASES = {
    "free": ({}, FREE),
    "free, one for each": ({"prior_w": gamma(2.0, 0.5)}, EACH),
    "beta priors": ({"mask": MASK, "background": BACKGROUND}, BETA),
    "one for both": ({"exposure": EXPOSURE, "background": BACKGROUND}, {"p": ONE, "q": ONE}),
    "stationary": ({"background": BACKGROUND}, FREE | {"initial": None}),
    "stationary, one for each": ({"background": BACKGROUND}, EACH | {"initial": None}),
    "stationary, beta": ({"background": BACKGROUND}, BETA | {"initial": None}),
    "initial free": ({"background": BACKGROUND}, FREE | {"initial": unknown("initial", "uniform", 0.0, 1.0)}),
    "bounded": ({"background": BACKGROUND}, {"p": unknown("p", "uniform", 0.2, 0.4), "q": parameter(0.6)}),
    "known": ({"background": BACKGROUND}, {"p": parameter(0.7), "q": parameter(np.array([[0.4], [0.8]]))}),
    "W known": ({"background": BACKGROUND, "prior_w": Fixed(value=RNG.gamma(2.0, 1.0, (F, K)))}, FREE),
}


def chain_model(x=X, mask=None, exposure=None, background=None, prior_w=None, rank=K, p=None, q=None, initial=0.4):
    x = np.asarray(x, dtype=np.float64)
    own = {"p": p, "q": q, "initial": parameter(initial) if isinstance(initial, float) else initial}
    if background is None:
        background = np.full((1, 1), 0.05)
    return Factorisation(
        likelihood=Poisson(exposure=exposure, background=background),
        W=Factor(name="W", shape=(len(x), rank), prior=prior_w or Flat()),
        H=Factor(name="H", shape=(rank, x.shape[1]), prior=BasisChainPrior(**own)),
        data=Dense(values=x if mask is None else np.where(mask, x, 0.0), mask=mask),
    )


@pytest.fixture(params=CASES)
def structure(request):
    data, chain = CASES[request.param]
    return chain_model(**data, **chain)


def start(structure, seed=1):
    problem = exact.prepare(structure, exact.HMMExact(), SERIAL)
    return problem, exact.init(problem, seed_key(seed), {})


def run(structure, iterations, seed=1):
    problem, state = start(structure, seed)
    objectives = [state.objective]
    for _ in range(iterations):
        state, info = exact.step(problem, state)
        objectives.append(info.objective)
    return problem, state, info, np.array(objectives)


def log_posterior(structure, W, values):
    """log p(X, W, hyperparameters) with H summed out over all paths."""
    background = np.broadcast_to(structure.likelihood.background, structure.shape)
    law = [np.broadcast_to(part, (K, 1))[:, 0] for part in structure.H.prior.law(values)]
    _, scores = naive_chains.all_paths(structure.data.values, weight_of(structure), background, W, *law)
    total = logsumexp(scores) + structure.W.log_density(W, values)
    return total + sum(np.sum(own.prior.log_density(values[name])) for name, own in structure.unknowns.items())


def test_objective_is_the_log_posterior_with_the_paths_summed_out(structure):
    _, state, _, _ = run(structure, 3)
    expected = log_posterior(structure, state.W, state.values)
    assert state.objective == pytest.approx(expected, rel=1e-11)


def test_it_never_falls(structure):
    for seed in range(3):
        objectives = run(structure, 60, seed)[3]
        assert np.diff(objectives).min() >= -1e-9 * abs(objectives[-1])


def test_the_solution_is_stationary(structure):
    """No single parameter can be moved to a better place: by 1 %, where slopes are up to some 1e-4."""
    _, state, info, _ = run(structure, 1500)
    assert info.residual < 1e-4
    best = log_posterior(structure, state.W, state.values)
    for factor in (0.99, 1.01):
        for cell in np.ndindex(state.W.shape) if not structure.W.is_fixed else ():
            W = state.W.copy()
            W[cell] = W[cell] * factor + (0.001 if factor > 1 else 0.0)
            assert log_posterior(structure, W, state.values) < best + 1e-6
        for name, own in structure.unknowns.items():
            for cell in np.ndindex(own.variable_shape):
                values = {other: value.copy() for other, value in state.values.items()}
                low, high = own.prior.args if own.prior.kind == "uniform" else (0.0, 1.0)
                values[name][cell] = np.clip(values[name][cell] ** factor, low, high)
                assert log_posterior(structure, state.W, values) < best + 1e-6


def test_draws_and_marginals_of_the_solution():
    structure = chain_model(background=BACKGROUND, **FREE)
    problem, state, _, _ = run(structure, 20)
    values, reported = exact.finish(problem, state, KEY, 4000)
    law = [np.broadcast_to(part, (K, 1))[:, 0] for part in structure.H.prior.law(state.values)]
    paths, scores = naive_chains.all_paths(X, weight_of(structure), BACKGROUND, state.W, *law)
    on = naive_chains.bits(K)[paths].swapaxes(1, 2)
    marginals = np.tensordot(np.exp(scores - logsumexp(scores)), on, axes=1)
    np.testing.assert_allclose(reported["H_mean"], marginals, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(reported["H_best"], on[scores.argmax()])
    error = np.sqrt(marginals * (1 - marginals) / 4000)
    assert np.all(np.abs(values["H"].mean(axis=0) - marginals) < 5 * error + 1e-12)
    assert values["W"].shape == (4000, F, K)
    draw = {name: array[7] for name, array in values.items()}
    row = (paths == on_as_states(draw["H"])).all(axis=1).argmax()
    assert structure.log_joint(draw) == pytest.approx(scores[row], rel=1e-11)


def on_as_states(H):
    return (H.T * 2 ** np.arange(K)).sum(axis=1)


def test_a_start_is_taken_and_a_component_can_be_known_to_stay():
    structure = chain_model(background=BACKGROUND, **FREE)
    problem = exact.prepare(structure, exact.HMMExact(), SERIAL)
    W = RNG.gamma(1.0, 1.0, (F, K))
    state = exact.init(problem, KEY, {"W": W, "p": np.array(0.3), "q": np.array(1.0)})
    np.testing.assert_allclose(state.W, W)
    assert state.values["p"] == 0.3
    assert np.isfinite(state.objective)


def test_counts_that_nothing_can_make_are_named():
    W = np.ones((F, K))
    W[1] = 0.0
    structure = chain_model(prior_w=Fixed(value=W), background=np.zeros((1, 1)), **FREE)
    problem = exact.prepare(structure, exact.HMMExact(), SERIAL)
    with pytest.raises(RunFailed, match="no state of the chains can make the counts of obs"):
        exact.init(problem, KEY, {})


def test_one_time():
    structure = chain_model(X[:, :1], **EACH)
    _, state, _, objectives = run(structure, 50)
    assert np.diff(objectives).min() >= -1e-9
    assert state.values["p"].tolist() == [0.5, 0.5]  # nothing is known of it


def test_what_is_refused():
    many = chain_model(np.ones((2, 3)), rank=17, **FREE)
    assert "17 components have 2^17 states, which take" in supports_exact(many).reason
    gammas = chain_model(**{**FREE, "p": unknown("p", "gamma", 1.0, 1.0)})
    assert "p has a gamma prior" in supports_exact(gammas).reason
    loose = chain_model(prior_w=gamma(unknown("a", "flat"), 1.0), **FREE)
    assert "known gamma prior" in supports_exact(loose).reason
    assert supports_exact(chain_model(rank=12, **FREE))

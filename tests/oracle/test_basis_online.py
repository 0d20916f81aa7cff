"""Exact online EM of the basis chain against eq. 15 and 16 state by state, and against sums over all paths."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from nmf_zoo.inference.hmm.m_step import rules_of
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.kernels.hmm.basis_online import Online, OnlineRules, learn
from nmf_zoo.kernels.hmm.basis_states import RateTables, set_rates
from nmf_zoo.structure import BasisChainPrior
from tests.naive.hmm import basis_chain as naive_chains
from tests.structures import model, parameter, unknown, weight_of

RANK, FEATURES = 2, 3
P, Q, INITIAL = np.array([0.9, 0.6]), np.array([0.7, 0.55]), np.array([0.3, 0.8])
RNG = np.random.default_rng(12)
W = RNG.gamma(1.0, 3.0, (FEATURES, RANK))


def data(n_times, missing=False):
    rng = np.random.default_rng(n_times)
    x = rng.poisson(3.0, (FEATURES, n_times)).astype(float)
    mask = rng.random(x.shape) < 0.8 if missing else np.ones(x.shape, dtype=bool)
    mask[:, 2] = False  # a time without data
    return x, mask, rng.gamma(2.0, 0.5, x.shape), rng.gamma(2.0, 0.1, x.shape)


def chain_parameter(name, update):
    """p or q as a model has it, and as ``update`` says: known, tied or separate."""
    if update == "known":
        return parameter(0.5)
    tying = {} if update == "tied" else {"variable_shape": (RANK,), "shape": (RANK, 1)}
    return unknown(name, "uniform", 0.0, 1.0, **tying)


def run(structure, updates=(0, "known", "known"), exponent=0.8, burn_in=np.inf, cuts=(), separable=False):
    """The state after all samples, given in blocks, and their log-likelihood."""
    samples, n_times = read_samples(structure), structure.shape[1]
    weights = np.ascontiguousarray(weight_of(structure).T)
    of_features = np.ones(FEATURES)
    if separable:
        of_features, weights = weights[0] / weights[0, 0], np.ascontiguousarray(weights[:, :1])
    counts = samples.counts(W)._replace(weight_sums=np.zeros((1, RANK)))
    n_columns, n_states = 1 + (weights.shape[1] + FEATURES + 4) * RANK, 2**RANK
    tables = RateTables(np.empty((FEATURES, n_states)), np.empty((FEATURES, n_states)))
    set_rates(tables, W, samples.base)
    workspaces = np.empty(n_states), np.empty(n_states), np.empty(n_columns)
    online = Online(np.zeros((n_states, n_columns)), W.copy(), np.stack([P, Q]), INITIAL, tables, *workspaces)
    none = np.zeros(W.shape)
    parameters = {name: chain_parameter(name, how) for name, how in zip("pq", updates[1:], strict=True)}
    chain, _ = rules_of(BasisChainPrior(**parameters, initial=None), "pq", RANK)
    rules = OnlineRules(samples.base, of_features, exponent, burn_in, updates[0], none, none, chain)
    total = samples.constant
    for first, last in zip((0, *cuts), (*cuts, n_times), strict=True):
        found, impossible = learn(online, counts, weights, rules, first, first, last)
        assert impossible == -1
        total += found
    return online, total


def statistics(online):
    """(S1 (R, K), S2 (F, K), S3 (K, 4))"""
    sums, pairs, sources = online.table.sum(axis=0)[1:], 4 * RANK, (4 + FEATURES) * RANK
    parts = (sums[:-sources], (-1, RANK)), (sums[-sources:-pairs], (FEATURES, RANK)), (sums[-pairs:], (RANK, 4))
    return [part.reshape(shape) for part, shape in parts]


@pytest.mark.parametrize("missing", [False, True])
def test_with_known_parameters_it_is_the_weighted_sum_of_smoothed_statistics(missing):
    """S_t = sum_i w_i E[s_i | x_1:t], w_i = g_i prod_{j > i} (1 - g_j), by enumeration of all paths."""
    x, mask, exposure, background = data(5, missing)
    structure = model(x, RANK, W, None, mask=mask, exposure=exposure, background=background)
    online, total = run(structure)
    weight = weight_of(structure)
    paths, scores = naive_chains.all_paths(x, weight, background, W, P, Q, INITIAL)
    assert total == pytest.approx(logsumexp(scores), rel=1e-12)
    chance, on = np.exp(scores - logsumexp(scores)), naive_chains.bits(RANK)[paths]
    steps = np.arange(1, 6.0) ** -0.8
    share = steps * np.append(np.cumprod((1 - steps)[::-1])[::-1][1:], 1.0)
    active = np.einsum("t,ft,p,ptk->fk", share, weight, chance, on)
    ratio = weight * x / (weight * np.einsum("fk,ptk->pft", W, on) + background)
    sources = np.einsum("t,p,pft,fk,ptk->fk", share, chance, np.where(weight > 0, ratio, 0.0), W, on)
    kinds = 2 * on[:, :-1] + on[:, 1:]
    pairs = np.stack([np.einsum("t,p,ptk->k", share[1:], chance, kinds == kind) for kind in range(4)], axis=1)
    for found, expected in zip(statistics(online), (active, sources, pairs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("updates", [(1, "known", "known"), (0, "tied", "separate"), (1, "separate", "tied")])
@pytest.mark.parametrize("cuts", [(), (1, 17)])
def test_learning_follows_the_equations(updates, cuts):
    x, mask, exposure, background = data(40, missing=True)
    structure = model(x, RANK, W, None, mask=mask, exposure=exposure, background=background)
    online, total = run(structure, updates, 0.7, 5, cuts)
    arguments = structure.data.values, weight_of(structure), background, W, P, Q, INITIAL, 0.7, 5, updates
    *expected, log_p, sums = naive_chains.learn_online(*arguments)
    for found, value in zip((online.W, *online.parameters), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-9)
    assert total == pytest.approx(log_p, rel=1e-11)
    for found, value in zip(statistics(online), sums, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-13)


def test_weights_that_are_a_product_need_one_row_of_activations():
    x, _, exposure, background = data(30)
    exposure = exposure[:, :1] * exposure[:1]
    structure = model(x, RANK, W, None, exposure=exposure, background=background)
    found = [run(structure, (1, "tied", "tied"), burn_in=4, separable=separable)[0] for separable in (False, True)]
    all_features, product = found
    np.testing.assert_allclose(product.W, all_features.W, rtol=1e-10)
    assert product.table.shape[1] < all_features.table.shape[1]


def test_a_feature_unseen_at_the_first_update_can_still_come():
    x = np.zeros((FEATURES, 30))
    x[1:], x[0, 20:] = 3.0, 4.0
    structure = model(x, RANK, W, None, background=np.zeros((1, 1)))
    online, total = run(structure, (1, "known", "known"), burn_in=5)
    assert np.isfinite(total)
    assert np.all(np.isfinite(online.W))
    assert online.W[0].max() > 0.1

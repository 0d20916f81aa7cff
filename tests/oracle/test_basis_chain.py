"""The recursions of the basis chain against sums over all paths, and against dense recursions in logarithms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from nmf_zoo.inference.hmm.recursions import Recursions, as_activations
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.kernels.hmm.basis_states import BinaryChain
from nmf_zoo.kernels.random.keyed_rng import seed_key
from tests.naive.hmm import basis_chain as naive_chains
from tests.structures import model, weight_of

KEY = seed_key(5)
RANK, FEATURES, TIMES = 2, 3, 5
P, Q, INITIAL = np.array([0.9, 0.6]), np.array([0.7, 0.55]), np.array([0.3, 0.8])
RNG = np.random.default_rng(11)
W = RNG.gamma(1.0, 2.0, (FEATURES, RANK))
X = RNG.poisson(2.0, (FEATURES, TIMES)).astype(float)
X[:, 1] = 0.0
X[0, 3] = 40.0
SCATTERED = RNG.random((FEATURES, TIMES)) < 0.7
ONE_TIME = np.ones((FEATURES, TIMES), dtype=bool)
ONE_TIME[:, 2] = False
EXPOSURE = RNG.gamma(3.0, 0.5, (FEATURES, TIMES))
BACKGROUND = RNG.gamma(1.0, 0.5, (FEATURES, TIMES))
OF_FEATURES = RNG.gamma(1.0, 0.5, (FEATURES, 1))

CASES = {
    "complete": {"background": np.full((1, 1), 0.1)},
    "background of features": {"background": OF_FEATURES, "exposure": OF_FEATURES + 1.0, "mask": SCATTERED},
    "missing cells": {"background": BACKGROUND, "mask": SCATTERED},
    "missing time": {"background": BACKGROUND, "mask": ONE_TIME},
    "exposure": {"background": BACKGROUND, "exposure": EXPOSURE},
    "exposure of times": {"background": OF_FEATURES, "exposure": EXPOSURE[:1]},
    "masked exposure": {"background": OF_FEATURES, "exposure": EXPOSURE, "mask": SCATTERED},
}


@pytest.fixture(params=CASES)
def structure(request):
    return model(X, RANK, W, None, **CASES[request.param])


def naive_arguments(structure, weights=W):
    background = structure.likelihood.background
    background = np.broadcast_to(0.0 if background is None else background, structure.shape)
    return structure.data.values, weight_of(structure), background, weights, P, Q, INITIAL


def recursions(structure, weights=W, block=None, chain=None):
    samples = read_samples(structure)
    found = Recursions(samples.counts(weights), samples.base, weights, chain or BinaryChain(P, Q, INITIAL), block)
    return found, samples.constant


@pytest.mark.parametrize("block", [None, 2, 3])
def test_smoother_is_the_sum_over_all_paths(structure, block):
    log_p, marginals, pairs, sources = naive_chains.smooth(*naive_arguments(structure))
    found, constant = recursions(structure, block=block)
    total, impossible, sums = found.smooth()
    assert impossible == -1
    assert total + constant == pytest.approx(log_p, rel=1e-12)
    assert found.log_likelihood()[0] == pytest.approx(total, rel=1e-13)
    np.testing.assert_allclose(sums.marginals, marginals, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(sums.pairs, pairs, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found.sources(sums, W), sources, rtol=1e-10)


@pytest.mark.parametrize("block", [None, 2, 3])
def test_viterbi_is_the_best_of_all_paths(structure, block):
    paths, scores = naive_chains.all_paths(*naive_arguments(structure))
    found, constant = recursions(structure, block=block)
    score, _, path = found.best_path()
    np.testing.assert_array_equal(path, paths[scores.argmax()])
    assert score + constant == pytest.approx(scores.max(), rel=1e-12)


def test_paths_are_draws_from_their_posterior(structure):
    """Chi-square of 20,000 paths of states over all those with an expected count of 5 or more."""
    paths, scores = naive_chains.all_paths(*naive_arguments(structure))
    chance = np.exp(scores - logsumexp(scores))
    drawn = recursions(structure, block=2)[0].draw_paths(20_000, KEY)[2]
    seen = np.bincount(drawn @ 4 ** np.arange(TIMES)[::-1], minlength=len(paths))
    expected = 20_000 * chance
    large = expected >= 5
    rest = expected[~large].sum()
    statistic = ((seen - expected) ** 2 / np.where(large, expected, 1))[large].sum()
    statistic += (seen[~large].sum() - rest) ** 2 / rest if rest > 1 else 0.0
    freedom = large.sum()
    assert statistic < freedom + 5 * np.sqrt(2 * freedom), (statistic, freedom)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_every_rank_equals_the_dense_recursion(rank):
    """The last pass of a transition lands in another buffer for odd and even ranks."""
    rng = np.random.default_rng(rank)
    weights, x = rng.gamma(1.0, 2.0, (4, rank)), rng.poisson(3.0, (4, 40)).astype(float)
    p, q, initial = (rng.uniform(0.1, 0.9, rank) for _ in range(3))
    structure = model(x, rank, weights, None, background=np.full((1, 1), 0.3))
    found, constant = recursions(structure, weights, 7, BinaryChain(p, q, initial))
    emissions = naive_chains.log_emissions(x, np.ones(x.shape), np.full(x.shape, 0.3), weights)
    A = naive_chains.transition(p, q)
    expected = naive_chains.filter_dense(emissions, A, naive_chains.initial_law(initial))
    total, _, sums = found.smooth()
    assert total + constant == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(sums.pairs.sum(axis=1), 39.0, rtol=1e-12)
    on = sums.pairs @ np.array([0.0, 1.0, 0.0, 1.0])
    np.testing.assert_allclose(on, sums.marginals[1:].sum(axis=0), rtol=1e-12)
    left = sums.pairs @ np.array([0.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(left, sums.marginals[:-1].sum(axis=0), rtol=1e-12)


def test_one_time():
    structure = model(X[:, :1], RANK, W, None, background=np.full((1, 1), 0.1))
    log_p, marginals, *_ = naive_chains.smooth(*naive_arguments(structure))
    found, constant = recursions(structure)
    total, _, sums = found.smooth()
    assert total + constant == pytest.approx(log_p, rel=1e-12)
    np.testing.assert_allclose(sums.marginals, marginals, rtol=1e-12)
    np.testing.assert_array_equal(sums.pairs, 0.0)
    assert found.best_path()[2].shape == (1,)


def test_impossible_counts_are_found():
    """Without a background no state makes a count where W has a row of zeros."""
    weights = W.copy()
    weights[0] = 0.0
    x = np.zeros((FEATURES, TIMES))
    x[1], x[0, 3] = 1.0, 2.0
    found, _ = recursions(model(x, RANK, weights, None), weights, block=2)
    assert found.log_likelihood() == (-np.inf, 3)
    assert found.smooth()[:2] == (-np.inf, 3)
    assert found.best_path()[:2] == (-np.inf, 3)


def test_large_counts_and_sticky_chains_neither_overflow_nor_underflow():
    """Counts of 10^7 against chains that almost never move: the data overrule the chain at every time."""
    rng = np.random.default_rng(2)
    weights = rng.gamma(1.0, 1e7, (FEATURES, 5))
    on = rng.integers(0, 2, (5, 200))
    x = rng.poisson(weights @ on + 1.0).astype(float)
    still = BinaryChain(np.full(5, 1 - 1e-10), np.full(5, 1 - 1e-10), np.full(5, 0.5))
    found, _ = recursions(model(x, 5, weights, None, background=np.ones((1, 1))), weights, 9, still)
    total, _, sums = found.smooth()
    assert np.isfinite(total)
    np.testing.assert_allclose(sums.marginals, on.T, atol=1e-12)
    np.testing.assert_allclose(sums.pairs.sum(axis=1), 199.0, rtol=1e-12)
    np.testing.assert_array_equal(as_activations(found.best_path()[2], 5), on)
    np.testing.assert_array_equal(as_activations(found.draw_paths(2, KEY)[2], 5), np.stack([on, on]))


def test_unseen_paths_follow_the_chain():
    """With nothing observed the smoother gives the chain's own marginals."""
    structure = model(X, RANK, W, None, background=np.full((1, 1), 0.1), mask=np.zeros(X.shape, dtype=bool))
    found, _ = recursions(structure, block=2)
    total, _, sums = found.smooth()
    assert total == pytest.approx(0.0, abs=1e-13)
    chance = INITIAL
    for row in sums.marginals:
        np.testing.assert_allclose(row, chance, rtol=1e-12)
        chance = (1 - P) * (1 - chance) + Q * chance


def test_blocks_do_not_change_the_draws():
    structure = model(X, RANK, W, None, background=BACKGROUND)
    drawn = [recursions(structure, block=block)[0].draw_paths(50, KEY)[2] for block in (2, 3, 5)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])


def test_a_hundred_thousand_times():
    """Block by block as in one piece, nothing lost on the way, and close to the truth where the data say it."""
    rng = np.random.default_rng(9)
    weights = rng.gamma(1.0, 50.0, (6, 3))
    on = np.repeat(rng.integers(0, 2, (3, 2000)), 50, axis=1)
    x = rng.poisson(weights @ on + 0.1).astype(float)
    structure = model(x, 3, weights, None, background=np.full((1, 1), 0.1))
    slow = BinaryChain(np.full(3, 0.99), np.full(3, 0.99), np.full(3, 0.5))
    whole, cut = (recursions(structure, weights, block, slow)[0].smooth() for block in (None, 317))
    assert np.isfinite(whole[0])
    assert whole[0] == pytest.approx(cut[0], rel=1e-12)  # the order of 100,000 additions
    np.testing.assert_array_equal(whole[2].marginals, cut[2].marginals)
    np.testing.assert_allclose(cut[2].pairs.sum(axis=1), 99_999.0, rtol=1e-10)
    assert np.mean(np.abs(cut[2].marginals.T - on)) < 1e-4

"""The conditional particle filter: its resampling against rejection, its paths against sums over all of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import logsumexp

from nmf_zoo.kernels.hmm.particles import conditional_filter, emission
from nmf_zoo.kernels.hmm.particles.conditional_filter import pick_by_logs, resample_others, shuffle
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.conditional_paths import draw_paths, law_of, target_of
from tests.naive.hmm import basis_chain as naive_chains
from tests.naive.hmm.particles import conditional_filter as naive_conditional
from tests.planted import plant, put
from tests.statistical.gates import check_frequencies, check_means

SCHEMES = {"systematic": 0, "stratified": 1, "residual": 2, "multinomial": 3}
WEIGHTS = np.array([0.37, 0.08, 0.3, 0.25])
W = np.array([[3.0, 0.5], [0.2, 2.0]])
X = np.array([[4, 1, 0], [1, 3, 2]])
BASE = np.array([0.3, 0.2])
P, Q, INITIAL = np.array([0.8, 0.6]), np.array([0.7, 0.9]), np.array([0.4, 0.3])
KEY = seed_key(1)
PROPOSALS = {"bootstrap": 0, "guided": 1, "auxiliary": 2}


# -- resampling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_others_are_as_the_scheme_has_them_given_one(scheme, given):
    found = others(WEIGHTS, SCHEMES[scheme], given, 6_000)
    expected = naive_conditional.counts_of_others(WEIGHTS, SCHEMES[scheme], given, 40_000, np.random.default_rng(2))
    kinds, where = np.unique(np.concatenate([found, expected]), axis=0, return_inverse=True)
    where = where.ravel()
    probabilities = np.bincount(where[len(found) :], minlength=len(kinds)) + 0.5
    mine = np.bincount(where[: len(found)], minlength=len(kinds))
    usual = probabilities > 20  # those that the naive twin has seen often enough to know their frequency
    assert mine[~usual].sum() <= 0.02 * len(found)
    ratio = len(expected) / len(found)
    scores = (mine - probabilities / ratio) / np.sqrt(probabilities / ratio * (1 + 1 / ratio))
    assert np.max(np.abs(scores[usual])) < 5.0, dict(zip(map(tuple, kinds), scores, strict=True))


def others(weights, scheme, given, draws):
    n, counts = len(weights), []
    ancestors, order = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for draw in range(draws):
        ancestors[0] = given
        resample_others(ancestors, weights, scheme, order, child(KEY, draw))
        assert ancestors[0] == given
        counts.append(np.bincount(ancestors[1:], minlength=n))
    return np.array(counts)


@pytest.mark.parametrize("scheme", SCHEMES.values())
@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.0, 1.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0]])
def test_particles_without_weight_have_no_children(weights, scheme):
    weights = np.array(weights)
    given = int(np.argmax(weights))
    found = others(weights, scheme, given, 200)
    assert np.all(found.sum(axis=1) == len(weights) - 1)
    assert np.all(found[:, weights == 0] == 0)
    if scheme in (0, 2) and np.all(weights == 0.25):
        assert np.all(found == [0, 1, 1, 1])


def test_shuffle_is_uniform():
    order, kinds = np.zeros(3, np.int64), {}
    for draw in range(6_000):
        shuffle(order, child(KEY, draw))
        kinds[tuple(order)] = kinds.get(tuple(order), 0) + 1
    check_frequencies(list(kinds), list(kinds.values()), np.full(6, 1 / 6))


def test_pick_by_logs():
    log_weights, workspace = np.array([np.log(0.2), -np.inf, np.log(0.8)]) - 1000.0, np.empty(3)
    picked = [pick_by_logs(log_weights, workspace, level) for level in (1e-9, 0.19, 0.21, 1 - 1e-12)]
    assert picked == [0, 0, 2, 2]


def test_background_of_other_components():
    target = target_of(X, W, BASE, law_of(BASIS, P, Q))
    H = np.random.default_rng(3).gamma(1.0, size=(2, 3))
    out = np.ones(len(target.counts.values))
    emission.add_standing_components(out, target.counts, W, np.ascontiguousarray(H.T))
    times = np.repeat(np.arange(3), np.diff(target.counts.indptr))
    np.testing.assert_allclose(out, 1 + (W @ H)[target.counts.indices, times], rtol=1e-13)


# -- binary chains: all paths --------------------------------------------------------------------------------------


def binary(seen=None):
    law = law_of(BASIS, P, Q, initial=(INITIAL, INITIAL))
    weight = np.ones(X.shape) if seen is None else np.broadcast_to(seen, X.shape).astype(float)
    paths, scores = naive_chains.all_paths(X, weight, np.tile(BASE[:, None], 3) * weight, W, P, Q, INITIAL)
    return target_of(X, W, BASE, law, seen), paths, np.exp(scores - logsumexp(scores))


def check_paths(draws, paths, probabilities, least=250):
    """Of every state at every time, and of pairs of states at times that follow each other, the frequency."""
    states = (draws[:, 0] + 2 * draws[:, 1]).astype(int)
    names, found, expected = [], [], []
    for times in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2)):
        codes, all_codes = (sum(4**i * part[:, t] for i, t in enumerate(times)) for part in (states, paths))
        for code in range(4 ** len(times)):
            chance = probabilities[all_codes == code].sum()
            if chance > 0.01:
                names.append(f"state {code} at {times}")
                found.append(codes == code)
                expected.append(chance)
    check_means(names, np.array(found, dtype=float).T, np.array(expected), least=least)


@pytest.mark.parametrize("threshold", [1.0, 0.7])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("particles", "n_draws"), [(2, 12_000), (5, 5_000), (20, 3_000)])
def test_binary_paths(particles, n_draws, scheme, threshold):
    target, paths, probabilities = binary()
    start = naive_chains.bits(2)[paths[np.argmax(probabilities)]].T
    draws, _, _ = draw_paths(target, (start, start), n_draws, particles, (0, SCHEMES[scheme], threshold))
    check_paths(draws, paths, probabilities, least=150)


def test_a_missing_sample():
    target, paths, probabilities = binary(np.array([True, False, True]))
    draws, _, _ = draw_paths(target, np.ones((2, 2, 3)), 4_000, 10)
    check_paths(draws, paths, probabilities)


def test_one_sample():
    law = law_of(BASIS, P, Q, initial=(INITIAL, INITIAL))
    target = target_of(X[:, :1], W, BASE, law)
    emissions = naive_chains.log_emissions(X[:, :1], np.ones((2, 1)), BASE[:, None], W)[0]
    chances = np.exp(emissions) * naive_chains.initial_law(INITIAL)
    draws, _, renewed = draw_paths(target, np.ones((2, 2, 1)), 4_000, 10)
    states = (draws[:, 0, 0] + 2 * draws[:, 1, 0]).astype(int)
    check_means([f"state {s}" for s in range(4)], states[:, None] == np.arange(4), chances / chances.sum())
    assert 0.3 < renewed < 1


# -- one row with a density: quadrature ----------------------------------------------------------------------------


def quadrature_log_normal(x, w, base, law, n_times):
    """Means of z, z^2 and z z' by a grid over all times."""
    mean, persistence, scale, first, spread = law
    z = np.linspace(-4.5, 4.5, 121)
    joint = -0.5 * ((z - first) / spread) ** 2
    for t in range(n_times):
        if t > 0:
            step = -0.5 * ((z - mean - persistence * (z[:, None] - mean)) / scale) ** 2
            joint = joint[..., None] + step
        rate = base[:, None] + w[:, None] * np.exp(z)
        joint = joint + (x[:, [t]] * np.log(rate) - rate).sum(axis=0)
    chance = np.exp(joint - joint.max())
    return chance / chance.sum(), z


def moments(chance, z):
    n_times = chance.ndim
    grids = np.meshgrid(*[z] * n_times, indexing="ij")
    values = [*grids, *(g * g for g in grids), *(a * b for a, b in pairwise(grids))]
    return np.array([np.sum(chance * v) for v in values])


def moments_of_draws(z):
    return np.concatenate([z, z * z, z[:, 1:] * z[:, :-1]], axis=1)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize(("n_times", "particles"), [(2, 3), (3, 2), (3, 20)])
def test_a_log_normal_row(n_times, particles, proposal):
    law, w, x = (0.3, 0.7, 0.6, 0.1, 0.8), W[:, 0], X[:, :n_times]
    chance, z = quadrature_log_normal(x, w, BASE, law, n_times)
    target = target_of(x, W[:, :1].copy(), BASE, law_of(LOG_NORMAL, *law[:3], initial=law[3:]))
    start, plan = (np.ones((1, n_times)), np.zeros((1, n_times))), (PROPOSALS[proposal], 0, 1.0)
    draws = draw_paths(target, start, 20_000 // particles + 3_000, particles, plan)[1][:, 0]
    check_means([f"moment {i}" for i in range(3 * n_times - 1)], moments_of_draws(draws), moments(chance, z))


def test_its_naive_twin_agrees():
    law, w, n_times = (0.3, 0.7, 0.6, 0.1, 0.8), W[:, 0], 3
    chance, z = quadrature_log_normal(X, w, BASE, law, n_times)
    rng, path, kept = np.random.default_rng(5), np.zeros(n_times), []
    for _ in range(3_000):
        path = naive_conditional.renew_log_normal(path, X, w, BASE, law, 5, rng)
        kept.append(path)
    check_means([f"moment {i}" for i in range(8)], moments_of_draws(np.array(kept)), moments(chance, z))


def quadrature_unit(x, w, base, alpha, n_times):
    """The midpoint rule, whose error falls with the square of the cells although the density jumps at cells' edges."""
    n = 120
    h = (np.arange(n) + 0.5) / n
    edges = np.arange(n + 1) / n
    down = np.where(h <= 0.5, alpha, 1 - alpha)[:, None]
    # the mass of every cell under each move, exact in the new activation
    step = down * np.diff(np.minimum(edges, h[:, None]), axis=1) / h[:, None]
    step += (1 - down) * np.diff(np.maximum(edges, h[:, None]), axis=1) / (1 - h[:, None])
    chance = np.ones(n) / n
    for t in range(n_times):
        if t > 0:
            chance = chance[..., None] * step
        rate = base[:, None] + w[:, None] * h
        chance = chance * np.exp((x[:, [t]] * np.log(rate) - rate).sum(axis=0))
    return chance / chance.sum(), h


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("particles", [3, 20])
@pytest.mark.parametrize("n_times", [2, 3])
def test_a_unit_row(n_times, particles, proposal):
    w, x = W[:, 0], X[:, :n_times]
    chance, h = quadrature_unit(x, w, BASE, 0.8, n_times)
    target = target_of(x, W[:, :1].copy(), BASE, law_of(UNIT, 0.8))
    start = np.full((2, 1, n_times), 0.5)
    plan = PROPOSALS[proposal], 0, 1.0
    draws, above, _ = draw_paths(target, start, 20_000 // particles + 3_000, particles, plan)
    np.testing.assert_allclose(draws + above, 1.0, rtol=1e-15)
    names = [f"moment {i}" for i in range(3 * n_times - 1)]
    check_means(names, moments_of_draws(draws[:, 0]), moments(chance, h), expected_error=5e-4)


# -- planted errors ------------------------------------------------------------------------------------------------


def uncompiled(monkeypatch, wrong):
    """The filter with another way to draw the path's ancestor."""
    others(WEIGHTS, SCHEMES["systematic"], 0, 1)  # compiled while keys are
    plant(monkeypatch, "conditional filter: resampling", lambda resample_given: resample_given.py_func)
    plant(monkeypatch, "conditional filter: ancestors", wrong)
    put(monkeypatch, "conditional filter: keys", child)  # compiled functions hand keys back as plain integers
    return conditional_filter.renew_path.py_func


def right(draw_ancestor):
    return draw_ancestor


def without_weights(draw_ancestor):
    def wrong(population, *given):
        population.log_weights[:] = -np.log(population.log_weights.size)
        return draw_ancestor(population, *given)

    return wrong


def without_steps(draw_ancestor):
    def wrong(population, ready, path, law, t, key):
        return pick_by_logs(population.log_weights, population.rates, conditional_filter.uniform(key, 0))

    return wrong


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [right, without_weights, without_steps])
def test_wrong_ancestors_are_seen(wrong, monkeypatch):
    target, paths, probabilities = binary()
    renew = uncompiled(monkeypatch, wrong)
    draws, _, _ = draw_paths(target, np.ones((2, 2, 3)), 4_000, 4, renew=renew)
    if wrong is right:
        check_paths(draws, paths, probabilities, least=100)
        return
    with pytest.raises(AssertionError, match="gate 2"):
        check_paths(draws, paths, probabilities, least=50)


@pytest.mark.statistical
def test_without_ancestor_sampling_the_beginning_stays(monkeypatch):
    """It is right, but the first time is renewed far less often: what ancestor sampling is for."""
    rng = np.random.default_rng(4)
    x, n_times = rng.poisson(2.0, (2, 60)), 60
    target = target_of(x, W, BASE, law_of(BASIS, P, Q, initial=(INITIAL, INITIAL)))
    start = np.ones((2, 2, n_times))
    renewed = draw_paths(target, start, 300, 5)[2]
    renew = uncompiled(monkeypatch, lambda draw_ancestor: lambda *given: 0)
    assert renewed > 5 * draw_paths(target, start, 60, 5, renew=renew)[2]

"""Looking ahead with log-normal chains against its slow twin; weights are exact, and never NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

from nmf_zoo.inference.hmm.laws import make_population
from nmf_zoo.kernels.hmm.particles import guided_log_normal as guided
from nmf_zoo.kernels.hmm.particles import log_normal_mode as mode
from nmf_zoo.kernels.hmm.particles.filter import weigh
from nmf_zoo.kernels.hmm.particles.laws import Cloud
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.naive.hmm.particles import guided_log_normal as naive
from tests.naive.hmm.particles.guided_log_normal import target_of

KEY = seed_key(4)
RNG = np.random.default_rng(4)
CASES = {
    "usual": (3, 12, 3.0, 0.7),
    "many components": (9, 30, 5.0, 0.5),
    "one": (1, 1, 2.0, 1.0),
    "few counts": (4, 6, 0.1, 0.5),
    "more counts": (4, 6, 20.0, 0.5),
    "sharp": (2, 20, 300.0, 0.3),
    "wide": (3, 8, 3.0, 2.5),
}


def population_of(rank, n, rng=RNG):
    """Particles with weights, here and there of the same ancestors."""

    def cloud():
        z = rng.normal(0.2, 0.5, (rank, n))
        return Cloud(np.exp(z), z)

    population = make_population(rank, n, AUXILIARY)._replace(cloud=cloud(), other=cloud())
    log_weights = rng.normal(size=n)
    population.log_weights[:] = log_weights - np.log(np.exp(log_weights).sum())
    population.ancestors[:] = np.sort(rng.integers(0, n, n))
    return population


def problem(rank, n_features, mean, scale, n=70, **other):
    W = RNG.gamma(1.0, mean, (n_features, rank))
    X = RNG.poisson(W @ RNG.lognormal(0.2, scale, (rank, 2)) + 0.2)
    X[0, 1] = max(X[0, 1], 1)
    population = population_of(rank, n)
    return target_of(X.astype(float), W, 0.2, scale, **other), population, population.ahead


def sample_of(target, t):
    cells = slice(*target.counts.indptr[t : t + 2])
    features = target.counts.indices[cells]
    offset = target.counts.offset[cells] if target.counts.offset.size else 0.0
    weight_sums = target.counts.weight_sums[t if len(target.counts.weight_sums) > 1 else 0]
    return naive.Sample(target.counts.values[cells], target.W[features], target.base[features] + offset, weight_sums)


def expansion_of(ahead):
    rank, vectors = ahead.vectors.shape[1], ahead.vectors
    L = ahead.shared[rank : 2 * rank]
    return naive.Expansion(
        vectors[mode.LOG_SCALE],
        vectors[mode.ANCHOR],
        vectors[mode.SLOPE],
        ahead.shared[:rank],
        vectors[mode.CENTRE],
        L @ L.T,
    )


def log_increments(new, ahead, points, means, precision):
    """log f - log q of every particle of a cloud, from the arrays of its ancestors."""
    expansion = expansion_of(ahead)
    return np.array(
        [
            stats.norm.logpdf(z, m, precision**-0.5).sum()
            - naive.log_proposal(z, m, precision, v, expansion, guided.OWN_SHARE)
            for z, m, v in zip(new.aux.T, means.T, points.T, strict=True)
        ]
    )


@pytest.mark.parametrize("case", CASES)
def test_expansion(case):
    target, population, ahead = problem(*CASES[case])
    guided.look(ahead, population, target, 1)
    precision = target.law.parameters[2] ** -2
    means = 0.2 + 0.8 * (population.cloud.aux - 0.2)
    np.testing.assert_allclose(ahead.spreads, means, rtol=1e-12)
    np.testing.assert_allclose(ahead.vectors[mode.MEAN], means @ np.exp(population.log_weights), rtol=1e-12)
    expected = naive.expand(sample_of(target, 1), ahead.vectors[mode.MEAN], precision)
    for name, found, wanted in zip(expected._fields, expansion_of(ahead), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8, err_msg=name)
    rank = target.W.shape[1]
    L, R = ahead.shared[rank : 2 * rank], ahead.shared[2 * rank :]
    np.testing.assert_allclose(L.T @ R, np.eye(rank), atol=1e-10)
    np.testing.assert_array_equal(np.tril(R, -1), 0.0)


@pytest.mark.parametrize("case", CASES)
def test_the_mode_is_the_mode(case):
    target, population, ahead = problem(*CASES[case])
    guided.look(ahead, population, target, 1)
    sample, mean = sample_of(target, 1), ahead.vectors[mode.MEAN]
    precision = target.law.parameters[2] ** -2

    def loss(z):
        return 0.5 * precision @ (z - mean) ** 2 - naive.log_g(sample, np.exp(z))

    expansion = expansion_of(ahead)
    z = expansion.log_scale + np.log(expansion.anchor)
    best = optimize.minimize(loss, mean, method="BFGS", options={"gtol": 1e-8, "maxiter": 10_000})
    assert loss(z) <= best.fun + mode.TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_look(case):
    target, population, ahead = problem(*CASES[case])
    guided.look(ahead, population, target, 1)
    precision, centre_mean = target.law.parameters[2] ** -2, ahead.vectors[mode.MEAN]
    sample = sample_of(target, 1)
    by_counts = sample.x.sum() < guided.FEW_COUNTS * target.W.shape[1]
    assert ahead.seen[0] == (guided.BY_COUNTS if by_counts else guided.BY_QUADRATIC)
    sample = sample if by_counts else None
    points, looks = naive.climb(ahead.spreads, centre_mean, precision, expansion_of(ahead), sample)
    np.testing.assert_allclose(ahead.points, points, atol=1e-5)
    looks = naive.mix(looks, np.exp(population.log_weights), guided.OWN_SHARE)
    np.testing.assert_allclose(population.look, looks, atol=1e-6)


@pytest.mark.parametrize("scale", [0.2, 0.5])
def test_looks_are_nearly_the_likelihood_of_the_sample(scale):
    target, population, ahead = problem(1, 5, 3.0, scale)
    guided.look(ahead, population, target, 1)
    grid = np.linspace(-6.0, 6.0, 4001)
    sample = sample_of(target, 1)
    log_g = np.array([naive.log_g(sample, np.exp([z])) for z in grid])
    exact = np.log(np.exp(log_g - log_g.max()) @ stats.norm.pdf(grid[:, None], ahead.spreads[0], scale))
    exact = naive.mix(exact, np.exp(population.log_weights), guided.OWN_SHARE)
    weights = np.exp(population.log_weights + exact - exact.max())  # ancestors that could matter
    difference = population.look - exact
    middle = np.average(difference, weights=weights)
    assert np.ptp(exact) > 1.0
    assert np.average(np.abs(difference - middle), weights=weights) < 0.05


@pytest.mark.parametrize("case", CASES)
def test_increments_are_log_f_less_log_q(case):
    target, population, ahead = problem(*CASES[case], n=300)
    guided.look(ahead, population, target, 1)
    guided.propose(ahead, population, target, 1, child(KEY, 1))
    ancestors, new = population.ancestors, population.other
    precision = target.law.parameters[2] ** -2
    expected = log_increments(new, ahead, ahead.points[:, ancestors], ahead.spreads[:, ancestors], precision)
    np.testing.assert_allclose(population.increments, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(new.h, np.exp(new.aux), rtol=1e-12)
    assert population.increments.max() <= -math.log(guided.OWN_SHARE)
    given = [guided.increment_given(ahead, new, i, ancestors[i]) for i in range(300)]
    np.testing.assert_allclose(given, population.increments, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_first_time(case):
    target, population, ahead = problem(*CASES[case], n=300)
    guided.propose_first(ahead, population, target, 0, child(KEY, 2))
    precision, means = target.law.initial[1] ** -2, np.broadcast_to(target.law.initial[0], (300, target.W.shape[1])).T
    points = np.broadcast_to(ahead.vectors[mode.CENTRE], means.T.shape).T
    expected = log_increments(population.cloud, ahead, points, means, precision)
    np.testing.assert_allclose(population.increments, expected, rtol=1e-6, atol=1e-6)


def test_the_law_s_own_share_is_drawn_and_weighed():
    target, population, ahead = problem(2, 10, 30.0, 0.5, n=20_000)
    guided.look(ahead, population, target, 1)
    guided.propose(ahead, population, target, 1, child(KEY, 3))
    far = population.increments > 0.9 * -math.log(guided.OWN_SHARE)  # where only the chain's own law gets to
    assert 0.5 * guided.OWN_SHARE < far.mean() < 1.5 * guided.OWN_SHARE


def test_a_missing_time_changes_nothing():
    target, population, ahead = problem(3, 5, 3.0, 0.5, mask=np.array([[1.0, 0.0]] * 5))
    guided.look(ahead, population, target, 1)
    guided.propose(ahead, population, target, 1, child(KEY, 4))
    np.testing.assert_array_equal(population.look, 0.0)
    np.testing.assert_array_equal(population.increments, 0.0)
    assert guided.increment_given(ahead, population.other, 3, 5) == 0.0


def test_offsets():
    offset = RNG.gamma(1.0, 5.0, (12, 2))
    target, population, ahead = problem(3, 12, 3.0, 0.7, offset=offset)
    guided.look(ahead, population, target, 1)
    expected = naive.expand(sample_of(target, 1), ahead.vectors[mode.MEAN], target.law.parameters[2] ** -2)
    np.testing.assert_allclose(expansion_of(ahead).A, expected.A, rtol=1e-8)


HARD = {
    "no counts": (np.zeros((4, 2)), np.ones((4, 3)), 0.0, 0.5),
    "huge counts": (np.full((4, 2), 1e6), RNG.gamma(1.0, 1.0, (4, 3)), 0.0, 0.5),
    "huge counts of one": (np.full((1, 2), 1e6), np.ones((1, 1)), 0.0, 0.1),
    "twin columns": (np.full((4, 2), 1e4), np.ones((4, 3)), 0.0, 1.0),
    "zero columns": (np.ones((4, 2)), np.array([[1.0, 0.0, 0.0]] * 4), 0.1, 0.5),
    "zero W": (np.ones((4, 2)), np.zeros((4, 3)), 0.1, 0.5),
    "rates near 0": (np.ones((4, 2)), np.full((4, 3), 1e-200), 0.0, 0.5),
    "impossible": (np.ones((4, 2)), np.zeros((4, 3)), 0.0, 0.5),
    "huge W": (np.ones((4, 2)), np.full((4, 3), 1e200), 0.0, 0.5),
    "very wide": (RNG.poisson(5.0, (4, 2)).astype(float), np.ones((4, 3)), 0.0, 30.0),
    "very narrow": (RNG.poisson(5.0, (4, 2)).astype(float), np.ones((4, 3)), 0.0, 1e-6),
}


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize("case", HARD)
def test_never_nan(case, n):
    X, W, base, scale = HARD[case]
    target, population = target_of(X, W, base, scale), population_of(W.shape[1], n)
    ahead = population.ahead
    population.ancestors[:] = np.arange(n)
    guided.propose_first(ahead, population, target, 0, child(KEY, 5))
    log_p, _ = weigh(population, target, 0)
    assert log_p == -np.inf if case == "impossible" else np.isfinite(log_p)
    guided.look(ahead, population, target, 1)
    guided.propose(ahead, population, target, 1, child(KEY, 6))
    for array in (population.look, population.increments, population.other.aux, population.other.h, population.cloud.h):
        assert np.isfinite(array).all()
    log_p, _ = weigh(population._replace(cloud=population.other, other=population.cloud), target, 1)
    assert log_p == -np.inf if case == "impossible" else np.isfinite(log_p)


def test_weights_of_zero_and_looks_that_fail():
    target, population, ahead = problem(3, 12, 3.0, 0.7)
    population.log_weights[:] = -np.inf
    population.log_weights[7] = 0.0
    guided.look(ahead, population, target, 1)
    assert np.isfinite(population.look).all()


@pytest.mark.parametrize("name", ["expand", "look"])
def test_python_and_compiled_agree(name):
    target, population, ahead = problem(3, 12, 3.0, 0.7)
    guided.look(ahead, population, target, 1)
    found = [array.copy() for array in (ahead.vectors, ahead.shared, population.look)]
    function = mode.set_expansion if name == "expand" else guided.look
    if name == "expand":
        function.py_func(ahead, target, 1)
    else:
        function.py_func(ahead, population, target, 1)
    for wanted, array in zip(found, (ahead.vectors, ahead.shared, population.look), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-12, atol=1e-12)

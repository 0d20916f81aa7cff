"""Looking ahead with unit chains against its slow twin; weights are exact, and never NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.hmm.laws import make_population
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles import guided_unit as guided
from nmf_zoo.kernels.hmm.particles import truncated
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import weigh
from nmf_zoo.kernels.hmm.particles.laws import UNIT, Cloud, Law, log_step
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.naive.hmm.particles import guided_unit as naive

KEY = seed_key(4)
RNG = np.random.default_rng(4)
BASE = 0.2


def target_of(X, W, alpha=0.9):
    """Samples X (F, T) of complete counts; a column of NaN is a missing time."""
    missing = np.isnan(X).any(axis=0)
    cells = [np.flatnonzero(np.nan_to_num(x)) for x in X.T]
    counts = Counts(
        np.concatenate([[0], np.cumsum([len(f) for f in cells])]).astype(np.int64),
        np.concatenate(cells).astype(np.int32),
        np.concatenate([x[f] for x, f in zip(X.T, cells, strict=True)]).astype(float),
        np.empty(0),
        np.where(missing[:, None], 0.0, W.sum(axis=0)),
    )
    rank = W.shape[1]
    law = Law(UNIT, np.vstack([np.full(rank, alpha), np.zeros((2, rank))]), np.zeros((2, rank)))
    return Target(counts, W, np.full(len(W), BASE), law)


def population_of(rank, n, kind=UNIT, log_distance=3.0):
    """Particles with weights, some of the same ancestors, some of their components near an end."""

    def cloud():
        near = np.exp(-log_distance * RNG.random((rank, n))) / 2
        is_up = RNG.random((rank, n)) < 0.3
        return Cloud(np.where(is_up, 1 - near, near), np.where(is_up, near, 1 - near))

    population = make_population(rank, n, AUXILIARY)._replace(cloud=cloud(), other=cloud())
    log_weights = RNG.normal(size=n)
    population.log_weights[:] = log_weights - np.log(np.exp(log_weights).sum())
    population.ancestors[:] = np.sort(RNG.integers(0, n, n))
    return population


def problem(rank, n_features, mean, n=37):
    W = RNG.gamma(1.0, mean, (n_features, rank))
    X = RNG.poisson(W @ RNG.beta(0.3, 0.3, (rank, 2)) + BASE).astype(float)
    X[0, 1] = max(X[0, 1], 1)
    return target_of(X, W), population_of(rank, n), X[:, 1]


def shared(ahead, rank):
    """(precision, shift) of log g, the point, and the shift that keeps within the bounds."""
    return ahead.shared[:rank], ahead.vectors[2], ahead.vectors[3], ahead.vectors[4]


def laws_of(cloud, i, alpha=0.9):
    return [naive.unit_law(cloud.h[k, i], cloud.aux[k, i], alpha) for k in range(len(cloud.h))]


CASES = {"usual": (4, 12, 3.0), "one": (1, 1, 2.0), "few counts": (3, 5, 0.1), "sharp": (2, 20, 300.0)}


@pytest.mark.parametrize("case", CASES)
def test_look_is_that_of_the_slow_twin(case):
    rank, n_features, mean = CASES[case]
    target, population, x = problem(rank, n_features, mean)
    ahead = population.ahead
    guided.look(ahead, population, target, 1)
    precision, shift, point, bound_shift = shared(ahead, rank)
    wanted = naive.quadratic(x, target.W, target.base, target.counts.weight_sums[1], point)
    np.testing.assert_allclose(precision, wanted[0], rtol=1e-10)
    np.testing.assert_allclose(shift, wanted[1], rtol=1e-9, atol=1e-9 * np.abs(wanted[1]).max())
    found = []
    for i in range(population.look.size):
        tau, _, log_z = naive.find_sites(laws_of(population.cloud, i), precision, shift, bound_shift, 1)
        np.testing.assert_allclose(ahead.spreads[:, i], tau, rtol=2e-3, atol=2e-3 * np.diag(precision).max())
        found.append(log_z)
    logs = naive.hedged(np.array(found), population.log_weights)
    np.testing.assert_allclose(population.look - population.look[0], logs - logs[0], atol=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_log_f_minus_log_q(case):
    rank, n_features, mean = CASES[case]
    target, population, _ = problem(rank, n_features, mean)
    ahead, old, new = population.ahead, population.cloud, population.other
    guided.look(ahead, population, target, 1)
    guided.propose(ahead, population, target, 1, KEY)
    precision, shift = shared(ahead, rank)[:2]
    for i, a in enumerate(population.ancestors):
        which = (new.h[:, i] > old.h[:, a]).astype(int)
        ratio = naive.log_guided_over_own(
            laws_of(old, a),
            which,
            new.h[:, i],
            precision,
            shift,
            ahead.spreads[:, a],
            ahead.points[:, a],
            truncated.is_even.py_func,
        )
        assert population.increments[i] == pytest.approx(naive.increment(ratio), abs=2e-5 * rank)
        assert np.isfinite(log_step(target.law, new, i, old, a))


@pytest.mark.parametrize("rank", [1, 3])
def test_the_mode_is_one(rank):
    """Steps from the point along any component, within the bounds, lead down."""
    target, population, x = problem(rank, 8, 5.0)
    mean, variance = np.empty(rank), np.empty(rank)
    guided.pool(population.ahead.vectors, np.exp(population.log_weights), population.cloud, target.law)
    mean[:], variance[:] = population.ahead.vectors[:2]
    guided.look(population.ahead, population, target, 1)
    point = population.ahead.vectors[3].copy()

    def log_target(h):
        rate = target.base + target.W @ h
        return x @ np.log(rate) - rate.sum() - 0.5 * np.sum((h - mean) ** 2 / variance)

    for k in range(rank):
        for step in (-0.02, 0.02):
            moved = point.copy()
            moved[k] = np.clip(moved[k] + step, 0, 1)
            assert log_target(moved) < log_target(point) + 1e-2


def test_pooled_moments_are_those_of_draws():
    target, population, _ = problem(2, 3, 1.0, n=3)
    guided.pool(population.ahead.vectors, np.exp(population.log_weights), population.cloud, target.law)
    rng, n = np.random.default_rng(1), 400_000
    i = rng.choice(3, n, p=np.exp(population.log_weights))
    for k in range(2):
        below, above = population.cloud.h[k, i], population.cloud.aux[k, i]
        down = np.where(below <= above, 0.9, 0.1)
        u = rng.random(n)
        draws = np.where(rng.random(n) < down, below * u, 1 - above * u)
        found = population.ahead.vectors[:2, k]
        np.testing.assert_allclose(found, [draws.mean(), draws.var()], rtol=0.02)


@pytest.mark.parametrize("shift", [-1e6, -300.0, -5.0, 0.0, 0.3, 40.0, 1e5])
@pytest.mark.parametrize("precision", [1e-3, 1.0, 50.0, 1e5])
@pytest.mark.parametrize(("low", "width"), [(0.0, 1e-300), (0.0, 1e-3), (0.0, 0.4), (0.3, 0.7), (0.999, 1e-3)])
def test_truncated_integrals(low, width, precision, shift):
    found = truncated.integrals(low, width, precision, shift)
    log_mean, mean, square = naive.part_moments(low, low + width, precision, shift)
    assert found[0] == pytest.approx(log_mean, abs=1e-6, rel=1e-12)
    assert found[1] == pytest.approx(mean, abs=1e-4 * width)
    if width > naive.SPIKE:
        spread = square - mean**2
        assert found[2] == pytest.approx(spread, rel=5e-3, abs=1e-9 * max(mean, 1e-9) ** 2)


@pytest.mark.parametrize(
    ("near", "length"), [(-3.0, 9.0), (-0.5, 1.0), (0.2, 50.0), (0.7, 1.0), (4.0, 6.0), (40.0, 2.0)]
)
def test_truncated_draws(near, length):
    draws = [truncated.draw_truncated(0.0, length, 1.0, -near, child(KEY, i)) + near for i in range(4000)]
    law = stats.truncnorm(near, near + length)
    assert stats.kstest(draws, law.cdf).pvalue > 1e-4
    flipped = [truncated.draw_truncated(-near - length, length, 1.0, 0.0, child(KEY, i)) for i in range(4000)]
    assert stats.kstest(np.array(flipped) - near - length, stats.truncnorm(-near - length, -near).cdf).pvalue > 1e-4


def hard_cases():
    rank, n_features = 3, 5
    W = RNG.gamma(1.0, 10.0, (n_features, rank))
    X = RNG.poisson(W @ RNG.random((rank, 2)) + BASE).astype(float)
    empty_column, zeros, missing, one_count = W.copy(), X.copy(), X.copy(), np.zeros_like(X)
    empty_column[:, 1] = 0.0
    zeros[:, 1], missing[:, 1] = 0.0, np.nan
    one_count[2, 1] = 1.0
    yield "usual", X, W
    yield "no counts", zeros, W
    yield "missing", missing, W
    yield "one count", one_count, W * 1e4
    yield "huge", X * 1e6, W * 1e6
    yield "tiny", X, W * 1e-6
    yield "empty column", X, empty_column
    yield "empty", X, np.zeros_like(W)
    yield "one component", X, W[:, :1].copy()


HARD = {name: (X, W) for name, X, W in hard_cases()}


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("ends", [1.0, 690.0], ids=["inside", "at the ends"])
@pytest.mark.parametrize("name", HARD)
def test_never_nan(name, ends, n):
    X, W = HARD[name]
    target, population = target_of(X, W), population_of(W.shape[1], n, log_distance=ends)
    if ends > 1 and n > 1:
        population.log_weights[: n // 2] = -math.inf
    for first in (True, False):
        if first:
            other = population._replace(cloud=population.other, other=Cloud(*(a.copy() for a in population.cloud)))
            guided.propose_first(other.ahead, other, target, 1, KEY)
            new = other.cloud
        else:
            guided.look(population.ahead, population, target, 1)
            assert np.all(np.isfinite(population.look))
            guided.propose(population.ahead, population, target, 1, KEY)
            new = population.other
        assert np.all(np.isfinite(population.increments))
        assert np.all((new.h > 0) & (new.h <= 1) & (new.aux > 0) & (new.aux <= 1))
        np.testing.assert_allclose(new.h + new.aux, 1.0, rtol=1e-15)
        if name == "missing":
            assert np.all(population.increments == 0.0)
    log_p, size = weigh(population._replace(cloud=population.other), target, 1)
    assert math.isfinite(log_p)
    assert 1 - 1e-9 <= size <= n + 1e-9

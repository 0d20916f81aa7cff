"""Looking ahead with binary chains against its slow twin; weights are exact, and never NaN."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from nmf_zoo.inference.hmm.laws import make_population
from nmf_zoo.kernels.hmm.particles import guided_basis as guided
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import weigh
from nmf_zoo.kernels.hmm.particles.laws import BASIS, Cloud, Law
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY
from nmf_zoo.kernels.random.keyed_rng import seed_key
from tests.naive.hmm.particles import guided_unit as naive
from tests.oracle.test_guided_unit import BASE, HARD
from tests.oracle.test_guided_unit import target_of as unit_target

KEY = seed_key(4)
RNG = np.random.default_rng(4)
P, Q, INITIAL = 0.85, 0.7, 0.4


def target_of(X, W):
    rank = W.shape[1]
    law = Law(BASIS, np.repeat([[P], [Q], [0.0]], rank, 1), np.repeat([[INITIAL], [0.0]], rank, 1))
    counts, W, base, _ = unit_target(X, W)
    return Target(counts, W, base, law)


def population_of(rank, n):
    def cloud():
        h = (RNG.random((rank, n)) < 0.4).astype(float)
        return Cloud(h, h.copy())

    population = make_population(rank, n, AUXILIARY)._replace(cloud=cloud(), other=cloud())
    log_weights = RNG.normal(size=n)
    population.log_weights[:] = log_weights - np.log(np.exp(log_weights).sum())
    population.ancestors[:] = np.sort(RNG.integers(0, n, n))
    return population


def laws_of(cloud, i):
    return [naive.basis_law(state, P, Q) for state in cloud.h[:, i]]


@pytest.mark.parametrize(("rank", "n_features", "mean"), [(4, 12, 3.0), (1, 1, 2.0), (3, 5, 0.1), (6, 30, 100.0)])
def test_look_and_weights_are_those_of_the_slow_twin(rank, n_features, mean):
    W = RNG.gamma(1.0, mean, (n_features, rank))
    X = RNG.poisson(W @ (RNG.random((rank, 2)) < 0.4) + BASE).astype(float)
    X[0, 1] = max(X[0, 1], 1)
    target, population = target_of(X, W), population_of(rank, 40)
    ahead, old, new = population.ahead, population.cloud, population.other
    guided.look(ahead, population, target, 1)
    guided.propose(ahead, population, target, 1, KEY)
    precision, shift, bound_shift = ahead.shared[:rank], ahead.vectors[2], ahead.vectors[4]
    laws = [laws_of(old, i) for i in range(40)]
    logs = np.array([naive.find_sites(law, precision, shift, bound_shift, guided.SWEEPS)[2] for law in laws])
    wanted = naive.hedged(logs, population.log_weights)
    np.testing.assert_allclose(population.look - population.look[0], wanted - wanted[0], atol=1e-4)
    for i, a in enumerate(population.ancestors):
        sites = ahead.spreads[:, a], ahead.points[:, a]
        which = new.h[:, i].astype(int)
        ratio = naive.log_guided_over_own(laws[a], which, new.h[:, i], precision, shift, *sites, None)
        assert population.increments[i] == pytest.approx(naive.increment(ratio), abs=1e-6)


def test_draws_follow_the_density_that_their_weights_name():
    """Weighed by f / q, draws of the next states follow f: every state's share of the sum of weights is f."""
    rank, n = 3, 200_000
    W = RNG.gamma(1.0, 3.0, (6, rank))
    target = target_of(RNG.poisson(W @ np.ones((rank, 2))).astype(float), W)
    population = population_of(rank, n)
    population.cloud.h[:] = population.cloud.aux[:] = np.array([0.0, 1.0, 0.0])[:, None]
    population.log_weights[:] = -math.log(n)
    population.ancestors[:] = np.arange(n)
    guided.look(population.ahead, population, target, 1)
    guided.propose(population.ahead, population, target, 1, KEY)
    weights = np.exp(population.increments)
    for state in itertools.product((0, 1), repeat=rank):
        f = np.prod([(1 - P if k != 1 else Q) if s else (P if k != 1 else 1 - Q) for k, s in enumerate(state)])
        terms = weights * np.all(population.other.h == np.array(state)[:, None], axis=0)
        assert abs(terms.mean() - f) < 5 * terms.std() / math.sqrt(n) + 1e-12


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("name", HARD)
def test_never_nan(name, n):
    X, W = HARD[name]
    target, population = target_of(X, W), population_of(W.shape[1], n)
    if n > 1:
        population.log_weights[: n // 2] = -math.inf
    first = population._replace(cloud=population.other, other=population_of(W.shape[1], n).cloud)
    guided.propose_first(first.ahead, first, target, 1, KEY)
    assert np.all(np.isfinite(population.increments))
    guided.look(population.ahead, population, target, 1)
    assert np.all(np.isfinite(population.look))
    guided.propose(population.ahead, population, target, 1, KEY)
    assert np.all(np.isfinite(population.increments))
    assert np.all(np.isin(population.other.h, (0.0, 1.0)))
    np.testing.assert_array_equal(population.other.h, population.other.aux)
    log_p, _ = weigh(population._replace(cloud=population.other), target, 1)
    assert math.isfinite(log_p)

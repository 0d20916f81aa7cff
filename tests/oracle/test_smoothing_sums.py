"""Smoothing sums by particles: against dense NumPy, and against exact smoothers where particles are all the states."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.hmm.laws import make_population
from nmf_zoo.inference.hmm.particle_expectations import SMOOTHERS, WantedSums, make_carried, smoothed_sums, split_sums
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, draw_paths
from nmf_zoo.inference.shared.layout import Weights
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles.ancestor_sampling import draw_by_guide, set_guide
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan
from nmf_zoo.kernels.hmm.particles.laws import (
    BASIS,
    LOG_NORMAL,
    UNIT,
    Cloud,
    Law,
    log_step,
    prepare_steps,
    steps_between,
    steps_to,
)
from nmf_zoo.kernels.hmm.particles.path_draws import draw_one
from nmf_zoo.kernels.hmm.particles.smoothing_sums import Backward, Forward, PathSmoother, carry
from nmf_zoo.kernels.hmm.particles.statistics import add_sample, begin_sums, total_sums
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.kernels.random.resampling import resample_by
from tests.naive.hmm import basis_chain as naive_chains
from tests.naive.hmm.particles import smoothing_sums as naive_particles

K, F, N, T = 3, 4, 11, 6
KINDS = {"basis": BASIS, "unit": UNIT, "log-normal": LOG_NORMAL}
RNG = np.random.default_rng(3)
W = RNG.gamma(1.0, 3.0, (F, K))
BASE = RNG.gamma(1.0, 0.2, F)
WEIGHT = RNG.gamma(5.0, 0.2, (F, T)) * (RNG.random((F, T)) < 0.8)
X = RNG.poisson(4.0, (F, T)) * (WEIGHT > 0) * (RNG.random((F, T)) < 0.8)
OFFSET = RNG.gamma(1.0, 0.2, (F, T))
KEY = seed_key(5)
GAINS = np.arange(1.0, T + 1) ** -0.8
SMOOTHERS_AND_MORE = SMOOTHERS | {"backward, 4 drawn": Backward(4, 2)}


def law_of(kind, rank=K):
    each = np.linspace(0.0, 1.0, rank)
    parameters = {
        BASIS: (0.6 + 0.3 * each, 0.8 - 0.3 * each, 0 * each),
        UNIT: (0.7 + 0.2 * each, 0 * each, 0 * each),
        LOG_NORMAL: (each - 0.5, 0.9 - 0.4 * each, 0.3 + 0.5 * each),
    }[kind]
    initial = {BASIS: (0.2 + 0.5 * each, 0 * each), UNIT: (0 * each, 0 * each), LOG_NORMAL: (each, 0.5 + each)}[kind]
    return Law(kind, np.array(parameters), np.array(initial))


def cloud_of(kind, rng, n=N):
    if kind == BASIS:
        h = (rng.random((K, n)) < 0.5).astype(float)
        return Cloud(h, h.copy())
    if kind == UNIT:
        h = rng.random((K, n))
        return Cloud(h, 1 - h)
    z = rng.normal(size=(K, n))
    return Cloud(np.exp(z), z)


def counts_of(x, offset=None, weight_sums=None):
    t, f = np.nonzero(x.T)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(t, minlength=x.shape[1]))])
    offset = np.empty(0) if offset is None else offset[f, t]
    return Counts(
        indptr,
        f.astype(np.int32),
        x[f, t].astype(float),
        offset,
        np.zeros((1, K)) if weight_sums is None else weight_sums,
    )


def steps_of(kind, seed=1):
    """A population at T times: particles, weights and ancestors from nowhere, most of whom stay where they are."""
    rng = np.random.default_rng(seed)
    population = make_population(K, N)
    for t in range(T):
        log_weights = np.log(rng.dirichlet(np.ones(N)))
        ancestors = np.where(rng.random(N) < 0.6, np.arange(N), 0 if t % 2 else 7)
        ancestors[[0, 7]] = 0, 7
        population = population._replace(
            cloud=cloud_of(kind, rng),
            other=population.cloud,
            log_weights=log_weights,
            weights=np.exp(log_weights),
            ancestors=ancestors if t else np.arange(N),
        )
        yield t, population


def test_densities_of_all_steps():
    for kind in KINDS.values():
        law, rng = law_of(kind), np.random.default_rng(2)
        new, old = cloud_of(kind, rng, 7), cloud_of(kind, rng)
        ready, row, some = np.zeros((2 * K, N)), np.zeros(N), np.zeros(7)
        prepare_steps(ready, old, law)
        expected = naive_particles.log_steps(new, old, law)
        origins = rng.integers(0, N, 7).astype(np.uint64)
        steps_between(some, ready, new, old, origins, law)
        found = []
        for i in range(7):
            steps_to(row, ready, new, i, old, law)
            found.append(row.copy())
            assert some[i] == pytest.approx(row[origins[i]], rel=1e-13)
        differences = np.array(found) - expected  # a term for each new particle is left out
        np.testing.assert_allclose(differences, np.broadcast_to(differences[:, :1], differences.shape), atol=1e-11)
        scalar = [[log_step(law, new, i, old, j) for j in range(N)] for i in range(7)]
        np.testing.assert_allclose(scalar, expected, rtol=1e-11)


@pytest.mark.parametrize("smoother", SMOOTHERS_AND_MORE)
@pytest.mark.parametrize("kind", KINDS)
def test_the_statistics_of_every_particle(kind, smoother):
    """With decays and gains, weights of cells, missing cells and offsets."""
    law, smoother = law_of(KINDS[kind]), SMOOTHERS_AND_MORE[smoother]
    target = Target(counts_of(X, OFFSET), W, BASE, law)
    carried, log_weights = make_carried(law.kind, W.shape, N, smoother, F), np.zeros(N)
    for t, population in steps_of(law.kind):
        if t == 0:
            begin_sums(carried, population, law, GAINS[0])
            naive = naive_particles.Sums(population.cloud, law, GAINS[0])
        else:
            carry(carried, smoother, population, law, 1 - GAINS[t], GAINS[t], KEY)
            shares = shares_of(smoother, carried, population, log_weights, law)
            naive.carry(population.cloud, population.other, shares, 1 - GAINS[t], GAINS[t])
        add_sample(carried, population, target, WEIGHT[:, t], GAINS[t], t)
        naive.add(population.cloud, X[:, t], WEIGHT[:, t], BASE + OFFSET[:, t], W, GAINS[t])
        log_weights = population.log_weights
        expected = [getattr(naive, name).reshape(-1, N) for name in ("activations", "sources", "pairs", "first")]
        found = carried.scale[0] * carried.table
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-10, atol=1e-13)
        sums = np.zeros(len(found))
        total_sums(sums, carried, population.weights)
        np.testing.assert_allclose(sums, found @ population.weights, rtol=1e-12)


def shares_of(smoother, carried, population, log_weights, law):
    """B of the smoother, (N, N); that of the backward one from the particles that it has drawn."""
    if isinstance(smoother, PathSmoother):
        return naive_particles.from_drawn([population.ancestors], N)
    if isinstance(smoother, Forward):
        return naive_particles.backward(population.cloud, population.other, log_weights, law)
    drawn = carried.drawn[: smoother.draws]
    np.testing.assert_array_equal(drawn[0], population.ancestors)
    return naive_particles.from_drawn(drawn, N)


def test_parts_that_nobody_wants():
    law = law_of(LOG_NORMAL)
    target = Target(counts_of(X), W, BASE, law)
    full = sums_over_steps(law, target, WantedSums())
    for wanted in (WantedSums(sources=False), WantedSums(activations=False, first=False), WantedSums(pairs=False)):
        found = sums_over_steps(law, target, wanted)
        for part, other, use in zip(found, full, wanted, strict=True):
            assert part.size == 0 or use
            if use:
                np.testing.assert_allclose(part, other, rtol=1e-12)


def sums_over_steps(law, target, wanted, smoother=SMOOTHERS["path"]):
    carried = make_carried(law.kind, W.shape, N, smoother, 1, wanted)
    for t, population in steps_of(law.kind):
        if t == 0:
            begin_sums(carried, population, law, 1.0)
        else:
            carry(carried, smoother, population, law, 1.0, 1.0, KEY)
        add_sample(carried, population, target, np.ones(1), 1.0, t)
    sums = np.zeros(len(carried.table))
    total_sums(sums, carried, population.weights)
    return split_sums(sums, carried.rows, W.shape)


def test_a_decay_never_runs_out_of_digits():
    law, smoother = law_of(UNIT), SMOOTHERS["path"]
    carried = make_carried(UNIT, W.shape, N, smoother)
    population = next(steps_of(UNIT))[1]._replace(other=cloud_of(UNIT, np.random.default_rng(9)))
    begin_sums(carried, population, law, 1.0)
    for _ in range(3000):
        carry(carried, smoother, population, law, 0.5, 0.5, KEY)
    towards, away = carried.scale[0] * carried.table[carried.rows.pairs : carried.rows.first].reshape(K, 2, N)[0]
    np.testing.assert_allclose(towards + away, 1.0, rtol=1e-12)
    carry(carried, smoother, population, law, 0.0, 1.0, KEY)
    assert set(np.unique(carried.scale[0] * carried.table)) == {0.0, 1.0}


def exact_run(smoother, gains, decays, gain_of_sources=None):
    """Sums with all 2^K states as the particles, and their exact filter as the weights."""
    law = law_of(BASIS)
    p, q, initial = law.parameters[0], law.parameters[1], law.initial[0]
    states = naive_chains.bits(K).T.astype(float)
    cloud = Cloud(np.ascontiguousarray(states), np.ascontiguousarray(states))
    emissions = naive_chains.log_emissions(X, WEIGHT, WEIGHT * BASE[:, None], W)
    population = make_population(K, 2**K)._replace(cloud=cloud, other=cloud)
    target = Target(counts_of(X), W, BASE, law)
    carried = make_carried(BASIS, W.shape, 2**K, smoother, F)
    chance = naive_chains.initial_law(initial)
    for t in range(T):
        chance = (chance if t == 0 else chance @ naive_chains.transition(p, q)) * np.exp(emissions[t])
        chance = chance / chance.sum()
        population = population._replace(log_weights=np.log(chance), weights=chance)
        if t == 0:
            begin_sums(carried, population, law, gains[0])
        else:
            carry(carried, smoother, population, law, decays[t], gains[t], KEY)
        of_sample = gains if gain_of_sources is None else gain_of_sources
        add_sample(carried, population, target, WEIGHT[:, t], of_sample[t], t)
    sums = np.zeros(len(carried.table))
    total_sums(sums, carried, population.weights)
    return split_sums(sums, carried.rows, W.shape)


def test_the_forward_smoother_is_exact_where_the_particles_are_all_states():
    law = law_of(BASIS)
    chain = law.parameters[0], law.parameters[1], law.initial[0]
    _, marginals, pairs, sources = naive_chains.smooth(X, WEIGHT, WEIGHT * BASE[:, None], W, *chain)
    found = exact_run(SMOOTHERS["forward"], np.ones(T), np.ones(T))
    expected = WEIGHT @ marginals, sources, pairs, marginals[0][:, None]
    for part, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, exact, rtol=1e-10)


def test_its_averages_are_those_of_exact_online_em():
    """Sum_i w_i E[s_i], w_i = g_i prod_{j > i} (1 - g_j); with the gain of the time before it is not."""
    law = law_of(BASIS)
    chain = law.parameters[0], law.parameters[1], law.initial[0]
    exact = naive_chains.learn_online(X, WEIGHT, WEIGHT * BASE[:, None], W, *chain, 0.8)[4]
    forward = SMOOTHERS["forward"]
    found = exact_run(forward, GAINS, 1 - GAINS)
    for part, expected in zip(found, exact, strict=False):
        np.testing.assert_allclose(part, expected, rtol=1e-10)
    late = exact_run(forward, GAINS, 1 - GAINS, gain_of_sources=np.append(GAINS[0], GAINS[:-1]))
    assert np.abs(late[1] / exact[1] - 1).max() > 0.01


@pytest.mark.parametrize("scheme", range(4))
def test_particles_with_children_stay_where_they_are(scheme):
    """What lets columns be taken over in place."""
    for seed in range(20):
        weights = np.random.default_rng(seed).dirichlet(np.full(50, 0.2))
        ancestors = np.zeros(50, np.int64)
        resample_by(ancestors, weights, scheme, seed_key(seed))
        np.testing.assert_array_equal(ancestors[ancestors], ancestors)


def test_draws_by_a_guide_are_by_inversion():
    weights = np.random.default_rng(1).dirichlet(np.full(40, 0.1))
    weights[[0, 3, 39]] = 0.0
    guide, cumulative, out = np.zeros(40, np.uint64), np.zeros(40), np.zeros(3000, np.uint64)
    set_guide(guide, cumulative, weights)
    np.testing.assert_allclose(cumulative, np.cumsum(weights), rtol=1e-14)
    draw_by_guide(out, guide, cumulative, KEY)
    assert np.all(weights[out] > 0)
    for u in (1e-300, 1e-9, 0.3, 0.5, 1 - 1e-16):
        expected = np.searchsorted(np.cumsum(weights), u * weights.sum())
        assert draw_one(weights, u) == min(expected, np.flatnonzero(weights)[-1])


def filter_of(kind, n_particles=60, block=None):
    weights = Weights(np.ones((1, 1)), np.ones((1, 1)), WEIGHT)
    counts = counts_of(X, weight_sums=np.ascontiguousarray(weights.over_features(W)))
    target = Target(counts, W, BASE, law_of(KINDS[kind]))
    return ParticleFilter(target, FilterPlan(0, 0, 0.5), n_particles, moments=False, block=block), weights


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_change_nothing(kind):
    for name in SMOOTHERS:
        whole, parts = (smoothed_sums(*filter_of(kind, block=block), SMOOTHERS[name], KEY) for block in (None, 2))
        for one, other in zip(whole, parts, strict=True):
            np.testing.assert_array_equal(one, other)
        assert whole.log_likelihood == filter_of(kind)[0].run(KEY)[0] != 0.0
    for steps in (0, 2):
        whole, parts = (draw_paths(filter_of(kind)[0], 5, KEY, steps, block) for block in (None, 2))
        np.testing.assert_array_equal(whole.h, parts.h)
        assert whole.log_likelihood == parts.log_likelihood
        assert whole.h.shape == (5, K, T)


def test_weights_of_samples_and_of_features():
    """An outer product of weights gives the sums of the same weights cell by cell."""
    filtering, _ = filter_of("unit")
    u, v = RNG.gamma(3.0, 1.0, (F, 1)), RNG.gamma(3.0, 1.0, (T, 1))
    outer, one = Weights(u, v), np.ones((1, 1))
    plain = smoothed_sums(filtering, Weights(one, one, u @ v.T), SMOOTHERS["path"], KEY)
    found = smoothed_sums(filtering, outer, SMOOTHERS["path"], KEY)
    np.testing.assert_allclose(found.activations, plain.activations, rtol=1e-12)
    np.testing.assert_array_equal(found.sources, plain.sources)


def test_counts_that_no_particle_can_make():
    counts = counts_of(X)
    target = Target(counts, np.zeros((F, K)), np.zeros(F), law_of(UNIT))
    filtering = ParticleFilter(target, FilterPlan(0, 0, 0.5), 10)
    first = int(np.flatnonzero(X.sum(axis=0))[0])
    found = smoothed_sums(filtering, Weights(np.ones((1, 1)), np.ones((1, 1))), SMOOTHERS["backward"], KEY)
    assert (found.log_likelihood, found.impossible) == (-np.inf, first)
    assert draw_paths(filtering, 3, KEY).impossible == first

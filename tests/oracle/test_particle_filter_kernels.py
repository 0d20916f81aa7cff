"""The particle filter's kernels against slow, obvious twins, and their draws against the laws they are of."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.hmm.laws import after_block, make_population, steps_of, with_guide
from nmf_zoo.inference.hmm.particle_options import PROPOSALS
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles import filter as steps
from nmf_zoo.kernels.hmm.particles import passes, proposals
from nmf_zoo.kernels.hmm.particles.emission import Target, log_emission
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT, Cloud, Law, draw_first, move
from nmf_zoo.kernels.hmm.particles.rows import draw_normals, turn
from nmf_zoo.kernels.random import resampling
from nmf_zoo.kernels.random.keyed_rng import child, fold, seed_key
from tests.naive.hmm.particles import filter as naive
from tests.particle_steps import advance, begin

K, F, N = 5, 3, 301
RNG = np.random.default_rng(2)
KEY = seed_key(7)
W, BASE, WEIGHT_SUMS = RNG.gamma(1.0, 2.0, (F, K)), RNG.uniform(0.1, 0.5, F), RNG.uniform(0, 2, (1, K))
LAWS = {
    BASIS: Law(BASIS, np.vstack([RNG.uniform(0.5, 0.9, (2, K)), np.zeros(K)]), np.full((2, K), 0.4)),
    UNIT: Law(UNIT, np.vstack([RNG.uniform(0.6, 0.9, K), np.zeros((2, K))]), np.zeros((2, K))),
    LOG_NORMAL: Law(LOG_NORMAL, np.array([[0.3] * K, [0.7] * K, [0.5] * K]), np.array([[0.1] * K, [0.8] * K])),
}


def target_of(law, x, offset=None):
    """A target of one time with counts x (F,)."""
    seen = np.flatnonzero(x).astype(np.int32)
    offsets = np.empty(0) if offset is None else offset[seen]
    counts = Counts(np.array([0, len(seen)]), seen, x[seen].astype(float), offsets, WEIGHT_SUMS)
    return Target(counts, W, BASE, law)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("with_offset", [False, True])
def test_emission(rank, with_offset):
    h, weights, weight_sums = RNG.random((rank, N)), RNG.gamma(1.0, 2.0, (F, rank)), RNG.uniform(0, 2, (1, rank))
    x, offset = np.array([4, 0, 2]), RNG.uniform(0, 1, F) if with_offset else None
    target = target_of(LAWS[UNIT], x, offset)
    target = target._replace(W=weights, counts=target.counts._replace(weight_sums=weight_sums))
    out = np.empty(N)
    log_emission(out, np.empty(N), h, target, 0)
    expected = naive.log_emission(h, weights, BASE, x, 0 if offset is None else offset, weight_sums[0])
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_a_rate_of_zero_is_impossible_where_there_is_a_count():
    target = target_of(LAWS[BASIS], np.array([1, 0, 0]))._replace(base=np.zeros(F))
    out = np.empty(2)
    log_emission(out, np.empty(2), np.array([[0.0, 1.0]] * K), target, 0)
    assert out[0] == -np.inf
    assert np.isfinite(out[1])


def test_normalise():
    log_weights = RNG.normal(0, 30, N) + 1000.0
    log_weights[3] = -np.inf
    weights, own = np.empty(N), log_weights.copy()
    total, size = steps.normalise(weights, own)
    expected, log_total, expected_size = naive.normalise(log_weights)
    np.testing.assert_allclose(weights, expected, rtol=1e-10)
    np.testing.assert_allclose([total, size], [log_total, expected_size], rtol=1e-12)
    np.testing.assert_allclose(np.exp(own), expected, rtol=1e-10)
    assert weights[3] == 0.0
    assert steps.normalise(weights, np.full(N, -np.inf)) == (-np.inf, 0.0)


@pytest.mark.parametrize("scheme", ["systematic", "stratified"])
def test_children_by_levels(scheme):
    code = {"systematic": resampling.SYSTEMATIC, "stratified": resampling.STRATIFIED}[scheme]
    for draw in range(200):
        weights = RNG.gamma(0.1, 1.0, 50)
        weights[RNG.random(50) < 0.3] = 0.0
        weights /= weights.sum()
        found, key = np.zeros(50, np.int64), child(KEY, draw)
        resampling.add_children(found, weights, 50, code, key)
        np.testing.assert_array_equal(found, naive.children(weights, naive.levels(scheme, 50, key)))


@pytest.mark.parametrize("scheme", range(4))
def test_every_scheme_resamples_by_the_weights(scheme):
    """Right on average, never a particle of no weight; a particle with children stays where it is."""
    n, runs = 8, 20_000
    weights = np.array([0.3, 0.0, 0.05, 0.2, 0.15, 0.0, 0.05, 0.25])
    ancestors, total, squares = np.empty(n, np.int64), np.zeros(n), np.zeros(n)
    for run in range(runs):
        resampling.resample_by(ancestors, weights, scheme, child(KEY, scheme, run))
        counts = np.bincount(ancestors, minlength=n)
        assert np.all(ancestors[counts > 0] == np.flatnonzero(counts > 0))
        total += counts
        squares += counts**2
    mean, spread = total / runs, np.sqrt(squares / runs - (total / runs) ** 2)
    assert np.all(mean[weights == 0] == 0)
    assert np.all(np.abs(mean - n * weights) <= 4.5 * spread / np.sqrt(runs) + 1e-12), mean
    if scheme == resampling.MULTINOMIAL:
        np.testing.assert_allclose(spread**2, n * weights * (1 - weights), atol=0.06)
    else:  # less noise than independent draws
        assert np.sum(spread**2) < 0.8 * np.sum(n * weights * (1 - weights))


def test_turns():
    u = np.concatenate([np.linspace(0, 1, 4001), np.nextafter([0.125, 0.375, 0.625, 0.875], 0)])
    found = np.array([turn(value) for value in u])
    np.testing.assert_allclose(found[:, 0], np.cos(2 * np.pi * u), atol=1.5e-15)
    np.testing.assert_allclose(found[:, 1], np.sin(2 * np.pi * u), atol=1.5e-15)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 200_001])
def test_normals(n):
    out = np.full(n, np.nan)
    draw_normals(out, KEY)
    assert np.all(np.isfinite(out))
    if n > 100:
        assert stats.kstest(out, "norm").pvalue > 1e-4
        half = n // 2
        assert abs(np.corrcoef(out[:half], out[half : 2 * half])[0, 1]) < 4.5 / np.sqrt(half)
        assert abs(np.corrcoef(out[:half] ** 2, out[half : 2 * half] ** 2)[0, 1]) < 4.5 / np.sqrt(half)


def clouds(law, n=N):
    old, new = (Cloud(np.ones((K, n)), np.ones((K, n))) for _ in range(2))
    draw_first(old, law, child(KEY, 1))
    return old, new, RNG.integers(0, n, n)


@pytest.mark.parametrize("kind", [BASIS, UNIT])
def test_moves(kind):
    law = LAWS[kind]
    old, new, ancestors = clouds(law)
    move(new, old, ancestors, law, KEY)
    before = old.h[:, ancestors]
    if kind == BASIS:
        np.testing.assert_array_equal(new.h, naive.move_basis(before, *law.parameters[:2], KEY))
        np.testing.assert_array_equal(new.aux, new.h)
    else:
        np.testing.assert_allclose(new.h, naive.move_unit(before, law.parameters[0], KEY), rtol=1e-12)
        np.testing.assert_allclose(new.aux, 1 - new.h, rtol=1e-12, atol=1e-15)


def test_moves_of_a_log_normal_chain():
    law = LAWS[LOG_NORMAL]
    old, new, ancestors = clouds(law, 50_001)
    assert stats.kstest((old.aux[2] - 0.1) / 0.8, "norm").pvalue > 1e-4
    move(new, old, ancestors, law, KEY)
    np.testing.assert_allclose(new.h, np.exp(new.aux), rtol=1e-14)
    for k in range(K):
        noise = (new.aux[k] - 0.3 - 0.7 * (old.aux[k, ancestors] - 0.3)) / 0.5
        assert stats.kstest(noise, "norm").pvalue > 1e-4
        assert abs(np.corrcoef(noise, old.aux[k, ancestors])[0, 1]) < 4.5 / np.sqrt(50_001)


def test_a_unit_chain_near_an_end_keeps_its_distance():
    """1e-30 from 1: h rounds to 1, and its distance goes on shrinking and growing."""
    law = Law(UNIT, np.full((3, K), 0.99), np.zeros((2, K)))
    old, new, _ = clouds(law)
    old.h[:], old.aux[:] = 1.0, 1e-30
    move(new, old, np.arange(N), law, KEY)
    near = new.aux <= 1e-30
    assert near.mean() > 0.95
    assert np.all(new.h[near] == 1.0)
    assert np.all(new.aux[near] > 0)
    assert stats.kstest(new.aux[near] / 1e-30, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("proposal", range(len(PROPOSALS)))
def test_a_step_weighs_by_all_that_happened(kind, proposal):
    """The increment is the ratio of the sums of weights before and after, whatever was drawn."""
    law, x = LAWS[kind], np.array([4, 0, 2])
    target, plan = target_of(law, x), with_guide(steps.FilterPlan(proposal, resampling.SYSTEMATIC, 0.0), kind)
    population = make_population(K, N, proposal)
    log_p, _ = begin(population, target, 0, plan, child(KEY, 0))
    emission = naive.log_emission(population.cloud.h, W, BASE, x, 0, WEIGHT_SUMS[0])
    weights, total, _ = naive.normalise(population.increments + emission - np.log(N))
    assert log_p == pytest.approx(total, rel=1e-12)
    np.testing.assert_allclose(population.weights, weights, rtol=1e-9, atol=1e-300)
    before, old = population.log_weights.copy(), population.cloud
    population, log_p, size, resampled = advance(population, target, 0, plan, child(KEY, 1))
    assert resampled == 0
    np.testing.assert_array_equal(population.other.h, old.h)
    emission = naive.log_emission(population.cloud.h, W, BASE, x, 0, WEIGHT_SUMS[0])
    weights, total, expected_size = naive.normalise(before + population.increments + emission)
    np.testing.assert_allclose([log_p, size], [total, expected_size], rtol=1e-10)
    np.testing.assert_allclose(population.weights, weights, rtol=1e-9, atol=1e-300)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize("proposal", range(len(PROPOSALS)))
def test_passes_are_compiled_once_for_all_kinds_of_chains(proposal):
    plan, x = steps.FilterPlan(proposal, resampling.SYSTEMATIC, 0.0), np.array([4, 0, 2])
    kinds = {
        numba.typeof((make_population(K, N, proposal), steps_of(plan, kind), target_of(law, x)))
        for kind, law in LAWS.items()
    }
    assert len(kinds) == 1


def test_look_corrects_for_itself():
    """After resampling with a look the weights are the sum's share over the look, so that nothing is counted twice."""
    population, plan = make_population(K, N), steps.FilterPlan(proposals.AUXILIARY, resampling.STRATIFIED, 1.0)
    look, before = RNG.normal(0, 1, N), naive.normalise(RNG.normal(0, 1, N))[0]
    population.look[:], population.log_weights[:] = look, np.log(before)
    assert steps.resample_if_due(population, plan, KEY) == 1
    expected = np.log(before @ np.exp(look)) - np.log(N) - look[population.ancestors]
    np.testing.assert_allclose(population.log_weights, expected, rtol=1e-10)


def test_what_a_pass_keeps():
    """Means and standard deviations are those of the weighted particles; a missing time weighs nothing."""
    law, population = LAWS[UNIT], make_population(K, N)
    target, plan = target_of(law, np.array([4, 0, 2])), steps.FilterPlan(0, 0, 0.5)
    counts = target.counts._replace(indptr=np.array([0, 2, 2]), weight_sums=np.vstack([WEIGHT_SUMS, 0 * WEIGHT_SUMS]))
    track = passes.Track(np.zeros((2, K)), np.zeros((2, K)), np.zeros(2), np.zeros(2, dtype=bool), np.ones(2))
    target = target._replace(counts=counts)
    assert passes.filter_block(population, target, steps_of(plan, UNIT), track, 0, 2, KEY) == -1
    population = after_block(population, 0, 2)
    means = population.cloud.h @ population.weights
    np.testing.assert_allclose(track.means[1], means, rtol=1e-12)
    variance = (population.cloud.h - means[:, None]) ** 2 @ population.weights
    np.testing.assert_allclose(track.sds[1], np.sqrt(variance), rtol=1e-10)
    again = make_population(K, N)
    first, _ = steps.begin(again, target, 0, plan, np.uint64(fold(KEY, 0)))
    assert track.log_p[0] == pytest.approx(first, rel=1e-12)
    assert track.log_p[1] == pytest.approx(0.0, abs=1e-12)  # the second time adds nothing

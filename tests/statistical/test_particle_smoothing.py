"""Smoothed sums and paths from particles: right on average, for every smoother, chain and proposal.

The estimate of p(X) times that of a sum over time is unbiased for any number of particles; so its mean over independent
runs of few particles is held against exact values: the smoother over all states of binary chains, that over a fine grid
for a single chain of the other two. Ratios, which is what is reported, are biased by something over the particles.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.hmm.laws import after_block, make_population
from nmf_zoo.inference.hmm.particle_expectations import SMOOTHERS, make_carried, smoothed_sums
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, draw_paths
from nmf_zoo.inference.hmm.recursions import Recursions
from nmf_zoo.inference.shared.layout import Weights
from nmf_zoo.kernels.hmm.basis_states import BinaryChain, Counts
from nmf_zoo.kernels.hmm.particles.ancestor_sampling import AncestorChains, move_chains, start_chains
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan
from nmf_zoo.kernels.hmm.particles.laws import BASIS, LOG_NORMAL, UNIT, Cloud, Law, prepare_steps
from nmf_zoo.kernels.hmm.particles.passes import filter_block
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY, BOOTSTRAP, GUIDED
from nmf_zoo.kernels.hmm.particles.smoothing_sums import Backward, carry
from nmf_zoo.kernels.hmm.particles.statistics import add_sample, begin_sums, total_sums
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.kernels.random.resampling import MULTINOMIAL, RESIDUAL, SYSTEMATIC
from tests.naive.hmm.particles import smoothing_sums as naive_particles
from tests.sizes import FULL, size
from tests.statistical.gates import check_frequencies, check_means

pytestmark = pytest.mark.statistical
RUNS = size(600, 6000)
F, T, BASE = 3, 8, np.full(3, 0.3)
W2 = np.array([[3.0, 0.4], [0.2, 2.0], [1.0, 1.5]])
X = np.array([[2, 0, 4, 1, 0, 3, 0, 3], [1, 2, 0, 0, 3, 0, 1, 0], [0, 1, 2, 0, 1, 4, 0, 2]], dtype=float)
WEIGHT = np.ones((F, T))
WEIGHT[:, 3] = 0.0  # a missing time
WEIGHT[1, 5] = 0.0
X = X * WEIGHT
LAWS = {
    "basis": Law(BASIS, np.array([[0.8, 0.7], [0.6, 0.8], [0.0, 0.0]]), np.array([[0.4, 0.6], [0.0, 0.0]])),
    "unit": Law(UNIT, np.array([[0.8], [0.0], [0.0]]), np.zeros((2, 1))),
    "log-normal": Law(LOG_NORMAL, np.array([[0.1], [0.7], [0.6]]), np.array([[0.2], [0.8]])),
}
PLANS = {
    "bootstrap": FilterPlan(BOOTSTRAP, SYSTEMATIC, 0.5),
    "guided": FilterPlan(GUIDED, RESIDUAL, 0.7),
    "auxiliary": FilterPlan(AUXILIARY, MULTINOMIAL, 1.0),
}
EACH = SMOOTHERS | {"backward, 3 drawn": Backward(3, 2)}


def filter_of(law, plan, n_particles, x=X, weight=WEIGHT):
    W = W2[:, : law.parameters.shape[1]]
    weights = Weights(np.ones((1, 1)), np.ones((1, 1)), weight)
    t, f = np.nonzero(x.T)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(t, minlength=x.shape[1]))])
    weight_sums = np.ascontiguousarray(weights.over_features(W))
    counts = Counts(indptr, f.astype(np.int32), x[f, t], np.empty(0), weight_sums)
    target = Target(counts, np.ascontiguousarray(W), BASE, law)
    return ParticleFilter(target, plan, n_particles, moments=False), weights


def keys(seed, n=RUNS):
    return [child(seed_key(seed), run) for run in range(n)]


def grid_of(law):
    """(Cloud (1, n) of the nodes, their weights in h or log h, the first law's densities, the steps' (n, n))."""
    a, b, c = law.parameters[:, 0]
    if law.kind == UNIT:
        n = size(1200, 3000)
        u = (np.arange(n) + 0.5) / n
        h = u * u * (3 - 2 * u)  # denser towards the ends
        was, down = h[None], np.where(h <= 0.5, a, 1 - a)[None]
        steps = np.where(h[:, None] < was, down / was, (1 - down) / (1 - was))
        both = 0.5 * (down / was + (1 - down) / (1 - was))  # half of its own cell lies below the node
        steps[np.diag_indices(n)] = both[0]
        return Cloud(h[None], 1 - h[None]), 6 * u * (1 - u) / n, np.ones(n), steps
    z = np.linspace(-5.0, 5.0, 400)
    steps = stats.norm.pdf(z[:, None], a + b * (z[None] - a), c)
    first = stats.norm.pdf(z, law.initial[0, 0], law.initial[1, 0])
    return Cloud(np.exp(z)[None], z[None]), np.full(400, z[1] - z[0]), first, steps


def exact_on_grid(law):
    """(log p(X) up to the terms without h, its statistics in the order of `flat`)."""
    cloud, cell, first, steps = grid_of(law)
    w, h = W2[:, :1], cloud.h[0]
    rates = BASE[:, None] + w * h
    g = np.exp([X[:, t] @ np.log(rates) - (WEIGHT[:, t] @ w[:, 0]) * h for t in range(T)])
    alpha, beta = [first * cell * g[0]], [np.ones(len(h))]
    for t in range(1, T):
        alpha.append(cell * g[t] * (steps @ alpha[-1]))
        beta.insert(0, (beta[0] * cell * g[T - t]) @ steps)
    total = alpha[-1].sum()
    marginals = np.array(alpha) * beta / total
    kinds = naive_particles.pairs_of(cloud, cloud, law)[0]
    pairs = sum(
        np.einsum("pij,ij->p", kinds, (beta[t] * cell * g[t])[:, None] * steps * alpha[t - 1]) for t in range(1, T)
    )
    mean = np.array([[np.sum(marginals[t] * w[f] * h * X[f, t] / rates[f]) for t in range(T)] for f in range(F)])
    ends = naive_particles.firsts_of(cloud, law)[0] @ marginals[0]
    return np.log(total), np.concatenate([WEIGHT @ (marginals @ h), mean.sum(axis=1), pairs / total, ends])


@cache
def exact(kind):
    """(log p(X) up to the terms without h, the statistics in the order of `flat`)."""
    law = LAWS[kind]
    if law.kind != BASIS:
        return exact_on_grid(law)
    target = filter_of(law, PLANS["bootstrap"], 2)[0].target
    recursions = Recursions(target.counts, BASE, W2, BinaryChain(*law.parameters[:2], law.initial[0]))
    total, _, sums = recursions.smooth()
    values = WEIGHT @ sums.marginals, recursions.sources(sums, W2), sums.pairs, sums.marginals[0]
    return total, np.concatenate([np.ravel(part) for part in values])


def flat(sums):
    return np.concatenate([np.ravel(part) for part in (sums.activations, sums.sources, sums.pairs, sums.first)])


def check_unbiased(log_p, values, kind):
    """Estimates (runs,) of log p(X) and (runs, S) of the sums against exact ones."""
    total, expected = exact(kind)
    share = np.exp(np.array(log_p) - total)[:, None]
    draws = np.concatenate([share, share * (np.array(values) - expected)], axis=1)
    check_means(["p(X)", *(f"sum {i}" for i in range(len(expected)))], draws, np.append(1.0, np.zeros(len(expected))))


# A proposal that looks ahead is compiled for 8 s with each chain and smoother: it meets all of both, not every pair of
# them. At full size it does.
PAIRS = {("path", "basis"), ("forward", "unit"), ("backward", "log-normal"), ("backward, 3 drawn", "log-normal")}
TOGETHER = [
    (smoother, kind, plan)
    for smoother in EACH
    for kind in LAWS
    for plan in PLANS
    if FULL or plan == "bootstrap" or (smoother, kind) in PAIRS
]


@pytest.mark.parametrize(("smoother", "kind", "plan"), TOGETHER)
def test_sums_are_unbiased(smoother, kind, plan):
    """Long: hundreds of particle filters, each smoothed."""
    filtering, weights = filter_of(LAWS[kind], PLANS[plan], 20)
    runs = [smoothed_sums(filtering, weights, EACH[smoother], key) for key in keys(1)]
    check_unbiased([run.log_likelihood for run in runs], [flat(run) for run in runs], kind)


def path_statistics(paths, kind):
    """The means over paths of what `flat` has, from whole paths."""
    law, sums = LAWS[kind], 0.0
    W = W2[:, : law.parameters.shape[1]]
    for h, aux in zip(paths.h, paths.aux, strict=True):
        mean = BASE[:, None] + W @ h
        parts = WEIGHT @ h.T, W * ((X / mean) @ h.T)
        pairs = sum(
            naive_particles.pairs_of(Cloud(h[:, [t]], aux[:, [t]]), Cloud(h[:, [t - 1]], aux[:, [t - 1]]), law)
            for t in range(1, T)
        )
        first = naive_particles.firsts_of(Cloud(h[:, [0]], aux[:, [0]]), law)
        sums = sums + np.concatenate([np.ravel(part) for part in (*parts, pairs, first)]) / len(paths.h)
    return sums


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("kind", LAWS)
def test_paths_are_draws_from_the_smoother(kind, steps):
    filtering, _ = filter_of(LAWS[kind], PLANS["bootstrap"], 20)
    runs = [draw_paths(filtering, 2, key, steps) for key in keys(2)]
    values = [path_statistics(run, kind) for run in runs]
    check_unbiased([run.log_likelihood for run in runs], values, kind)


@pytest.mark.parametrize("kind", LAWS)
def test_metropolis_steps_leave_their_law_alone(kind):
    """Where a particle comes from, after steps from an exact draw and from one and the same start."""
    law, n, n_chains = LAWS[kind], 12, size(20_000, 200_000)
    rng = np.random.default_rng(4)
    h = rng.random((law.parameters.shape[1], n))
    if law.kind == BASIS:
        h = np.round(h)
    aux = np.log(h) if law.kind == LOG_NORMAL else 1 - h if law.kind == UNIT else h
    old, log_weights = Cloud(h, aux), np.log(rng.dirichlet(np.ones(n)))
    new = Cloud(*(np.ascontiguousarray(np.repeat(part[:, :1], n_chains, axis=1)) for part in old))
    shares = naive_particles.backward(Cloud(h[:, :1], aux[:, :1]), old, log_weights, law)[0]
    for starts, steps in ((rng.choice(n, n_chains, p=shares), 1), (np.zeros(n_chains, np.int64), 40)):
        rows, ready = np.zeros((3, n_chains)), np.zeros((2 * len(h), n))
        indices = np.zeros((2, n_chains), np.uint64)
        chains = AncestorChains(indices[0], indices[1], rows, np.zeros(n, np.uint64), np.zeros(n), ready)
        prepare_steps(ready, old, law)
        start_chains(chains, new, old, law, np.exp(log_weights), starts)
        move_chains(chains, new, old, law, steps, seed_key(3))
        assert np.mean(chains.current != starts) > 0.1
        check_frequencies(range(n), np.bincount(chains.current.astype(int), minlength=n), shares)


def variance_over_time(smoother, n_times, n_particles, runs):
    """Of the sums over a long series of binary chains: their variances over independent runs, added up, over T."""
    rng, law = np.random.default_rng(1), LAWS["basis"]
    x = rng.poisson(W2 @ (rng.random((2, n_times)) < 0.5) + BASE[:, None]).astype(float)
    filtering, weights = filter_of(law, PLANS["bootstrap"], n_particles, x, np.ones((F, n_times)))
    sums = [flat(smoothed_sums(filtering, weights, SMOOTHERS[smoother], key)) for key in keys(3, runs)]
    return np.var(sums, axis=0).sum() / n_times


def test_paths_degenerate_and_the_others_do_not():
    """Along paths the variance grows faster than the time, until all are one path; otherwise it does not."""
    runs = size(100, 400)
    path, backward = (
        [variance_over_time(smoother, n_times, 400, runs) for n_times in (50, 400)] for smoother in ("path", "backward")
    )
    assert path[1] > 2.0 * path[0], path
    assert backward[1] < 1.5 * backward[0], backward
    assert path[1] > 10.0 * backward[1], (path, backward)
    forward = [variance_over_time("forward", n_times, 100, runs // 4) for n_times in (50, 400)]
    assert forward[1] < 1.5 * forward[0], forward
    assert variance_over_time("path", 400, 100, runs) > 4.0 * forward[1], forward


def sums_with(law, n_particles, key, is_wrong):
    """Sums along paths, step by step; wrong: the statistics stay where they are when particles are resampled."""
    filtering, _ = filter_of(law, PLANS["bootstrap"], n_particles)
    target, smoother = filtering.target, SMOOTHERS["path"]
    carried = make_carried(law.kind, target.W.shape, n_particles, smoother, F)
    population = make_population(filtering.rank, n_particles)
    for t in range(T):
        filter_block(population, target, filtering.steps, filtering.track, t, t + 1, key)
        population = after_block(population, t, t + 1)
        ancestors = np.arange(n_particles) if is_wrong else population.ancestors
        if t == 0:
            begin_sums(carried, population, law, 1.0)
        else:
            here = population._replace(ancestors=ancestors)
            carry(carried, smoother, here, law, 1.0, 1.0, child(key, t))
        add_sample(carried, population, target, WEIGHT[:, t], 1.0, t)
    sums = np.zeros(len(carried.table))
    total_sums(sums, carried, population.weights)
    return filtering.log_likelihood, sums


def test_statistics_that_are_not_resampled_are_seen():
    for is_wrong in (False, True):
        runs = [sums_with(LAWS["basis"], 20, key, is_wrong) for key in keys(4)]
        log_p, values = (list(part) for part in zip(*runs, strict=True))
        if is_wrong:
            with pytest.raises(AssertionError, match="gate 2"):
                check_unbiased(log_p, values, "basis")
        else:
            check_unbiased(log_p, values, "basis")

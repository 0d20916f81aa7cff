"""Looking ahead with log-normal chains: the likelihood stays unbiased, the filter's means stay the same, and more
particles count.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.hmm.particle_filter import ParticleFilter
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY, BOOTSTRAP, GUIDED
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.naive.hmm.particles.guided_log_normal import target_of
from tests.sizes import size
from tests.statistical.gates import bound
from tests.statistical.judged import judges

pytestmark = pytest.mark.statistical
LOOKING = pytest.mark.parametrize("proposal", [GUIDED, AUXILIARY])
SCALE = 0.7
X = {
    "few counts": (np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]]), np.array([[0.5], [1.0]])),
    "many counts": (np.array([[10.0, 25.0, 14.0], [31.0, 70.0, 20.0]]), np.array([[10.0], [20.0]])),
    "a jump": (np.array([[1.0, 90.0, 1.0]]), np.array([[5.0]])),
}


def log_likelihoods(target, proposal, particles, n_runs, threshold=0.5, seed=1):
    """Estimates of log p(X), (n_runs,)."""
    filtering = ParticleFilter(target, FilterPlan(proposal, 0, threshold), particles, moments=False)
    return np.array([filtering.run(child(seed_key(seed), run))[0] for run in range(n_runs)])


def exact(X, W, base, target):
    """log p(X), up to the same constant, of one component: the recursion over a fine grid of log h."""
    z = np.linspace(-9.0, 9.0, 3001)
    mean, persistence, scale = target.law.parameters[:, 0]
    law = stats.norm.pdf(z, *target.law.initial[:, 0])
    steps = stats.norm.pdf(z[:, None], mean + persistence * (z[None] - mean), scale) * (z[1] - z[0])
    total = 0.0
    for x in X.T:
        rates = base + W * np.exp(z)
        log_g = x @ np.log(rates) - W.sum() * np.exp(z)
        law = law * np.exp(log_g - log_g.max())
        mass = law.sum()
        total += np.log(mass) + log_g.max()
        law = steps @ (law / mass)
    return total + np.log(z[1] - z[0])


@judges(lambda logs, _: len(logs))
def assert_unbiased(logs, expected):
    """The mean of the likelihoods, relative to the exact one, is 1."""
    ratios = np.exp(logs - expected)
    error = ratios.std() / np.sqrt(len(ratios))
    assert error < 0.05, f"gate 1: got a standard error of {error:.3g}; expected below 0.05; run more"
    score = (ratios.mean() - 1) / error
    assert abs(score) < bound(1), f"gate 2: got {score:.1f} standard errors off; expected at most {bound(1):.1f}"


@LOOKING
@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("data", X)
def test_the_likelihood_is_unbiased(data, proposal, threshold):
    counts, W = X[data]
    target = target_of(counts, W, 0.2, SCALE)
    logs = log_likelihoods(target, proposal, 30, size(2000, 20_000), threshold)
    assert_unbiased(logs, exact(counts, W, 0.2, target))


def test_a_bias_would_be_seen():
    counts, W = X["few counts"]
    target = target_of(counts, W, 0.2, SCALE)
    logs = log_likelihoods(target, AUXILIARY, 30, size(2000, 20_000))
    with pytest.raises(AssertionError, match="gate 2"):
        assert_unbiased(logs + 0.1, exact(counts, W, 0.2, target))


def several(rank, n_features, mean, n_times, seed):
    rng = np.random.default_rng(seed)
    W = rng.gamma(1.0, mean, (n_features, rank))
    z = np.cumsum(rng.normal(0, 0.4, (rank, n_times)), axis=1)
    return target_of(rng.poisson(W @ np.exp(z) + 0.2).astype(float), W, 0.2, 0.5)


@LOOKING
def test_means_are_those_of_the_bootstrap_filter(proposal):
    target = several(3, 6, 2.0, 8, 5)
    runs = []
    for which, particles in ((BOOTSTRAP, 50_000), (proposal, 5_000)):
        filtering = ParticleFilter(target, FilterPlan(which, 0, 0.5), particles)
        means = []
        for run in range(size(12, 50)):
            filtering.run(child(seed_key(which + 7), run))
            means.append(filtering.track.means.copy())
        runs.append(np.array(means))
    n_runs = len(runs[0])
    error = np.sqrt(sum(run.var(axis=0, ddof=1) for run in runs) / n_runs)
    scores = (runs[0].mean(axis=0) - runs[1].mean(axis=0)) / error
    assert np.max(error / runs[0].mean(axis=0)) < 0.02
    allowed = stats.t.isf(1e-4 / scores.size / 2, n_runs - 1)  # the errors are estimated from few runs
    assert np.max(np.abs(scores)) < allowed


def test_estimates_vary_less():
    target = several(4, 12, 5.0, 12, 6)
    spreads = [
        log_likelihoods(target, proposal, 300, size(60, 300)).std() for proposal in (BOOTSTRAP, GUIDED, AUXILIARY)
    ]
    assert spreads[1] < spreads[0] / 2
    assert spreads[2] < spreads[0] / 3


def test_particles_hold_up_at_twenty_components():
    rng = np.random.default_rng(1)
    W = rng.gamma(1.0, 10.0, (100, 20))
    z = np.empty((20, 40))
    z[:, 0] = rng.normal(0.0, 1.6, 20)
    for t in range(1, 40):
        z[:, t] = 0.95 * z[:, t - 1] + 0.5 * rng.normal(size=20)
    target = target_of(rng.poisson(W @ np.exp(z)).astype(float), W, 0.0, 0.5)
    target.law.parameters[:2] = np.array([[0.0], [0.95]])
    target.law.initial[:] = np.array([[0.0], [1.6]])
    sizes = []
    for proposal in (BOOTSTRAP, GUIDED, AUXILIARY):
        filtering = ParticleFilter(target, FilterPlan(proposal, 0, 0.5), 1000, moments=False)
        filtering.run(seed_key(2))
        sizes.append(filtering.track.sizes[1:].mean() / 1000)
    assert sizes[0] < 0.01
    assert sizes[1] > 0.08
    assert sizes[2] > 0.4

"""The particle filter's estimate of the likelihood: unbiased, whatever the proposal, resampling and chain.

Its error falls as particles^-1/2.

Exact values: the recursion over all states for binary chains, quadrature over a grid for a unit chain and for a
log-normal one.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

import nmf_zoo as nz
from nmf_zoo.inference.hmm.laws import law_of
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, plan_of
from nmf_zoo.inference.hmm.particle_options import PROPOSALS, RESAMPLING, ParticleOptions
from nmf_zoo.inference.hmm.recursions import Recursions
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.kernels.hmm.basis_states import BinaryChain
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.reading import read
from tests.sizes import size
from tests.statistical.judged import judges

pytestmark = [pytest.mark.statistical, pytest.mark.filterwarnings("ignore:rank. got")]
RNG = np.random.default_rng(6)
F, T, BACKGROUND = 3, 7, 0.3
W2 = np.array([[3.0, 0.4], [0.2, 2.0], [1.0, 1.5]])
X = np.array([[2, 0, 4, 1, 0, 3, 0], [1, 2, 0, 0, 3, 0, 1], [0, 1, 2, 0, 1, 4, 0]], dtype=float)
GAPS = X.copy()
GAPS[:, 2] = np.nan  # a missing time
GAPS[1, 4] = np.nan
CHAINS = {
    "basis": nz.BasisChain([0.8, 0.6], 0.7, 0.4),
    "unit": nz.UnitChain([0.9, 0.7]),
    "log-normal": nz.LogNormalAR(0.1, 0.7, 0.6, initial=(0.2, 0.8)),
}


def target_of(chain, X, W):
    structure = read(nz.hmm_nmf(X, W.shape[1], chain=chain, background=BACKGROUND))
    samples = read_samples(structure)
    law = law_of(structure.H.prior, {}, structure.rank)
    return structure, samples, Target(samples.counts(W), W, samples.base, law)


def estimates(chain, X, W, n_runs, seed=1, **options):
    """Independent estimates of log p(X), (n_runs,)."""
    structure, samples, target = target_of(chain, X, W)
    options = ParticleOptions(**options)
    filtering = ParticleFilter(target, plan_of(options, structure), options.particles, moments=False)
    keys = [child(seed_key(seed), run) for run in range(n_runs)]
    return np.array([filtering.run(key)[0] for key in keys]) + samples.constant


def exact_basis(chain, X, W):
    _, samples, target = target_of(chain, X, W)
    law = (np.ascontiguousarray(row) for row in (*target.law.parameters[:2], target.law.initial[0]))
    return Recursions(target.counts, samples.base, W, BinaryChain(*law)).log_likelihood()[0] + samples.constant


def by_quadrature(X, W, points, masses, steps):
    """log p(X) of one chain on a grid: masses (G,) of the first time, steps (G, G) of the others."""
    mean = W[:, 0, None] * points + BACKGROUND
    filtered, total = masses, 0.0
    for t in range(X.shape[1]):
        filtered = filtered if t == 0 else filtered @ steps
        seen = ~np.isnan(X[:, t])
        filtered = filtered * np.exp(stats.poisson.logpmf(X[seen, t, None], mean[seen]).sum(axis=0))
        total += np.log(filtered.sum())
        filtered = filtered / filtered.sum()
    return total


def exact_unit(alpha, X, W, n=4000):
    """Midpoints of cells: a move's law is constant on each side of where it comes from, whose own cell is halved."""
    points = (np.arange(n) + 0.5) / n
    down = np.where(points <= 0.5, alpha, 1 - alpha)[:, None]
    below, above = down / points[:, None] / n, (1 - down) / (1 - points[:, None]) / n
    steps = np.where(points < points[:, None], below, above)
    np.fill_diagonal(steps, 0.5 * (below + above)[:, 0])
    return by_quadrature(X, W, points, np.full(n, 1 / n), steps)


def exact_log_normal(chain, X, W, n=2000):
    mean, persistence, scale, (first, spread) = chain
    z = np.linspace(-8, 8, n)
    steps = stats.norm.pdf(z, mean + persistence * (z[:, None] - mean), scale) * (z[1] - z[0])
    return by_quadrature(X, W, np.exp(z), stats.norm.pdf(z, first, spread) * (z[1] - z[0]), steps)


def excess(found, exact):
    """(mean of the estimates of p(X) over p(X)) - 1, in standard errors, and that error."""
    ratios = np.exp(found - exact)
    error = ratios.std(ddof=1) / np.sqrt(len(ratios))
    return (ratios.mean() - 1.0) / error, error


@judges(lambda found, *_, **__: len(found))
def assert_unbiased(found, exact, least_error=0.03):
    z, error = excess(found, exact)
    assert error < least_error, f"too noisy to tell: the standard error of the mean ratio is {error:.3f}"
    assert abs(z) < 4.5, f"the mean of the estimates is {z:.1f} standard errors of {error:.4f} off"


@pytest.mark.parametrize("table", [X, GAPS], ids=["complete", "gaps"])
@pytest.mark.parametrize(("resampling", "ess"), [*itertools.product(RESAMPLING, (0.5, 1.0)), ("systematic", 0.0)])
def test_every_way_of_resampling_is_unbiased(resampling, ess, table):
    table = table if ess > 0 else table[:, :4]  # without resampling the noise grows with every sample
    runs = size(3000, 40_000)
    found = estimates(CHAINS["basis"], table, W2, runs, particles=30, resampling=resampling, ess=ess)
    assert_unbiased(found, exact_basis(CHAINS["basis"], table, W2))


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("ess", [0.5, 1.0])
def test_every_proposal_is_unbiased_for_binary_chains(proposal, ess):
    found = estimates(CHAINS["basis"], GAPS, W2, size(3000, 40_000), particles=30, proposal=proposal, ess=ess)
    assert_unbiased(found, exact_basis(CHAINS["basis"], GAPS, W2))


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("ess", [0.5, 1.0])
@pytest.mark.parametrize("name", ["unit", "log-normal"])
def test_every_proposal_is_unbiased_for_continuous_chains(name, proposal, ess):
    W = W2[:, :1].copy()
    if name == "unit":
        chain, exact = nz.UnitChain(0.9), exact_unit(0.9, GAPS, W)
    else:
        law = 0.1, 0.7, 0.6, (0.2, 0.8)
        chain, exact = nz.LogNormalAR(*law[:3], initial=law[3]), exact_log_normal(law, GAPS, W)
    found = estimates(chain, GAPS, W, size(3000, 40_000), particles=40, proposal=proposal, ess=ess)
    assert_unbiased(found, exact)


def test_the_test_of_bias_sees_wrong_laws():
    """A chain that stays on a little longer, and a background that is left out."""
    exact = exact_basis(CHAINS["basis"], X, W2)
    for chain, W in ((nz.BasisChain([0.8, 0.6], 0.75, 0.4), W2), (CHAINS["basis"], W2 * 1.05)):
        z, _ = excess(estimates(chain, X, W, size(3000, 40_000), particles=30), exact)
        assert abs(z) > 4.5, z


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_proposals_agree_on_two_continuous_chains(proposal):
    """Where there is no exact value: many particles of the bootstrap filter."""
    for name in ("unit", "log-normal"):
        best = estimates(CHAINS[name], GAPS, W2, 40, seed=2, particles=20_000)
        found = estimates(CHAINS[name], GAPS, W2, size(2000, 20_000), particles=60, proposal=proposal)
        exact = np.log(np.mean(np.exp(best - best.max()))) + best.max()
        z, error = excess(found, exact)
        own = np.std(np.exp(best - exact), ddof=1) / np.sqrt(len(best))
        assert abs(z) * error < 4.5 * np.hypot(error, own), (name, z, error, own)


def slope_of(counts, errors):
    return float(np.polyfit(np.log(counts), np.log(errors), 1)[0])


def test_the_error_falls_as_the_root_of_the_particles():
    """The slope of log RMSE over log particles is -1/2, within 0.07, three standard errors of 120 runs each.

    That of 1 / particles would be -1, and that of a bias 0. At 100 particles the error is below one nat: above it the
    logarithm of the estimate is no longer straight.
    """
    H = np.array([[0, 0, 0, 1, 1, 0, 0, 0, 0, 1], [1, 1, 1, 0, 0, 0, 1, 1, 1, 0]])
    table = np.random.default_rng(3).poisson(W2 @ H + BACKGROUND).astype(float)
    exact, counts = exact_basis(CHAINS["basis"], table, W2), [100, 400, 1600, 6400]
    runs = size(120, 1000)
    found = {n: estimates(CHAINS["basis"], table, W2, runs, particles=n) - exact for n in counts}
    errors = [np.sqrt(np.mean(found[n] ** 2)) for n in counts]
    assert errors[0] < 1.0
    assert abs(slope_of(counts, errors) + 0.5) < 0.07, (slope_of(counts, errors), errors)
    biased = [np.sqrt(np.mean((found[n] + 0.1) ** 2)) for n in counts]
    assert abs(slope_of(counts, biased) + 0.5) > 0.07, biased


def test_filter_means_are_those_of_the_exact_filter():
    """At the last time the exact smoother is the filter."""
    structure, samples, target = target_of(CHAINS["basis"], GAPS, W2)
    law = (np.ascontiguousarray(row) for row in (*target.law.parameters[:2], target.law.initial[0]))
    marginals = Recursions(target.counts, samples.base, W2, BinaryChain(*law)).smooth()[2].marginals[-1]
    filtering = ParticleFilter(target, plan_of(ParticleOptions(), structure), size(100_000, 1_000_000))
    filtering.run(seed_key(4))
    spread = np.sqrt(marginals * (1 - marginals) / filtering.track.sizes[-1])
    assert np.all(np.abs(filtering.track.means[-1] - marginals) < 6 * spread)
    np.testing.assert_allclose(
        filtering.track.sds[-1] ** 2, filtering.track.means[-1] * (1 - filtering.track.means[-1])
    )


def test_blocks_of_times_change_nothing():
    structure, _, target = target_of(CHAINS["unit"], GAPS, W2)
    plan, found = plan_of(ParticleOptions(), structure), []
    for block in (1, 3, 100):
        filtering = ParticleFilter(target, plan, 50, block=block)
        found.append((filtering.run(seed_key(5))[0], [array.copy() for array in filtering.track]))
    for log_p, track in found[1:]:
        assert log_p == found[0][0]
        for own, other in zip(track, found[0][1], strict=True):
            np.testing.assert_array_equal(own, other)

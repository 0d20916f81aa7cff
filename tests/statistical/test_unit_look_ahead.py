"""Looking ahead with unit chains keeps particles alive where the bootstrap filter loses them, and finds the same.

That the estimate of the likelihood stays unbiased is tested for all proposals in `test_particle_filter`.
"""

from __future__ import annotations

import numpy as np
import pytest

import nmf_zoo as nz
from nmf_zoo.inference.hmm.laws import law_of
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, plan_of
from nmf_zoo.inference.hmm.particle_options import ParticleOptions
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.random.chain_draws import unit_path
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.reading import read
from tests.sizes import size

pytestmark = pytest.mark.statistical
ALPHA, BACKGROUND = 0.95, 0.1


def problem(rank, n_features, n_times, mean, seed):
    rng = np.random.default_rng(seed)
    W = rng.gamma(1.0, mean, (n_features, rank))
    H = np.array([unit_path(rng.random((2, n_times)), ALPHA) for _ in range(rank)])
    structure = read(
        nz.hmm_nmf(rng.poisson(W @ H + BACKGROUND), rank, chain=nz.UnitChain(ALPHA), background=BACKGROUND)
    )
    samples = read_samples(structure)
    return structure, Target(samples.counts(W), W, samples.base, law_of(structure.H.prior, {}, rank)), H


def filtered(structure, target, particles=1000, **options):
    """(log-likelihood, track) of one run."""
    options = ParticleOptions(particles=particles, **options)
    filtering = ParticleFilter(target, plan_of(options, structure), particles)
    return filtering.run(seed_key(1))[0], filtering.track


@pytest.mark.parametrize("seed", range(size(2, 5)))
def test_particles_stay_alive_at_many_components(seed):
    structure, target, H = problem(20, 100, size(60, 1000), 10.0, seed)
    log_p, track = {}, {}
    for name in ("bootstrap", "guided", "auxiliary"):
        log_p[name], track[name] = filtered(structure, target, proposal=name)
    share = {name: found.sizes.mean() / 1000 for name, found in track.items()}
    error = {name: np.sqrt(np.mean((found.means.T - H) ** 2)) for name, found in track.items()}
    assert share["bootstrap"] < 0.1
    assert share["guided"] > 0.35
    assert share["auxiliary"] > 0.45  # of that, half is what the filter gives away before it resamples
    assert log_p["guided"] > log_p["bootstrap"] + 5
    assert abs(log_p["guided"] - log_p["auxiliary"]) < 6
    assert error["auxiliary"] < 0.8 * error["bootstrap"]


@pytest.mark.parametrize("proposal", ["guided", "auxiliary"])
def test_filter_means_are_those_of_many_blind_particles(proposal):
    structure, target, _ = problem(3, 5, 25, 3.0, 8)
    _, blind = filtered(structure, target, particles=size(200_000, 1_000_000), proposal="bootstrap")
    _, seeing = filtered(structure, target, particles=20_000, proposal=proposal)
    errors = np.hypot(blind.sds / np.sqrt(blind.sizes[:, None]), seeing.sds / np.sqrt(seeing.sizes[:, None]))
    z = (seeing.means - blind.means) / (3 * errors + 1e-4)  # 3: particles of common ancestors are not independent
    assert np.abs(z).max() < 4.5, np.abs(z).max()

"""Draws of the components' powers given their sum's against the conditional Gaussian, and against corrected priors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.powers.spectra import NOWHERE, Spectra
from nmf_zoo.kernels.powers.composite import PowerFactors, draw_parts, make_workspace
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.naive.powers import composite as naive
from tests.sizes import size
from tests.statistical.gates import ALARM, check_means

pytestmark = pytest.mark.statistical
WIDTH, FRAMES = 1000, size(100, 2000)

# power, variances of the components, background or None
CASES = {
    "two": (2.5, [0.7, 1.9], None),
    "loud": (80.0, [0.7, 1.9, 0.2], None),
    "silent": (0.0, [0.7, 1.9, 0.2], None),
    "four": (3.0, [0.1, 4.0, 1.0, 2.0], None),
    "dominated": (2.0, [1e-6, 3.0, 1e-3], None),
    "dominating": (2.0, [3.0, 1e-6], None),
    "background": (2.5, [0.7, 1.9], 1.3),
    "one and background": (2.5, [0.7], 1.3),
    "faint": (2.5e-19, [0.7e-19, 1.9e-19, 0.2e-19], None),
}


def draw(power, variances, background, seed=0):
    """(draws, K) powers by the kernel, many equal cells at a time."""
    rank = len(variances)
    factors = PowerFactors(np.repeat(np.array(variances)[:, None], WIDTH, axis=1), np.ones((1, rank)))
    beside = NOWHERE if background is None else np.full((1, WIDTH), background)
    spectra = Spectra(np.full((1, WIDTH), power), np.empty((0, 0), np.bool_), beside)
    workspace, found = make_workspace(rank, WIDTH), []
    for i in range(FRAMES):
        draw_parts(workspace, spectra, factors, 0, child(seed_key(seed), i))
        found.append((workspace.parts * factors.Wt).T)
    return np.concatenate(found)


def sources(variances, background):
    return np.array(variances if background is None else [*variances, background])


def check_moments(draws, power, variances, background):
    """First and second moments, in units of the variances."""
    rank, unit = len(variances), np.array(variances)
    expected, products = naive.moments_of_powers(power, sources(variances, background))
    relative = draws / unit
    pairs = [(j, k) for j in range(rank) for k in range(j, rank)]
    table = np.concatenate([relative, np.stack([relative[:, j] * relative[:, k] for j, k in pairs], axis=1)], axis=1)
    truth = [*(expected[:rank] / unit), *(products[j, k] / (unit[j] * unit[k]) for j, k in pairs)]
    check_means([f"c{k}" for k in range(rank)] + [f"c{j} c{k}" for j, k in pairs], table, np.array(truth))


@pytest.mark.parametrize("name", CASES)
def test_moments(name):
    check_moments(draw(*CASES[name]), *CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_distributions(name):
    power, variances, background = CASES[name]
    every = sources(variances, background)
    draws = draw(*CASES[name], seed=1)[:50_000]
    peers = naive.correct_prior_draws(power, every, len(draws), np.random.default_rng(1))[:, : len(variances)]
    weights = np.random.default_rng(2).normal(size=len(variances)) / variances
    for one, other in [*zip(draws.T, peers.T, strict=True), (draws @ weights, peers @ weights)]:
        assert stats.ks_2samp(one, other).pvalue > ALARM


def test_the_peer_has_these_moments():
    power, variances, background = CASES["background"]
    peers = naive.correct_prior_draws(power, sources(variances, background), 100_000, np.random.default_rng(3))
    check_moments(peers[:, :2], power, variances, background)


WRONG = {
    "halfway to their expectations": lambda draws: (draws + draws.mean(axis=0)) / 2,
    "components drawn apart": lambda draws: np.stack([draws[:, 0], np.roll(draws[:, 1], 1), draws[:, 2]], axis=1),
    "one percent too large": lambda draws: 1.01 * draws,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_powers_are_seen(name):
    case = CASES["loud"]
    with pytest.raises(AssertionError, match="gate 2"):
        check_moments(WRONG[name](draw(*case)), *case)

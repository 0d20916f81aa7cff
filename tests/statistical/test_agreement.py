"""How often two samplers of one law are called different: at most in one comparison of a hundred, if draws suffice."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter
from scipy.stats import binom

from nmf_zoo.diagnostics.agreement import CHANCE, compare_draws
from tests.sizes import size

pytestmark = pytest.mark.statistical
PAIRS = size(100, 1000)


def skewed_chains(rng, correlation, shape):
    """Stationary autoregressive chains of log-normal quantities, as correlated as cells of W H are."""
    noise = np.sqrt(0.5) * (rng.normal(size=shape) + rng.normal(size=(*shape[:2], 1)))
    values = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], noise, axis=1)[:, 200:]
    return xr.DataArray(np.exp(1.5 * values), dims=("chain", "draw", "quantity"))


def verdicts(correlations, factor=1.0, pairs=PAIRS):
    for seed in range(pairs):
        rng = np.random.default_rng(seed)
        one, other = (skewed_chains(rng, correlation, (2, 1200, 9)) for correlation in correlations)
        yield compare_draws({"one": one, "other": factor * other}, "one").loc["other", "agrees"]


@pytest.mark.parametrize("correlations", [(0.0, 0.7), (0.5, 0.8)])
def test_false_alarms_are_rare(correlations):
    found = list(verdicts(correlations))
    told = sum(agrees is not None for agrees in found)
    assert told > 0.5 * PAIRS
    alarms = sum(agrees is False for agrees in found)
    assert binom.sf(alarms - 1, told, CHANCE) > 1e-4, f"{alarms} of {told}"


def test_a_factor_is_seen_and_slow_chains_are_not_judged():
    assert all(agrees is False for agrees in verdicts((0.0, 0.5), factor=2.0, pairs=15))
    assert all(agrees is None for agrees in verdicts((0.0, 0.99), pairs=15))

"""Means over the exchanges of alike components, against all of them written out."""

from itertools import permutations

import numpy as np
import pytest
from scipy.special import logsumexp

from nmf_zoo.inference.evidence import bridging, chib_bridge
from nmf_zoo.inference.evidence.posterior_runs import Draws, FactorPair, nearness
from tests.structures import gamma, model


@pytest.mark.parametrize("classes", [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 2, 3]])
@pytest.mark.parametrize("sharpness", [0.0, 0.3, 40.0])
def test_means_over_exchanges(classes, sharpness):
    classes = np.array(classes)
    tables = np.random.default_rng(1).normal(scale=3.0, size=(5, 4, 4))
    allowed = [order for order in permutations(range(4)) if np.array_equal(classes[list(order)], classes)]
    sums = np.array([[table[range(4), order].sum() - np.trace(table) for order in allowed] for table in tables])
    expected = logsumexp(sharpness * sums, axis=1) - np.log(len(allowed))
    found = bridging.log_mean_over_exchanges(tables, sharpness, classes)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("largest", [12, 1])
def test_log_rise_is_that_of_the_tilts_of_all_exchanges(monkeypatch, largest):
    """With too many exchanges to sum over, of the draw's own tilt alone, where it is in the labelling."""
    monkeypatch.setattr(bridging, "LARGEST_CLASS", largest)
    structure, rng = model(np.ones((3, 4)), 3, gamma(1.0, 1.0), gamma(1.0, 1.0)), np.random.default_rng(2)
    pair = FactorPair(rng.gamma(1.0, size=(50, 3, 3)), rng.gamma(1.0, size=(50, 4, 3)))
    point = FactorPair(pair.W[0], pair.Ht[0])
    classes = bridging.exchangeable(structure)
    level = chib_bridge._level(structure, 0.2, Draws(pair, np.zeros(50)), point, classes)
    if largest == 1:
        kept = pair.take(chib_bridge.is_labelled(pair, point, classes))
        assert 0 < len(kept.W) < 50
        expected = 0.3 * nearness(structure, kept, point)
    else:
        orders = list(permutations(range(3)))
        tilts = [nearness(structure, pair.ordered(np.tile(order, (50, 1))), point) for order in orders]
        expected = logsumexp(0.5 * np.array(tilts), axis=0) - logsumexp(0.2 * np.array(tilts), axis=0)
    np.testing.assert_allclose(level.log_rise(0.5, classes), expected, rtol=1e-9, atol=1e-9)
    assert np.all(chib_bridge.is_labelled(level.draws.pair, point, classes))

"""Simulation-based calibration of Gibbs from its own start, on models of the zoo; then planted errors."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference import gibbs, slice_sampling
from tests.sizes import size
from tests.statistical.calibration import BINS, DRAWS, check_ranks, rank_truths
from tests.structures import gamma, model, unknown

pytestmark = pytest.mark.statistical
REPLICATES = size(128, 1000)
THIN, TUNE = size(6, 12), size(60, 150)

X34 = np.zeros((3, 4))
MASK = np.array([[True, False, True, True], [True, True, False, True], [False, True, True, True]])
TEMPLATES = np.array([[0.8, 1.9], [1.4, 0.3], [0.2, 1.1]])
BY_COMPONENT = unknown("r", "gamma", 6.0, 4.0, variable_shape=(2,), shape=(2, 1))
SHAPE, MEAN = unknown("a", "gamma", 8.0, 6.0), unknown("m", "lognormal", 0.2, 0.5)

MODELS = {
    "gamma_nmf": model(X34, 2, gamma(1.2, 1.5), gamma(0.8, 0.6)),
    "gamma_nmf, mask": model(X34, 2, gamma(1.2, 1.5), gamma(0.8, 0.6), mask=MASK),
    "gap with known templates": model(X34, 2, TEMPLATES, gamma([[0.7], [1.8]], [[0.5], [1.2]])),
    "gap, rates unknown": model(X34, 2, TEMPLATES, gamma([[0.7], [1.8]], BY_COMPONENT)),
    "gamma_nmf, shape and mean unknown": model(X34, 2, gamma(1.2, 1.5), gamma(SHAPE, mean=MEAN)),
}


@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_uniform(name):
    check_ranks(*rank_truths(MODELS[name], REPLICATES, TUNE, THIN, seed=1))


# -- planted errors ------------------------------------------------------------------------------------------------


def check_is_seen(structure):
    with pytest.raises(AssertionError, match="gate 2, uniform ranks"):
        check_ranks(*rank_truths(structure, 160, 60, 6, seed=2))


def test_a_dropped_prior_rate_is_seen(monkeypatch):
    right = gibbs.prior_cells
    monkeypatch.setattr(gibbs, "prior_cells", lambda *arguments: right(*arguments)._replace(rate_h=np.zeros((4, 2))))
    check_is_seen(MODELS["gap with known templates"])


def test_a_missing_jacobian_is_seen(monkeypatch):
    right = slice_sampling.slice_draw

    def wrong(log_density, start, generator):
        return right(lambda log_value: log_density(log_value) - log_value, start, generator)

    monkeypatch.setattr(slice_sampling, "slice_draw", wrong)
    vague = unknown("r", "gamma", 1.5, 1.0, variable_shape=(2,), shape=(2, 1))
    check_is_seen(model(np.zeros((3, 2)), 2, TEMPLATES, gamma(0.7, vague)))


def test_ranks_that_are_not_uniform_are_seen():
    rng = np.random.default_rng(0)
    uniform = rng.integers(0, DRAWS + 1, (800, 2))
    check_ranks(["a", "b"], uniform)
    narrow = np.stack([uniform[:, 0], np.round(DRAWS * rng.beta(1.5, 1.5, 800)).astype(int)], axis=1)
    with pytest.raises(AssertionError, match=r"gate 2.*b\[?: "):
        check_ranks(["a", "b"], narrow)
    with pytest.raises(AssertionError, match="gate 1"):
        check_ranks(["a", "b"], uniform[:10])
    assert (DRAWS + 1) % BINS == 0

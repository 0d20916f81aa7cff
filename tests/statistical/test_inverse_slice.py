"""Slice sampling of the hyperparameters of inverse-gamma priors, given the factor, against exact grids."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from nmf_zoo.inference.shared.hyperparameter_draws import draw_hyperparameters, lay_out_hyperparameters
from nmf_zoo.inference.shared.slice_sampling import log_prior_of_groups, sum_groups
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.planted import plant
from tests.sizes import size
from tests.statistical.gates import check_means
from tests.structures import inverse_gamma, model, unknown

K, N = 2, 3
SHAPE = unknown("a", "gamma", 2.0, 1.0)
SCALE = unknown("b", "lognormal", 0.0, 1.0, variable_shape=(K,), shape=(K, 1))
STRUCTURE = model(np.ones((4, N)), K, inverse_gamma(1.0, 1.0), inverse_gamma(SHAPE, SCALE), kind="exponential")
W, H = np.ones((4, K)), np.random.default_rng(5).gamma(2.0, size=(K, N))
GRID = np.linspace(-6.0, 6.0, 241)  # of the logarithms


def exact_means():
    """E[log a, log b_1, log b_2, (log a)^2, ...] given H, and the log-density is written out here."""
    a, b = np.exp(GRID)[:, None], np.exp(GRID)[None, :]
    rows = []
    for h in H:
        cells = sum(a * np.log(b) - gammaln(a) - (a + 1) * np.log(v) - b / v for v in h)
        rows.append(cells - 0.5 * np.log(b) ** 2)  # and the prior of b along log b
    inner = [logsumexp(row, axis=1) for row in rows]
    of_a = 2 * GRID - np.exp(GRID) + sum(inner)
    p_a = np.exp(of_a - logsumexp(of_a))
    means = [p_a @ GRID]
    squares = [p_a @ GRID**2]
    for row, total in zip(rows, inner, strict=True):
        p_b = p_a @ np.exp(row - total[:, None])
        means.append(p_b @ GRID)
        squares.append(p_b @ GRID**2)
    return np.array(means + squares)


def chain(n_draws):
    values, given, kept = {"a": np.array(1.0), "b": np.ones(K)}, lay_out_hyperparameters(STRUCTURE, ()), []
    for sweep in range(n_draws):
        draw_hyperparameters(given, W, np.ascontiguousarray(H.T), values, child(seed_key(1), sweep))
        kept.append(np.log([float(values["a"]), *values["b"]]))
    kept = np.array(kept)
    return np.concatenate([kept, kept**2], axis=1)


NAMES = [f"{moment} of log {name}" for moment in ("mean", "square") for name in ("a", "b_1", "b_2")]


@pytest.mark.statistical
def test_the_chain_has_the_moments_of_the_grid():
    check_means(NAMES, chain(size(3000, 20_000)), exact_means())


@pytest.mark.statistical
def test_a_scale_taken_for_a_rate_is_seen(monkeypatch):
    plant(monkeypatch, "hyperparameters: sums of groups", lambda right: lambda given, W, Ht: right(given, W, 1.0 / Ht))
    with pytest.raises(AssertionError, match="gate 2"):
        check_means(NAMES, chain(3000), exact_means())


def test_sums_hold_what_the_density_says_of_hyperparameters():
    """Two values of the hyperparameters: the Jacobian of the inverses cancels."""
    points = [{"a": np.array(a), "b": np.array(b)} for a, b in ((0.7, [1.0, 2.0]), (3.1, [0.2, 5.0]))]
    sums = sum_groups(STRUCTURE.H, H)
    ours = [float(log_prior_of_groups(sums, point).sum()) for point in points]
    theirs = [STRUCTURE.H.log_density(H, point) for point in points]
    assert ours[1] - ours[0] == pytest.approx(theirs[1] - theirs[0], rel=1e-12)

"""The exact marginal likelihood against enumeration, quadrature, naive twins and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import nbinom

from nmf_zoo.inference.marginal.exact import (
    activation_prior,
    enumerated_log_likelihoods,
    estimate,
    expectations,
    log_likelihoods,
    marginal_log_likelihoods,
    observe,
)
from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.marginal import gap_likelihood
from nmf_zoo.kernels.marginal.gap_likelihood import golden_order, lay_out, run_forward
from tests.naive.marginal import gap_likelihood as naive
from tests.structures import gamma, model


def random_problem(seed):
    """A small structure and W, with zeros, and some with a mask, an exposure or a background."""
    rng = np.random.default_rng(seed)
    F, N, K = rng.integers(1, 5), rng.integers(1, 4), rng.integers(1, 5)
    shape, rate = 0.01 + rng.gamma(1.0, size=(K, 1)), 0.1 + rng.gamma(1.0, size=(K, 1))
    W = rng.gamma(0.7, size=(F, K)) * (rng.random((F, K)) > 0.2)
    optional = {}
    if seed % 4 == 1:
        optional["mask"] = rng.random((F, N)) > 0.3
    if seed % 4 == 2:
        optional["exposure"] = rng.gamma(2.0, size=(F, N))
    if seed % 4 == 3:
        optional["background"] = rng.gamma(0.5, size=(F, N)) * (rng.random((F, N)) > 0.3)
    return model(rng.poisson(1.2, size=(F, N)), K, None, gamma(shape, rate), **optional), W


def prior_of(structure):
    return activation_prior(structure, {})


@pytest.mark.parametrize("block", range(8))
def test_equals_enumeration(block):
    """200 random small problems."""
    n_finite = 0
    for seed in range(25 * block, 25 * block + 25):
        structure, W = random_problem(seed)
        samples = observe(structure)
        expected = enumerated_log_likelihoods(samples, W, *prior_of(structure))
        found = log_likelihoods(samples, W, *prior_of(structure))
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
        finite = np.isfinite(expected)
        np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-10, atol=1e-12)
        n_finite += finite.sum()
    assert n_finite > 25


def test_enumeration_is_the_papers_sum():
    """Against a hand-written case: two components, one feature, x = 1."""
    W, shape, rate = np.array([[0.5, 2.0]]), np.array([[0.3], [1.5]]), np.array([[1.0], [0.7]])
    structure = model([[1]], 2, None, gamma(shape, rate))
    p = W[0] / (W[0] + rate[:, 0])
    expected = math.log((shape[:, 0] * p).sum()) + float(shape[:, 0] @ np.log(1 - p))
    assert enumerated_log_likelihoods(observe(structure), W, *prior_of(structure)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("K", "mean", "points"), [(1, 200, 4001), (2, 60, 1001), (2, 300, 1401), (3, 60, 141)])
def test_equals_quadrature(K, mean, points):
    rng = np.random.default_rng(K + mean)
    shape, rate = 1.0 + rng.gamma(2.0, size=K), 0.5 + rng.random(K)
    W = rng.gamma(1.0, size=(5, K))
    x = rng.poisson(W @ np.ones(K) * mean / W.sum())
    structure = model(x[:, None], K, None, gamma(shape[:, None], rate[:, None]))
    expected = naive.log_integral(x, W, shape, rate, points, width=20.0 if K < 3 else 6.0)
    assert marginal_log_likelihoods(structure, W)[0] == pytest.approx(expected, rel=1e-10 if K < 3 else 1e-8)


def test_thousands_of_counts_lose_nothing():
    """Where the counts of the first feature, did they come first, would leave nothing of what is right in the end."""
    q, counts, shape = np.array([[0.75, 0.25], [1e-12, 1.0 - 1e-12]]), np.array([4000, 4000]), np.array([0.5, 1.5])
    rows, risen = lay_out(8000, 2), gammaln(8002.0) - gammaln(2.0)
    expected = naive.log_beta_integral(counts, q, shape) + risen
    orders = golden_order(counts, 8000), np.repeat([0, 1], counts)
    golden, in_turn = (run_forward(np.empty(rows.start[-1]), rows, o, q, shape, np.ones(2)) for o in orders)
    assert golden == pytest.approx(expected, rel=1e-12)
    assert in_turn < expected - 100


@pytest.mark.parametrize(("rank", "n"), [(2, 1), (2, 23), (3, 1), (3, 17), (4, 9), (5, 7), (6, 5)])
def test_programme_equals_naive(rank, n):
    rng = np.random.default_rng(rank)
    q = rng.dirichlet(np.ones(rank), size=4)
    q[0, 0] = 0.0
    order, shape = rng.integers(4, size=n), 0.2 + rng.gamma(1.0, size=rank)
    slope = np.ones(rank)
    slope[-1], shape[-1] = 0.0, 1.0  # a background
    rows = lay_out(n, rank)
    state = np.empty(rows.start[-1])
    found = run_forward(state, rows, order, q, shape, slope)
    assert found == pytest.approx(math.log(sum(naive.sum_over_sources(order, q, shape, slope).values())), rel=1e-12)


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_rows_hold_every_total_once(rank):
    n = 6
    rows = lay_out(n, rank)
    assert np.sum(n - rows.used + 1) == math.comb(n + rank - 1, rank - 1)
    assert len({tuple(outer) for outer in rows.outer.tolist()}) == len(rows.used)
    np.testing.assert_array_equal(rows.outer.sum(axis=1), rows.used)
    np.testing.assert_array_equal(np.cumsum(np.bincount(rows.used, minlength=n + 1)), rows.active)
    for row, (outer, below) in enumerate(zip(rows.outer, rows.below, strict=True)):
        for d in range(rank - 2):
            if outer[d] == 0:
                assert below[d] == -1
            else:
                assert below[d] < row
                np.testing.assert_array_equal(rows.outer[below[d]], outer - np.eye(rank - 2, dtype=int)[d])


@kernel
def advance(state, begin, length, last, inner, source, weight):
    gap_likelihood.advance_row(state, begin, length, last, inner)
    gap_likelihood.advance_row_from(state, begin, length, last, inner, source, weight)
    gap_likelihood.add_row(state, begin, length, source, weight)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 40])
def test_cell_rows_equal_their_python(length):
    rng = np.random.default_rng(length)
    state = np.zeros(160)
    state[5 : 5 + length], state[80 : 80 + length] = rng.random((2, length))
    arguments = 5, length, (0.3, 0.2), (0.7, 0.1), 80, 0.4
    compiled, plain = state.copy(), state.copy()
    advance(compiled, *arguments)
    advance.py_func(plain, *arguments)
    assert not np.array_equal(plain, state)
    np.testing.assert_allclose(compiled, plain, rtol=1e-14)


def test_golden_order_has_every_count_and_mixes_them():
    counts = np.array([3, 0, 40, 7])
    order = golden_order(counts, 50)
    np.testing.assert_array_equal(np.bincount(order, minlength=4), counts)
    np.testing.assert_allclose(np.bincount(order[:25], minlength=4), counts / 2, atol=1.5)


def test_one_component_is_negative_binomial():
    structure = model([[400]], 1, None, gamma(2.5, 0.7))
    expected = nbinom.logpmf(400, 2.5, 0.7 / (0.7 + 3.0))
    assert marginal_log_likelihoods(structure, np.array([[3.0]]))[0] == pytest.approx(expected, rel=1e-13)


def test_equal_columns_are_one_component_with_their_shapes_added():
    rng = np.random.default_rng(3)
    X, w = rng.poisson(6.0, size=(5, 4)), rng.gamma(1.0, size=(5, 2))
    three = marginal_log_likelihoods(model(X, 3, None, gamma([[0.4], [0.6], [2.0]], 1.0)), w[:, [0, 0, 1]])
    two = marginal_log_likelihoods(model(X, 2, None, gamma([[1.0], [2.0]], 1.0)), w)
    np.testing.assert_allclose(three, two, rtol=1e-12)


def test_empty_columns_drop_out():
    rng = np.random.default_rng(4)
    X, W = rng.poisson(6.0, size=(5, 4)), rng.gamma(1.0, size=(5, 2))
    wide = marginal_log_likelihoods(model(X, 4, None, gamma(0.7, 1.0)), np.column_stack([W, np.zeros((5, 2))]))
    np.testing.assert_array_equal(wide, marginal_log_likelihoods(model(X, 2, None, gamma(0.7, 1.0)), W))


def test_masked_features_drop_out():
    rng = np.random.default_rng(5)
    X, W, mask = rng.poisson(4.0, size=(5, 1)), rng.gamma(1.0, size=(5, 3)), np.array([1, 0, 1, 1, 0], bool)
    masked = marginal_log_likelihoods(model(X, 3, None, gamma(0.7, 1.3), mask=mask[:, None]), W)
    dropped = marginal_log_likelihoods(model(X[mask], 3, None, gamma(0.7, 1.3)), W[mask])
    np.testing.assert_allclose(masked, dropped, rtol=1e-13)


@pytest.mark.parametrize("seed", range(12))
def test_expectations_equal_enumeration(seed):
    rng = np.random.default_rng(seed)
    F, K = rng.integers(1, 4), rng.integers(1, 5)
    shape, rate = 0.1 + rng.gamma(1.0, size=K), 0.5 + rng.random(K)
    W, x = 0.01 + rng.gamma(0.7, size=(F, K)), rng.poisson(2.0, size=F)
    W[rng.random((F, K)) > 0.8] = 0.0
    W[:, 0] += 0.1  # every count has a source
    structure = model(x[:, None], K, None, gamma(shape[:, None], rate[:, None]))
    samples = observe(structure)
    sources, activations = expectations(samples, W, *prior_of(structure))
    expected = naive.source_means(x, W, shape, rate)
    np.testing.assert_allclose(sources, expected[samples.columns.features], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(activations[0], (shape + expected.sum(axis=0)) / (W.sum(axis=0) + rate), rtol=1e-11)


def test_expectations_are_the_slope_of_the_likelihood():
    """d log p / d w_fk = E[c_fk] / w_fk - E[h_k], at counts that no enumeration reaches."""
    rng = np.random.default_rng(8)
    W, x = 0.1 + rng.gamma(1.0, size=(4, 3)), np.array([[30], [0], [12], [25]])
    structure = model(x, 3, None, gamma(np.array([[0.5], [1.0], [2.0]]), 0.8))
    samples, prior = observe(structure), prior_of(structure)
    sources, activations = expectations(samples, W, *prior)
    C = np.zeros((4, 3))
    C[samples.columns.features] = sources
    for f, k in np.ndindex(W.shape):
        step = np.zeros_like(W)
        step[f, k] = 1e-5 * W[f, k]
        ends = [log_likelihoods(samples, W + sign * step, *prior)[0] for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step[f, k])
        assert slope == pytest.approx(C[f, k] / W[f, k] - activations[0, k], rel=1e-5, abs=1e-5)


def test_cost_is_of_the_counts_that_are_open():
    X = np.array([[50, 0], [50, 1000]])
    samples = observe(model(X, 2, None, gamma(1.0, 1.0)))
    everywhere = estimate(samples, np.ones((2, 2)), np.ones((2, 2)))
    one_sided = estimate(samples, np.array([[1.0, 1.0], [0.0, 1.0]]), np.ones((2, 2)))
    assert everywhere.largest == (1000, 2)
    assert one_sided.largest == (50, 2)
    assert one_sided.seconds < everywhere.seconds

"""The kernels of online EM against plain NumPy and enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.counts.online_em import averaged, empty
from nmf_zoo.kernels.counts import column_sweeps as clock
from nmf_zoo.kernels.counts.column_sweeps import ColumnPlan, OnlineWeights, expect_columns, make_workspace, take_step
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.stream_engine import columns_of
from tests.naive.counts import column_sweeps as naive

KEY = seed_key(4)


def weights_of(W):
    """W as statistics of a scale of their own."""
    K = W.shape[1]
    top = np.linspace(0.5, 2.0, K)
    return OnlineWeights(W / top, np.empty((0, K)), top, np.ones(K), np.ones(W.shape), W.sum(axis=0), False)


def columns_from(X, seen, exposure=1.0):
    lists = [np.flatnonzero(x if s.all() else s) for x, s in zip(X.T, seen.T, strict=True)]
    indptr = np.concatenate([[0], np.cumsum([len(rows) for rows in lists])])
    values = [x[rows] for x, rows in zip(X.T, lists, strict=True)]
    return columns_of(indptr, np.concatenate(lists), np.concatenate(values), seen.all(axis=0), 7, exposure)


def run(X, seen, W, shape, rate, sweeps, keep, key=KEY, exposure=1.0):
    """(E[c | x] (F, K, N), E[h | x] (N, K) times the exposures) by the kernel."""
    columns = columns_from(X, seen, exposure)
    workspace = make_workspace(len(columns.values), int(np.diff(columns.indptr).max()), X.shape[1], W.shape[1])
    plan = ColumnPlan(shape, rate, sweeps, keep)
    total = expect_columns(columns, 0, X.shape[1], weights_of(W), plan, workspace, key)
    assert total == X.sum()
    sources = np.zeros((*W.shape, X.shape[1]))
    for n in range(X.shape[1]):
        cells = slice(columns.indptr[n], columns.indptr[n + 1])
        sources[columns.rows[cells], :, n] = workspace.shares[cells, : W.shape[1]]
    return sources, workspace.active


def problem(K, mean, seed=0, F=6, N=5):
    rng = np.random.default_rng(seed)
    W = rng.gamma(1.0, size=(F, K)) + 1e-3
    X = rng.poisson(mean * (W @ rng.gamma(1.0, size=(K, N)))).astype(float)
    X[:, 1] = 0.0
    seen = np.ones((F, N), dtype=bool)
    seen[[1, 4], 2] = False
    return np.where(seen, X, 0.0), seen, W, rng.uniform(0.3, 2.0, K), rng.uniform(0.3, 2.0, K)


@pytest.mark.parametrize("K", [2, 5])
def test_exposures_are_rates(K):
    """Of activations times their column's exposure, whose law this is."""
    X, seen, W, shape, rate = problem(K, 1.0)
    exposure = np.array([1.0, 0.3, 2.5, 40.0, 1e-3])
    sources, active = run(X, seen, W, shape, rate, sweeps=6, keep=4, exposure=exposure)
    for n in range(X.shape[1]):
        key = child(KEY, 7 + n)
        expected = naive.expect_column(X[:, n], seen[:, n], W, shape, rate / exposure[n], 6, 4, key)
        np.testing.assert_allclose(sources[:, :, n], expected[0], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(active[n], expected[1], rtol=1e-10)


@pytest.mark.parametrize("K", [2, 3, 5, 9, 17])
def test_sweeps_are_those_of_plain_numpy(K):
    X, seen, W, shape, rate = problem(K, 1.0)
    sources, active = run(X, seen, W, shape, rate, sweeps=6, keep=4)
    for n in range(X.shape[1]):
        expected = naive.expect_column(X[:, n], seen[:, n], W, shape, rate, 6, 4, child(KEY, 7 + n))
        np.testing.assert_allclose(sources[:, :, n], expected[0], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(active[n], expected[1], rtol=1e-10)


@pytest.mark.parametrize("mean", [1.0, 60.0])
def test_sources_add_up_to_the_counts(mean):
    """Rao-Blackwellised or not, the sources of a cell are its count; large counts go through binomials."""
    X, seen, W, shape, rate = problem(3, mean)
    sources, _ = run(X, seen, W, shape, rate, sweeps=5, keep=3)
    np.testing.assert_allclose(sources.sum(axis=1), X, rtol=1e-12)


def test_sweeps_survive_rows_and_activations_of_any_size():
    X, seen, W, _, rate = problem(3, 2.0)
    W[0], W[1, 1:], W[2, :2], W[3] = 1e-290, 0.0, 0.0, 1e250
    sources, active = run(X, seen, W, np.array([1e-3, 0.5, 1e-3]), rate, sweeps=20, keep=10)
    assert np.all(np.isfinite(sources))
    assert np.all(np.isfinite(active))
    np.testing.assert_allclose(sources.sum(axis=1), X, rtol=1e-12)


@pytest.mark.parametrize("exposure", [1.0, 0.4, 3.0])
@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("shapes", [(1.0, 1.5), (0.3, 0.4), (0.5, 2.0, 1.0)])
def test_averages_tend_to_the_exact_expectations(shapes, is_complete, exposure):
    """Many sweeps of many copies of one column, against enumeration: within 5 standard errors over the copies."""
    shape, K, copies = np.array(shapes), len(shapes), 400
    rng = np.random.default_rng(1)
    W, rate = rng.gamma(1.0, size=(3, K)), rng.uniform(0.5, 1.5, K)
    x, seen = np.array([3.0, 0.0, 2.0]), np.array([True, is_complete, True])
    block = np.tile(x[:, None], copies)
    sources, active = run(block, np.tile(seen[:, None], copies), W, shape, rate, 120, 100, exposure=exposure)
    active = active / exposure
    _, expected_c, expected_h = naive.exact_column(x, seen, W, shape, rate, exposure)
    error_c = sources.std(axis=2) / np.sqrt(copies) + 1e-12
    error_h = active.std(axis=0) / np.sqrt(copies)
    assert np.all(error_c < 0.02)
    assert np.all(np.abs(sources.mean(axis=2) - expected_c) < 5 * error_c)
    assert np.all(np.abs(active.mean(axis=0) - expected_h) < 5 * error_h)


def test_the_programme_over_totals_is_the_enumeration():
    """The tests' own likelihood for K = 2."""
    rng = np.random.default_rng(2)
    W, shape, rate = rng.gamma(1.0, size=(3, 2)), np.array([0.7, 1.4]), np.array([0.5, 2.0])
    X = rng.poisson(2.0, size=(3, 6)).astype(float)
    seen = np.ones(3, dtype=bool)
    expected = [naive.exact_column(x, seen, W, shape, rate)[0] for x in X.T]
    np.testing.assert_allclose(naive.log_marginal(X, W, shape, rate), expected, rtol=1e-12)


@pytest.mark.parametrize("is_averaged", [False, True])
@pytest.mark.parametrize("exponent", [0.51, 0.6, 1.0])
def test_lazy_statistics_are_the_recursion(exponent, is_averaged):
    """Thousands of sparse columns, some incomplete, against S <- (1 - g) S + g s on dense arrays."""
    rng, F, K, steps, after = np.random.default_rng(3), 7, 2, 2500, 300
    running = empty(F, K, is_averaged)
    running = running._replace(some=np.zeros((F, K)), some_sums=np.zeros((F, K) if is_averaged else (0, K)))
    sources, everywhere, some = np.zeros((steps, F, K)), np.zeros((steps, K)), np.zeros((steps, F, K))
    sizes = (np.arange(1, steps + 1) + 0.5) ** -exponent
    for n in range(steps):
        rows = np.sort(rng.choice(F - 1, size=rng.integers(1, 4), replace=False))  # the last is never there
        shares, active, complete = rng.gamma(0.5, size=(len(rows), K)), rng.gamma(1.0, size=(1, K)), rng.random() < 0.8
        columns = columns_of([0, len(rows)], rows, np.ones(len(rows)), [complete], n)
        take_step(running, columns, 0, 1, shares, active, sizes[n], is_averaged and n >= after)
        sources[n, rows] = shares
        if complete:
            everywhere[n] = active[0]
        else:
            some[n, rows] = active[0]
    for name, terms in (("sources", sources), ("everywhere", everywhere), ("some", some)):
        path, mean = naive.running_means(terms, sizes, after)
        now = getattr(running, name) * running.clock[clock.SCALE]
        np.testing.assert_allclose(now, path[-1], rtol=1e-11, atol=1e-300)
        if is_averaged:
            np.testing.assert_allclose(getattr(averaged(running), name), mean, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(running.totals, running.sources.sum(axis=0), rtol=1e-11)
    assert np.all(running.sources[-1] == 0)

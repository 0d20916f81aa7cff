"""Rows at their optimum beside a known factor, against SciPy and the conditions of an optimum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, nnls
from scipy.special import gammaln

import nmf_zoo as nz
from nmf_zoo.inference.counts.newton import NOTHING, ActiveSets
from nmf_zoo.inference.shared.layout import compress
from nmf_zoo.kernels.counts.active_sets import _length, refine_rows, settle_rows
from nmf_zoo.kernels.counts.newton import solve_quadratic
from nmf_zoo.reading.read import read
from nmf_zoo.runtime.workers import SERIAL

pytestmark = pytest.mark.filterwarnings("ignore:X. 1 sample has no positive")
F, K, N = 20, 9, 60
RNG = np.random.default_rng(7)
W = RNG.dirichlet(np.full(F, 0.3), K).T
X = RNG.poisson(W @ RNG.gamma(0.3, 60.0, (K, N))).astype(float)
X[:, 5] = 0.0
OFFSET = RNG.gamma(1.0, 0.2, (F, N))
ALIKE = np.c_[W[:, :-2], W[:, :1] * (1.0 + 1e-9), W[:, 1:2]]  # the same twice


def violation(u, slopes):
    """How far cells >= 0 and slopes >= 0 are from a product of 0."""
    return np.abs(np.minimum(u / max(u.max(), 1.0), slopes)).max()


@pytest.mark.parametrize("start", [1e-100, 1e-6, 1.0, 1e5, np.inf])
@pytest.mark.parametrize("known", [W, ALIKE], ids=["plain", "components that are alike"])
@pytest.mark.parametrize("curve", [0.0, 0.7])
@pytest.mark.parametrize("has_offset", [True, False])
def test_rows_of_counts_are_at_their_optimum(has_offset, curve, known, start):
    """From any start, in one call."""
    structure = read(nz.poisson_nmf(X, K, known=known, background=OFFSET if has_offset else None))
    layout = ActiveSets(structure, SERIAL, compress(structure)).layout
    u = np.full((N, K), start) if start > 1e-6 else np.where(RNG.random((N, K)) < 0.5, start, 1.0)
    linear, curves, v = known.sum(axis=0)[None], np.full((1, K), curve), np.ascontiguousarray(known)
    log_mean, residual = settle_rows(layout, u, v, linear, curves, np.ones(K), 0)
    means = known @ u.T + (OFFSET if has_offset else 0.0)
    ratios = np.divide(X, means, out=np.zeros_like(X), where=X > 0)
    slopes = 1.0 - (ratios.T @ known) / (linear + curve * u)
    assert violation(u, slopes) < 1e-8
    assert residual < 1e-8
    np.testing.assert_allclose(log_mean, np.sum(X[X > 0] * np.log(means[X > 0])), rtol=1e-12)


@pytest.mark.parametrize("known", [W, ALIKE], ids=["plain", "components that are alike"])
def test_rows_of_squares_are_at_their_optimum(known):
    gram, u = known.T @ known, RNG.gamma(1.0, 1.0, (N, K))
    slopes, steps = u @ gram - X.T @ known, np.empty((N, K))
    solve_quadratic(steps, u, slopes, np.ones(N), gram, NOTHING, 3)
    refine_rows(steps, u, slopes, np.ones(N), gram, NOTHING)
    for found, x in zip(u + steps, X.T, strict=True):
        _, least = nnls(known, x)
        assert np.all(found >= 0)
        np.testing.assert_allclose(np.linalg.norm(known @ found - x), least, rtol=1e-9, atol=1e-9)


def test_rows_of_squares_with_curves_are_at_their_optimum():
    """A half-normal prior of precision q: more rows of data, sqrt(q) I u = 0."""
    gram, u, own = W.T @ W, RNG.gamma(1.0, 1.0, (N, K)), RNG.gamma(1.0, 0.3, (N, K))
    slopes, steps = u @ gram + own * u - X.T @ W, np.empty((N, K))
    solve_quadratic(steps, u, slopes, np.ones(N), gram, own, 3)
    refine_rows(steps, u, slopes, np.ones(N), gram, own)
    for found, x, q in zip(u + steps, X.T, own, strict=True):
        expected, _ = nnls(np.vstack([W, np.diag(np.sqrt(q))]), np.r_[x, np.zeros(K)])
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


def test_a_fit_takes_one_iteration_and_has_no_gap():
    for model in (nz.poisson_nmf(X, K, known=W), nz.normal_nmf(X, K, known=W, sigma=1.0)):
        fit = nz.fit(engine="em", model=model, tol=1e-8, search=None, random_seed=1, quiet=True).fit
        assert int(fit["iterations"].item()) <= 2
        assert float(fit["duality_gap"].item()) < 1e-5


def test_a_fit_ends_where_scipy_does():
    """Objectives to 1e-8 of them: active sets for squares, L-BFGS-B for counts, column by column."""
    squares = sum(nnls(W, x)[1] ** 2 for x in X.T) / 2 + X.size * np.log(2 * np.pi) / 2
    seen = [x for x in X.T if x.any()]
    counts = sum(least_divergence(x) for x in seen) + np.sum(gammaln(X + 1))
    for model, expected in (
        (nz.normal_nmf(X, K, known=W, sigma=1.0), squares),
        (nz.poisson_nmf(X, K, known=W), counts),
    ):
        fit = nz.fit(engine="em", model=model, tol=1e-8, random_seed=1, quiet=True).fit
        found = fit["objective"].dropna("iteration").to_numpy()[0, -1]
        assert found == pytest.approx(expected, rel=1e-8)


def least_divergence(x):
    def loss(h):
        mean = np.maximum(W @ h, 1e-300)
        return mean.sum() - x @ np.log(mean), W.sum(axis=0) - W.T @ (x / mean)

    options = {"maxiter": 5000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9}
    start = np.full(K, x.sum() / K)
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * K, options=options).fun


def test_a_step_of_a_few_roundings_is_taken():
    """Newton's whole step, of rows near their optimum: the slope where it ends is nothing but rounding."""
    rng = np.random.default_rng(1)
    means = rng.gamma(1.0, 10.0, (600, 96)) + 1.0
    x, changes = rng.poisson(means) + 1.0, 1e-9 * rng.normal(size=means.shape)
    slopes = -np.sum(x * np.square(changes / means), axis=1)
    lengths = [_length(*row, slope, 0.0) for *row, slope in zip(x, means, changes, x / means, slopes, strict=True)]
    assert min(lengths) > 0.5


def test_the_other_factor_alone_is_found_too():
    H = RNG.gamma(1.0, 1.0, (K, N))
    fits = [
        nz.fit(engine=engine, model=nz.poisson_nmf(X, K, known_h=H), tol=1e-9, search=None, random_seed=1, quiet=True)
        for engine in (nz.EM(), nz.EM(accelerate="momentum"))
    ]
    one, other = (fit.fit["objective"].dropna("iteration").to_numpy()[0, -1] for fit in fits)
    assert one == pytest.approx(other, abs=1e-3)
    assert one <= other + 1e-9 * abs(other)


def test_forgetting_the_drag_of_cells_without_counts_is_seen():
    structure = read(nz.poisson_nmf(X, K, known=W))
    layout = ActiveSets(structure, SERIAL, compress(structure)).layout
    u, v = np.ones((N, K)), np.ascontiguousarray(W)
    settle_rows(layout, u, v, 0.9 * W.sum(axis=0)[None], np.zeros((1, K)), np.ones(K), 0)
    ratios = np.divide(X, W @ u.T, out=np.zeros_like(X), where=X > 0)
    assert violation(u, 1.0 - (ratios.T @ W) / W.sum(axis=0)) > 1e-3

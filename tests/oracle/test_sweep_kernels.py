"""Kernels of blocks of sweeps against their own Python (``.py_func``) and naive twins."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.counts.sweeps import make_sweeps, make_workspace, weight_arrays, with_multipliers
from nmf_zoo.inference.shared.factor_view import prior_cells
from nmf_zoo.inference.shared.layout import Weights, compress, weigh
from nmf_zoo.kernels.counts import sweeps as kernels
from nmf_zoo.kernels.counts.joint import log_joint, weigh_features, weigh_samples
from nmf_zoo.kernels.random import predictions
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells, Outer
from tests.naive.counts import sweeps as naive_sweeps
from tests.structures import gamma, model

KEY = seed_key(8)
RNG = np.random.default_rng(8)
F, K, N = 5, 3, 4
W, H = RNG.gamma(1.0, 1.0, (F, K)), RNG.gamma(1.0, 1.0, (K, N))
HT = np.ascontiguousarray(H.T)
OF_FEATURES, OF_SAMPLES = RNG.gamma(1.0, 1.0, (F, 1)), RNG.gamma(1.0, 1.0, (N, 1))
MATRIX = RNG.gamma(1.0, 1.0, (F, N)) * (RNG.random((F, N)) < 0.6)
ONE = np.ones((1, 1))
WEIGHTS = {
    "ones": (Weights(ONE, ONE), np.ones((F, N))),
    "of features": (Weights(OF_FEATURES, ONE), np.broadcast_to(OF_FEATURES, (F, N))),
    "of samples": (Weights(ONE, OF_SAMPLES), np.broadcast_to(OF_SAMPLES.T, (F, N))),
    "matrix": (Weights(ONE, ONE, MATRIX), MATRIX),
    "sparse": (Weights(ONE, ONE, sp.csr_array(MATRIX)), MATRIX),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_denominators(name):
    weights, dense = WEIGHTS[name]
    arrays, over_samples, over_features = weight_arrays(weights), np.full((F, K), np.nan), np.full((N, K), np.nan)
    weigh_samples(over_samples, arrays, HT)
    weigh_features(over_features, arrays, W)
    np.testing.assert_allclose(over_samples, dense @ HT, rtol=1e-12)
    np.testing.assert_allclose(over_features, dense.T @ W, rtol=1e-12)
    np.testing.assert_allclose(over_samples, np.broadcast_to(weights.over_samples(HT), (F, K)), rtol=1e-12)
    plain = np.full((F, K), np.nan)
    weigh_samples.py_func(plain, arrays, HT)
    np.testing.assert_allclose(over_samples, plain, rtol=1e-12)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("background", [None, 0.7])
def test_log_joint(background, turned):
    x, mask = RNG.poisson(2.0, (F, N)).astype(float), MATRIX > 0
    shape_w, rate_w = RNG.gamma(2.0, 1.0, (F, K)), RNG.gamma(2.0, 1.0, (F, K))
    shape_h, rate_h = np.where(RNG.random((K, N)) < 0.5, 1.0, 0.2), RNG.gamma(2.0, 1.0, (K, N))
    arrays = [x * mask, mask, W, H, shape_w, rate_w, shape_h, rate_h]
    if turned:
        x, mask, H_, W_, shape_h, rate_h, shape_w, rate_w = (array.T for array in arrays)
    else:
        x, mask, W_, H_, shape_w, rate_w, shape_h, rate_h = arrays
    structure = model(x, K, gamma(shape_w, rate_w), gamma(shape_h, rate_h), mask=mask, background=background)
    problem = gibbs.prepare(structure, gibbs.Gibbs(), SERIAL)
    W_, Ht = np.ascontiguousarray(W_), np.ascontiguousarray(H_.T)
    scratch = np.empty(len(problem.layout.values)), np.empty_like(W_)
    found = log_joint(problem.layout, problem.sweeps.weights, problem.sweeps.priors, W_, Ht, scratch)
    priors = (shape_w, rate_w), (shape_h, rate_h)
    expected = naive_sweeps.log_joint(x, 1.0 * mask, background or 0.0, W_, H_, priors)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    plain = log_joint.py_func(problem.layout, problem.sweeps.weights, problem.sweeps.priors, W_, Ht, scratch)
    np.testing.assert_allclose(found, plain, rtol=1e-12)


@pytest.mark.parametrize("background", [None, 1e-250])
def test_log_joint_of_means_that_underflow(background):
    structure = model(np.full((2, 2), 3.0), 2, gamma(1.0, 1.0), gamma(1.0, 1.0), background=background)
    problem = gibbs.prepare(structure, gibbs.Gibbs(), SERIAL)
    W_, Ht = np.full((2, 2), 1e-200), np.array([[1e-180, 2e-180], [0.5, 0.1]])
    scratch = np.empty(4), np.empty_like(W_)
    found = log_joint(problem.layout, problem.sweeps.weights, problem.sweeps.priors, W_, Ht, scratch)
    with np.errstate(divide="ignore"):
        logs = np.log(W_)[:, :, None] + np.log(Ht.T)[None]
        offset = np.log(background or 0.0)
    means = np.logaddexp(np.logaddexp(*np.moveaxis(logs, 1, 0)), offset)
    np.testing.assert_allclose(found, 3.0 * means.sum() - W_.sum() - Ht.sum(), rtol=1e-12)


def test_scales():
    rate, scale, out = RNG.gamma(1.0, 1.0, (F, K)), np.array([0.5, 3.0, 1e-3]), np.empty(K)
    kernels.set_rates_of_components(out, rate, W)
    np.testing.assert_allclose(out, 2.0 * np.einsum("fk,fk->k", rate, W), rtol=1e-12)
    scaled_W, scaled_Ht = W.copy(), HT.copy()
    scaled_W[0, 0], scaled_Ht[0, 1] = 1.5 * TINY, TINY
    size = kernels.apply_scales(scaled_W, scaled_Ht, scale)
    np.testing.assert_allclose(size, np.sqrt(np.mean(np.log(scale) ** 2)), rtol=1e-12)
    assert scaled_W[0, 0] == scaled_Ht[0, 1] == TINY  # the floor
    np.testing.assert_allclose(scaled_W[1:], W[1:] * scale, rtol=1e-15)
    np.testing.assert_allclose(scaled_Ht[1:], HT[1:] / scale, rtol=1e-15)


def test_cells_that_the_model_draws():
    cells = predictions.DrawnCells(
        np.array([0, 4, 2]), np.array([3, 3, 0]), np.array([1.0, 2.0, 0.5]), np.array([0.0, 0.3, 9.0])
    )
    out = np.empty(3, np.int64)
    predictions.draw_cells(out, W, HT, cells, KEY)
    np.testing.assert_array_equal(out, naive_sweeps.draw_cells(W, H, *cells, KEY))
    predictions.draw_cells(out, W * 1e30, HT, cells, KEY)
    np.testing.assert_array_equal(out, -1)


def test_the_workspace_holds_every_shape():
    problem = gibbs.prepare(model(np.ones((F, N)), K, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(), SERIAL)
    workspace = make_workspace(problem.sweeps, kernels.CountFactors(W, HT, W, HT))
    shapes = (
        workspace.shape_w.shape,
        workspace.rate_w.shape,
        workspace.shape_h.shape,
        workspace.rate_h.shape,
        workspace.W.shape,
        workspace.H.shape,
    )
    assert shapes == ((F, K), (F, K), (N, K), (N, K), (K, F), (K, N))


# -- multipliers of batches ----------------------------------------------------------------------------------------

BATCHES = np.array([0, 2, 1, 0, 2, 1, 0, 2, 2, 1])


def with_batches(kind):
    """(sweeps of a model whose weights are of this kind, its table of multipliers, the weights as a plain table)"""
    rng, (n_features, n_samples) = np.random.default_rng(5), (4, 10)
    x, mask = rng.poisson(2.0, (n_features, n_samples)).astype(float), rng.random((n_features, n_samples)) < 0.7
    of_features, of_samples = rng.uniform(0.5, 2.0, (n_features, 1)), rng.uniform(0.5, 2.0, (1, n_samples))
    rows, cols = np.nonzero(mask)
    listed = Cells(rows=rows, cols=cols, values=x[rows, cols], shape=x.shape, is_complete=False)
    options, weight = {
        "ones": ({}, np.ones_like(x)),
        "samples": ({"exposure": of_samples}, np.broadcast_to(of_samples, x.shape)),
        "both": ({"exposure": Outer(of_features=of_features, of_samples=of_samples)}, of_features * of_samples),
        "mask": ({"mask": mask, "exposure": of_features}, mask * of_features),
        "listed": ({"data": listed}, mask.astype(float)),
    }[kind]
    structure = model(x, 2, gamma(1.2, 0.8), gamma(0.7, 1.5), **options)
    layout, weights, priors = compress(structure), weigh(structure), prior_cells(structure, {})
    sweeps = make_sweeps(structure, ("scale",), True, layout, weights, priors, (np.zeros(1, int), np.zeros(1, int)))
    return sweeps, rng.gamma(2.0, 0.5, (n_features, 3)), weight


@pytest.mark.parametrize("kind", ["ones", "samples", "both", "mask", "listed"])
def test_weights_of_batches_are_the_tables(kind):
    sweeps, table, weight = with_batches(kind)
    arrays, whole = with_multipliers(sweeps, table, BATCHES).weights, weight * table[:, BATCHES]
    rng = np.random.default_rng(6)
    for kernel, factor, right in (
        (weigh_samples, rng.gamma(1.0, 1.0, (10, 2)), lambda factor: whole @ factor),
        (weigh_features, rng.gamma(1.0, 1.0, (4, 2)), lambda factor: whole.T @ factor),
    ):
        compiled, plain = (np.full((len(whole.T if kernel is weigh_features else whole), 2), np.nan) for _ in range(2))
        kernel(compiled, arrays, factor)
        kernel.py_func(plain, arrays, factor)
        np.testing.assert_allclose(compiled, plain, rtol=1e-12)
        np.testing.assert_allclose(compiled, right(factor), rtol=1e-10)


@pytest.mark.parametrize("known", ["W", "H"])
@pytest.mark.parametrize("background", [None, [[0.0], [0.0], [0.4], [0.0]]])
def test_trajectories_move_beside_known_cells_that_are_all_zero(known, background):
    """A row or column of a known factor: nothing is counted there, and the mean's gradient would be 0 / 0."""
    rng = np.random.default_rng(7)
    left, right = rng.gamma(2.0, size=(4, 2)), rng.gamma(2.0, size=(2, 5))
    if known == "W":
        left[1] = left[2] = 0.0
    else:
        right[:, 3] = 0.0
    x = rng.poisson(4.0 * (left @ right) + (0.0 if background is None else np.array(background)))
    priors = (4.0 * left, gamma(1.2, 0.8)) if known == "W" else (gamma(1.2, 0.8), 4.0 * right)
    structure = model(x, 2, *priors, background=background)
    problem = gibbs.prepare(structure, gibbs.Gibbs(trajectories="always"), SERIAL)
    state = gibbs.init(problem, KEY, {})
    for sweep in range(300):
        state, _ = gibbs.tune(problem, state, seed_key(sweep))
    infos = [gibbs.step(problem, state, seed_key(1000 + sweep))[1] for sweep in range(100)]
    assert np.nanmean([info.accept_H if known == "W" else info.accept_W for info in infos]) > 0.7

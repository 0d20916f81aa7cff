"""Geweke's test of the moves of rows, alternating between the factors; then planted errors."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from nmf_zoo.kernels.hmc.poisson_rows import move_rows
from nmf_zoo.kernels.random.keyed_rng import child
from tests.blocks_of_rows import from_blocks, row_counts, rows_of, stride_of, workspace_for
from tests.naive.hmc import poisson_rows as naive_rows
from tests.planted import check_seen
from tests.sizes import size
from tests.statistical.geweke import BACKGROUND, EXPOSURE, MASK, X23, check_geweke, laid_out_cells
from tests.structures import gamma, model

pytestmark = pytest.mark.statistical
SWEEPS, PLANTED_SWEEPS, WIDTH, LENGTH = size(3_000, 60_000), 4_000, 8, 4

COMPONENTS_W, COMPONENTS_H = np.array([[0.5, 2.0]]), np.array([[1.6], [0.7]])
MODELS = {
    "plain": model(X23, 2, gamma(COMPONENTS_W, 0.8), gamma(COMPONENTS_H, 1.7)),
    "small shapes": model(X23, 2, gamma(0.25, 0.3), gamma(0.15, 0.2)),
    "large shapes": model(X23, 2, gamma(9.0, 4.0), gamma(15.0, 6.0)),
    "mask, exposure, background": model(
        X23, 2, gamma(COMPONENTS_W, 0.8), gamma(COMPONENTS_H, 1.7), mask=MASK, exposure=EXPOSURE, background=BACKGROUND
    ),
}
SLOWER = {"small shapes": 4}  # times as many sweeps: cells wander far towards 0


def counts_of(problem, shape):
    """(x, offset) (F, N) of the data as they are now; 1 for the offset where it does not matter."""
    x, offset = np.zeros(shape), np.ones(shape)
    cells = laid_out_cells(problem.layout)
    x[cells] = problem.layout.values
    if not problem.layout.offset.size:
        return x, None
    offset[cells] = problem.layout.offset
    return x, offset


def strides_of(shape):
    return strides(*shape.shape, float(shape.min()))


@cache
def strides(rank, n_rows, least):
    """Any fixed numbers will do; these are alike for no two cells, and wide where small shapes make the prior wide."""
    i = np.arange(rank * n_rows).reshape(rank, n_rows)
    root = np.tril(0.2 * np.ones((rank, rank))) + np.diag(np.linspace(0.8, 1.2, rank))
    wide = 1.0 / np.sqrt(min(1.0, least))
    return 0.5 + 0.13 * i, np.stack([root * (1 + 0.1 * n) for n in range(n_rows)]), wide * (0.5 + 0.03 * i[0])


def sweep(problem, state, key, move):
    """W given H, then H given W, by ``move(x, offset, other, v, shape, rate, key)``, which returns the new v."""
    x, offset = counts_of(problem, (len(state.W), len(state.Ht)))
    priors = problem.priors
    rate = np.broadcast_to(priors.rate_w + problem.weights.over_samples(state.Ht), state.W.shape)
    state.W[:] = move(x, offset, state.Ht, state.W.T, priors.shape_w.T, rate.T, child(key, 0)).T
    rate = np.broadcast_to(priors.rate_h + problem.weights.over_features(state.W), state.Ht.shape)
    turned = None if offset is None else offset.T
    state.Ht[:] = move(x.T, turned, state.W, state.Ht.T, priors.shape_h.T, rate.T, child(key, 1)).T
    return state, None


def compiled(dense):
    def move(x, offset, other, v, shape, rate, key):
        scale, roots, step = strides_of(shape)
        rows = rows_of(v, shape, rate, WIDTH)
        stride = stride_of(scale, roots, step, LENGTH, WIDTH)
        data, workspace = row_counts(x, offset, WIDTH, dense), workspace_for(x, len(v), WIDTH)
        move_rows(data, np.ascontiguousarray(other), rows, stride, workspace, 0, key)
        return from_blocks(rows.values, v.shape[1])

    return lambda problem, state, key: sweep(problem, state, key, move)


def naive(density=naive_rows.log_density, root_at=None):
    """The twin, with a wrong density, or a mass that depends on where the row is."""

    def move(x, offset, other, v, shape, rate, key):
        scale, roots, step = strides_of(shape)
        beside = np.zeros_like(x) if offset is None else offset
        given = [(x[i], other, beside[i], shape[:, i], rate[:, i]) for i in range(len(x))]
        roots = roots if root_at is None else [root_at(v[:, i]) for i in range(len(x))]
        strides = [(scale[:, i], roots[i], step[i], LENGTH) for i in range(len(x))]
        return naive_rows.move_rows(np.array(v), given, strides, key, WIDTH, density)[0]

    return lambda problem, state, key: sweep(problem, state, key, move)


def without_jacobian(free, x, u, offset, shape, rate, scale):
    return naive_rows.log_density(free, x, u, offset, shape, rate, scale) + np.log1p(np.exp(-free)).sum()


def without_momentum_matching(v):
    return np.diag(1.0 / np.sqrt(0.5 + v))


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", MODELS)
def test_moves_of_rows_are_exact(name, dense):
    """Long: cells of small shapes wander, and want four times the sweeps."""
    check_geweke(MODELS[name], SLOWER.get(name, 1) * SWEEPS, step=compiled(dense))


MODERATE = model(X23, 2, gamma(1.5, 2.0), gamma(1.8, 1.5))  # proper without the Jacobian, which matters here
PLANTED = {
    "no Jacobian": naive(density=without_jacobian),
    "mass depends on where the row is": naive(root_at=without_momentum_matching),
}


def test_the_twin_is_exact():
    check_geweke(MODERATE, PLANTED_SWEEPS // 2, step=naive())


@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_are_seen(error):
    """Wrong chains may mix slowly. Long: as many sweeps as it takes to see them."""
    check_seen(lambda n: check_geweke(MODERATE, n, step=PLANTED[error], least=50), PLANTED_SWEEPS, least=2_000)

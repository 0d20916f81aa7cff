"""Kernels that move rows against their naive twins."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from nmf_zoo.kernels.hmc.poisson_rows import (
    add_curvature,
    add_log_ratios,
    add_plain_curvature,
    gradient_of_counts,
    measure_rows,
    move_rows,
)
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from tests.blocks_of_rows import from_blocks, in_blocks, row_counts, rows_of, stride_of, workspace_for
from tests.naive.hmc import poisson_rows as naive_rows

KEY = seed_key(3)
N_ROWS, CELLS, RANK, WIDTH = 13, 9, 3, 8
RNG = np.random.default_rng(3)
X = RNG.poisson(2.0, (N_ROWS, CELLS)) * (RNG.random((N_ROWS, CELLS)) < 0.7).astype(float)
X[4] = 0.0
OTHER = RNG.gamma(1.0, 1.0, (CELLS, RANK))
V = RNG.gamma(1.0, 1.0, (RANK, N_ROWS))
SHAPE, RATE = RNG.gamma(2.0, 1.0, (RANK, N_ROWS)), RNG.gamma(4.0, 1.0, (RANK, N_ROWS))
SCALE, STEP = RNG.gamma(3.0, 0.3, (RANK, N_ROWS)), RNG.uniform(0.6, 1.6, N_ROWS)
ROOTS = np.tril(RNG.normal(0.0, 0.3, (N_ROWS, RANK, RANK))) + np.eye(RANK)
OFFSET = RNG.gamma(1.0, 1.0, (N_ROWS, CELLS))
CURVE = RNG.gamma(2.0, 0.5, (RANK, N_ROWS))
FORMS = [
    pytest.param(dense, offset, id=f"{'dense' if dense else 'sparse'}{', offset' if offset is not None else ''}")
    for dense, offset in itertools.product((True, False), (None, OFFSET))
]


def at(offset, i):
    return np.zeros(CELLS) if offset is None else offset[i]


@pytest.mark.parametrize(("dense", "offset"), FORMS)
def test_gradient_ratios_and_curvature(dense, offset):
    data, workspace, values = (
        row_counts(X, offset, WIDTH, dense),
        workspace_for(X, RANK, WIDTH),
        in_blocks(V, WIDTH, 1.0),
    )
    slope, gradient = in_blocks(SCALE, WIDTH, 1.0), np.empty_like(values)
    bends, plain, gains = np.zeros((2, RANK, RANK, WIDTH)), np.zeros_like(values), np.zeros((2, WIDTH))
    for block in range(2):
        gradient_of_counts(data, OTHER, block, 2.0 * values[block], workspace.before, gradient[block])
        gradient_of_counts(data, OTHER, block, values[block], workspace.means, gradient[block])
        add_log_ratios(data, block, workspace.means, workspace.before, gains[block])
        add_curvature(data, OTHER, block, workspace.means, slope[block], bends[block])
        add_plain_curvature(data, OTHER, block, workspace.means, plain[block])
    gradient, plain, gains = (
        from_blocks(gradient, N_ROWS),
        from_blocks(plain, N_ROWS),
        from_blocks(gains[:, None], N_ROWS)[0],
    )
    for i in range(N_ROWS):
        means, expected = naive_rows.gradient_of_counts(X[i], OTHER, at(offset, i), V[:, i])
        before = naive_rows.gradient_of_counts(X[i], OTHER, at(offset, i), 2.0 * V[:, i])[0]
        np.testing.assert_allclose(gradient[:, i], expected, rtol=1e-12)
        np.testing.assert_allclose(gains[i], X[i] @ np.log(means / before), rtol=1e-12, atol=1e-12)
        bend = naive_rows.curvature(X[i], OTHER, at(offset, i), V[:, i], SCALE[:, i])
        np.testing.assert_allclose(bends[i // WIDTH, :, :, i % WIDTH], np.tril(bend), rtol=1e-12, atol=1e-12)
        bend = naive_rows.curvature(X[i], OTHER, at(offset, i), V[:, i], np.ones(RANK))
        np.testing.assert_allclose(plain[:, i], np.diag(bend), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("roots", [ROOTS, None], ids=["mass of its own", "identity"])
@pytest.mark.parametrize(("dense", "offset"), FORMS)
def test_trajectories(dense, offset, roots):
    data, workspace = row_counts(X, offset, WIDTH, dense), workspace_for(X, RANK, WIDTH)
    rows, stride = rows_of(V, SHAPE, RATE, WIDTH), stride_of(SCALE, roots, STEP, 4, WIDTH)
    for block in range(2):
        move_rows(data, OTHER, rows, stride, workspace, block, child(KEY, block))
    moved, chances = from_blocks(rows.values, N_ROWS), rows.chance.ravel()[:N_ROWS]
    for block in range(2):
        some = range(block * WIDTH, min((block + 1) * WIDTH, N_ROWS))
        given = [(X[i], OTHER, at(offset, i), SHAPE[:, i], RATE[:, i]) for i in some]
        strides = [(SCALE[:, i], np.eye(RANK) if roots is None else roots[i], STEP[i], 4) for i in some]
        expected, chance = naive_rows.move_rows(V[:, some], given, strides, child(KEY, block), WIDTH)
        np.testing.assert_allclose(moved[:, some], expected, rtol=1e-10)
        np.testing.assert_allclose(chances[list(some)], chance, rtol=1e-9)
    assert np.any(moved != V)
    assert 0.1 < chances.mean() < 0.95


@pytest.mark.parametrize(("dense", "offset"), FORMS)
def test_trajectories_under_half_normal_priors_beside_known_components(dense, offset):
    """Known components have no part in the root: they stay, and the others move as if they were part of the offset."""
    data, workspace, free = row_counts(X, offset, WIDTH, dense), workspace_for(X, RANK, WIDTH), np.arange(RANK) != 1
    roots = ROOTS * free * free[:, None]
    rows, stride = rows_of(V, 1.0, RATE, WIDTH, CURVE, free), stride_of(SCALE, roots, STEP, 4, WIDTH)
    for block in range(2):
        move_rows(data, OTHER, rows, stride, workspace, block, child(KEY, block))
    moved, chances = from_blocks(rows.values, N_ROWS), rows.chance.ravel()[:N_ROWS]
    for block in range(2):
        some = range(block * WIDTH, min((block + 1) * WIDTH, N_ROWS))
        given = [(X[i], OTHER, at(offset, i), np.ones(RANK), RATE[:, i], CURVE[:, i]) for i in some]
        strides = [(SCALE[:, i], roots[i], STEP[i], 4) for i in some]
        expected, chance = naive_rows.move_rows(V[:, some], given, strides, child(KEY, block), WIDTH)
        np.testing.assert_allclose(moved[:, some], expected, rtol=1e-10)
        np.testing.assert_allclose(chances[list(some)], chance, rtol=1e-9)
    np.testing.assert_allclose(moved[1], V[1], rtol=1e-14)
    assert np.any(moved[0] != V[0])
    assert 0.1 < chances.mean() < 0.99


def test_a_measurement_changes_nothing_and_averages_the_curvature():
    data, workspace = row_counts(X, OFFSET, WIDTH, True), workspace_for(X, RANK, WIDTH)
    rows, stride = rows_of(V, SHAPE, RATE, WIDTH), stride_of(SCALE, None, STEP, 4, WIDTH)
    sums = np.zeros((RANK, RANK, WIDTH)), np.zeros((RANK, WIDTH))
    for _ in range(2):
        measure_rows(data, OTHER, rows, stride, workspace, 0, sums)
    np.testing.assert_array_equal(rows.values[0], V[:, :WIDTH])
    for i in (2, 4):
        row = (X[i], OTHER, OFFSET[i], SHAPE[:, i], RATE[:, i], SCALE[:, i])
        free = np.log(np.expm1(V[:, i] / SCALE[:, i]))
        bend = -approx_fprime(free, naive_rows.gradient, 1e-7, *row)
        np.testing.assert_allclose(sums[0][:, :, i], 2 * np.tril(bend), rtol=1e-5, atol=1e-5)
    bend = naive_rows.curvature(X[2], OTHER, OFFSET[2], V[:, 2], np.ones(RANK))
    np.testing.assert_allclose(sums[1][:, 2], 2 * np.diag(bend), rtol=1e-10)


def test_naive_gradient():
    row = (X[2], OTHER, OFFSET[2], SHAPE[:, 2], RATE[:, 2], SCALE[:, 2])
    free = RNG.normal(size=RANK)
    np.testing.assert_allclose(
        naive_rows.gradient(free, *row), approx_fprime(free, naive_rows.log_density, 1e-7, *row), rtol=1e-4
    )


def test_rows_without_counts_and_tiny_values_stay_numbers():
    data, workspace = row_counts(np.zeros((N_ROWS, CELLS)), None, WIDTH, False), workspace_for(X, RANK, WIDTH)
    rows = rows_of(np.full_like(V, 1e-300), 0.01, RATE, WIDTH)
    stride = stride_of(SCALE, None, np.full(N_ROWS, 5.0), 4, WIDTH)
    for sweep in range(200):
        for block in range(2):
            move_rows(data, OTHER, rows, stride, workspace, block, child(KEY, sweep, block))
    assert np.isfinite(rows.values).all()
    assert (rows.values > 0).all()
    assert np.isfinite(rows.chance).all()

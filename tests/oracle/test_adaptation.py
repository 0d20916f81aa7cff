"""What trajectories learn in the warm-up, against NumPy, and the data as their rows see them."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.inference.counts import gibbs, sweeps
from nmf_zoo.kernels.hmc import adaptation
from nmf_zoo.kernels.hmc.poisson_rows import NO_CURVE, FactorRows
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.runtime.blocks import Block
from nmf_zoo.runtime.workers import SERIAL
from tests.structures import gamma, model

RNG = np.random.default_rng(6)
F, K, N = 5, 3, 70
KEY = seed_key(1)


@pytest.mark.parametrize("kernel", [adaptation._set_root, adaptation._set_root.py_func])
def test_roots_of_inverse_masses(kernel):
    factor = RNG.normal(size=(K, K + 2))
    mass = factor @ factor.T + np.eye(K)
    curvature, root = np.zeros((K, K, 8)), np.zeros((K, K, 8))
    curvature[:, :, 4] = np.tril(mass) * 7.0
    kernel(root, curvature, 4, 7.0)
    expected = np.linalg.inv(mass)
    np.testing.assert_allclose(root[:, :, 4] @ root[:, :, 4].T, expected, rtol=1e-10)
    assert np.all(np.triu(root[:, :, 4], 1) == 0)
    assert np.all(root[:, :, :4] == 0)


@pytest.mark.parametrize("kernel", [adaptation._set_root, adaptation._set_root.py_func])
def test_masses_that_too_few_sweeps_made_indefinite(kernel):
    root, curvature = np.zeros((K, K, 8)), np.zeros((K, K, 8))
    curvature[:, :, 4] = np.diag([-3.0, 4.0, 0.0])
    kernel(root, curvature, 4, 1.0)
    np.testing.assert_allclose(np.diag(root[:, :, 4]), [adaptation.RIDGE**-0.5, 0.5, adaptation.RIDGE**-0.5])


@pytest.mark.parametrize("kernel", [adaptation._add_widths, adaptation._add_widths.py_func])
def test_widths_are_bounded_by_the_priors(kernel):
    tables = RNG.gamma(1.0, size=(4, 1, K, 8))
    curvature, prior_rate = RNG.gamma(1.0, size=(K, 8)), RNG.gamma(1.0, size=(K, 8))
    curvature[:, 3:] = 0.0
    prior_rate[:, 5:] = 0.0
    curvature[:, 0] = np.inf
    rows, out = FactorRows(*tables[:3], tables[3, :, 0], NO_CURVE, np.ones(K, bool)), np.ones((K, 8))
    kernel(out, curvature, prior_rate, rows, 0)
    shape, rate = rows.shape[0], rows.rate[0]
    np.testing.assert_array_equal(out[:, 0], 1.0)
    expected = 1.0 / np.sqrt(curvature[:, 1:5] + prior_rate[:, 1:5] ** 2 / shape[:, 1:5])
    np.testing.assert_allclose(out[:, 1:5] - 1.0, expected, rtol=1e-12)
    np.testing.assert_allclose(out[:, 5:] - 1.0, np.sqrt(shape[:, 5:]) / rate[:, 5:], rtol=1e-12)


def test_blocks_and_back():
    factor, out = RNG.gamma(1.0, size=(N, K)), np.empty((N, K))
    table = sweeps.blocks_of(factor, 32, 9.0)
    assert table.shape == (3, K, 32)
    assert np.all(table[2, :, N - 64 :] == 9.0)
    again = np.full_like(table, 9.0)
    adaptation.to_blocks(again, factor)
    np.testing.assert_array_equal(again, table)
    adaptation.from_blocks(out, table)
    np.testing.assert_array_equal(out, factor)


@pytest.mark.parametrize("shape", [(F, N), (300, 200), (3, 600)])
def test_all_that_is_learnt_lies_alike_in_memory(shape):
    """Arrays with their axes in another order are another type to numba, and a compilation of minutes for the user."""
    x = RNG.poisson(1.0, shape).astype(float)
    state = gibbs.init(gibbs.prepare(model(x, K, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(), SERIAL), KEY, {})
    assert all(array.flags.c_contiguous for side in state.tuning[:2] for array in side)


def test_a_layout_turned():
    """The sides of sparse counts hold the same cells."""
    x = RNG.poisson(0.05, (40, N)).astype(float)
    structure = model(x, K, gamma(1.0, 1.0), gamma(1.0, 1.0), background=RNG.gamma(1.0, size=(40, N)))
    problem = gibbs.prepare(structure, gibbs.Gibbs(), SERIAL)
    for side, table, offset in zip(problem.sweeps.sides, (x, x.T), (1, 0), strict=True):
        assert side.data.grid.size == 0
        found, layout = np.zeros_like(table), side.data.layout
        rows = np.repeat(np.arange(len(table)), np.diff(layout.indptr))
        found[rows, layout.indices] = layout.values
        np.testing.assert_array_equal(found, table)
        background = structure.likelihood.background if offset else structure.likelihood.background.T
        np.testing.assert_array_equal(layout.offset, background[rows, layout.indices])


def test_grids_of_both_sides():
    x, mask = RNG.poisson(2.0, (F, N)).astype(float), RNG.random((F, N)) < 0.8
    background, exposure = RNG.gamma(1.0, size=(F, N)), RNG.gamma(2.0, size=(F, N))
    prior = gamma(1.0, RNG.gamma(2.0, size=(F, K))), gamma(1.0, 2.0)
    structure = model(x, K, *prior, mask=mask, background=background, exposure=exposure)
    W, H = gibbs.prepare(structure, gibbs.Gibbs(), SERIAL).sweeps.sides
    for side, table, offset in ((W, x * mask, background / exposure), (H, (x * mask).T, (background / exposure).T)):
        width = side.data.grid.shape[2]
        np.testing.assert_array_equal(side.data.grid, sweeps.blocks_of(table, width, 0.0))
        np.testing.assert_array_equal(side.data.offset, sweeps.blocks_of(offset, width, 1.0))
    np.testing.assert_array_equal(W.prior_rate[0, :, :F], structure.W.prior.shape_and_rate({})[1].T)


@pytest.mark.parametrize(("rows", "cells"), [(1, 4), (100, 4), (200, 50), (9, 10**6), (1000, 100), (257, 1)])
def test_blocks_are_about_equal_and_fill_the_lanes(rows, cells):
    width = sweeps.block_width(rows, cells)
    assert width % sweeps.LANES == 0
    assert width <= sweeps.WIDEST
    n_blocks = -(-rows // width)
    assert n_blocks * width - rows < sweeps.LANES * n_blocks


def steps_of(side, n_rows):
    return side.step.ravel()[:n_rows]


def test_the_warm_up_finds_the_acceptance_it_aims_for_and_then_stands_still():
    x = RNG.poisson(RNG.gamma(1.0, size=(F, K)) @ RNG.gamma(3.0, size=(K, N))).astype(float)
    problem = gibbs.prepare(model(x, K, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(), SERIAL)
    state = gibbs.init(problem, seed_key(1), {})
    state, *_ = gibbs.run(problem, state, seed_key(1), Block(0, 1000, 0, 0, True))
    scale, root = state.tuning.H.scale.copy(), state.tuning.H.root.copy()
    state, _, stats = gibbs.run(problem, state, seed_key(1), Block(1000, 1400, 1000, 1, False))
    for factor, side, n_rows in (("W", state.tuning.W, F), ("H", state.tuning.H, N)):
        assert abs(stats[f"accept_{factor}"].mean() - adaptation.TARGET) < 0.08
        assert np.all(steps_of(side, n_rows) * side.length[0] <= adaptation.PATH * (1 + 1e-12))
        assert len(np.unique(stats[f"n_steps_{factor}"])) == 1
    np.testing.assert_array_equal(state.tuning.H.scale, scale)
    np.testing.assert_array_equal(state.tuning.H.root, root)


@pytest.mark.parametrize(("tune", "walks"), [(0, False), (adaptation.LEAST - 1, False), (adaptation.LEAST, True)])
def test_a_short_warm_up_leaves_it_plain(tune, walks):
    problem = gibbs.prepare(model(np.ones((F, N)), K, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(), SERIAL)
    state = gibbs.init(problem, seed_key(1), {})
    if tune:
        gibbs.run(problem, state, seed_key(1), Block(0, tune, 0, 0, True))
    _, _, stats = gibbs.run(problem, state, seed_key(1), Block(tune, tune + 3, tune, 1, False))
    assert np.all(np.isfinite(stats["accept_W"])) == walks


def test_trajectories_can_be_left_out():
    problem = gibbs.prepare(
        model(np.ones((F, N)), K, gamma(1.0, 1.0), gamma(1.0, 1.0)), gibbs.Gibbs(trajectories="never"), SERIAL
    )
    state = gibbs.init(problem, seed_key(1), {})
    gibbs.run(problem, state, seed_key(1), Block(0, 150, 0, 0, True))
    _, _, stats = gibbs.run(problem, state, seed_key(1), Block(150, 153, 150, 1, False))
    assert set(stats) == {"scale_move", "lp", "mean"}
    with pytest.raises(ValueError, match="trajectories: got True; expected one of"):
        gibbs.Gibbs(trajectories=True)

"""Kernels that move rows where the data are powers, against their naive twins; how blocks and sweeps use them."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.powers import gibbs, trajectories
from nmf_zoo.kernels.hmc import leapfrog, power_rows
from nmf_zoo.kernels.hmc.adaptation import TARGET
from nmf_zoo.kernels.hmc.power_rows import LOUD, PowerRows, PowerStride, RowPowers
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.kernels.simd.blocked_gradients import LANES, MOST_IN_REGISTERS, gradient_of_power_grid
from nmf_zoo.runtime.blocks import Block
from nmf_zoo.runtime.engine import DRAW, STEPS
from nmf_zoo.runtime.workers import SERIAL, Workers
from tests.blocks_of_rows import NO_GRID, from_blocks, in_blocks
from tests.naive.hmc import power_rows as naive_power_rows
from tests.structures import inverse_gamma, model, unknown

KEY = seed_key(4)
N_ROWS, CELLS, RANK, WIDTH = 13, 9, 3, 8
RNG = np.random.default_rng(4)
OTHER, V = 1 / RNG.gamma(2.0, size=(CELLS, RANK)), 1 / RNG.gamma(2.0, size=(RANK, N_ROWS))
POWER = RNG.exponential((OTHER @ V).T)
SHAPE, SCALE = RNG.gamma(2.0, 1.0, (RANK, N_ROWS)), RNG.gamma(2.0, 1.0, (RANK, N_ROWS))
STEP, V_BLOCKS = RNG.uniform(0.6, 1.0, N_ROWS), in_blocks(V, WIDTH, 1.0)
ROOTS = np.tril(RNG.normal(0.0, 0.1, (N_ROWS, RANK, RANK))) + 0.4 * np.eye(RANK)
BACKGROUND, SEEN = RNG.gamma(1.0, 1.0, (N_ROWS, CELLS)), RNG.random((N_ROWS, CELLS)) < 0.8
OFFSETS = {"plain": None, "background": BACKGROUND, "mask": np.where(SEEN, 0.0, LOUD)}


def arrange(offset):
    """(data, rows, workspace) of V."""
    power = POWER if offset is None else np.where(offset == LOUD, 0.0, POWER)
    data = RowPowers(in_blocks(power.T, WIDTH, 1.0), NO_GRID if offset is None else in_blocks(offset.T, WIDTH, 1.0))
    tables = [in_blocks(table, WIDTH, 1.0) for table in (V, SHAPE, SCALE)]
    return data, PowerRows(*tables, np.zeros((2, WIDTH))), power_rows.make_workspace(CELLS, RANK, WIDTH)


def naive_row(i, offset):
    """What the twins take: of a mask, the cells that were seen."""
    if offset is not None and np.any(offset == LOUD):
        return POWER[i, SEEN[i]], OTHER[SEEN[i]], 0.0, SHAPE[:, i], SCALE[:, i]
    return POWER[i], OTHER, np.zeros(CELLS) if offset is None else offset[i], SHAPE[:, i], SCALE[:, i]


def blocks():
    for block in range(2):
        yield block, range(block * WIDTH, min((block + 1) * WIDTH, N_ROWS))


@pytest.mark.parametrize("rank", [*range(1, MOST_IN_REGISTERS + 2), 23])
@pytest.mark.parametrize("cells", [1, 3, 9])
def test_gradient_of_power_grid(cells, rank):
    other, values = RNG.gamma(1.0, size=(cells, rank)), RNG.gamma(1.0, size=(rank, 2 * LANES))
    power, offset = RNG.exponential(size=(cells, 2 * LANES)), RNG.gamma(1.0, size=(cells, 2 * LANES))
    mean = other @ values + offset
    for kernel in (gradient_of_power_grid, gradient_of_power_grid.py_func):
        inverses, gradient = offset.copy(), np.full((rank, 2 * LANES), np.nan)
        kernel(other, power, values, inverses, gradient)
        np.testing.assert_allclose(inverses, 1 / mean, rtol=1e-13)
        np.testing.assert_allclose(gradient, other.T @ (power / mean**2 - 1 / mean), rtol=1e-11, atol=1e-12)


def test_the_naive_gradient_and_curvature():
    row, logs = naive_row(2, BACKGROUND), np.log(V[:, 2])
    slope = approx_fprime(logs, naive_power_rows.log_density, 1e-7, *row)
    np.testing.assert_allclose(naive_power_rows.gradient(logs, *row), slope, rtol=1e-5, atol=1e-5)
    expected = (OTHER @ V[:, 2] + BACKGROUND[2], *row[1:])  # powers at their means
    bend = -approx_fprime(logs, naive_power_rows.gradient, 1e-7, *expected)
    np.testing.assert_allclose(
        naive_power_rows.curvature(V[:, 2], OTHER, BACKGROUND[2], SCALE[:, 2]), bend, rtol=1e-5, atol=1e-5
    )


def log_likelihoods(v, offset):
    """Of all rows, as the kernels have them: a cell that was not seen counts, but as a constant."""
    missing = np.zeros(N_ROWS) if offset is None else np.sum(offset == LOUD, axis=1)
    return [
        naive_power_rows.log_likelihood(v[:, i], *naive_row(i, offset)[:3]) - missing[i] * np.log(LOUD)
        for i in range(N_ROWS)
    ]


@pytest.mark.parametrize("name", OFFSETS)
def test_curvature(name):
    offset = OFFSETS[name]
    data, rows, workspace = arrange(offset)
    for block, some in blocks():
        sums = np.zeros((RANK, RANK, WIDTH))
        for _ in range(2):
            power_rows.add_curvature(data, OTHER, rows, workspace, block, sums)
        for i in some:
            _, u, beside, _, scale = naive_row(i, offset)
            expected = naive_power_rows.curvature(V[:, i], u, beside, scale)
            np.testing.assert_allclose(sums[:, :, i % WIDTH], 2 * np.tril(expected), rtol=1e-11)
    np.testing.assert_array_equal(from_blocks(rows.values, N_ROWS), V)


@pytest.mark.parametrize("roots", [ROOTS, None], ids=["mass of its own", "identity"])
@pytest.mark.parametrize("name", OFFSETS)
def test_trajectories(name, roots):
    offset = OFFSETS[name]
    data, rows, workspace = arrange(offset)
    step, root = (STEP, np.empty((1, 0, 0, 0))) if roots is not None else (0.3 * STEP, np.empty((1, 0, 0, 0)))
    if roots is not None:
        root = in_blocks(roots.transpose(1, 2, 0).reshape(RANK * RANK, -1), WIDTH, 0.1).reshape(2, RANK, RANK, WIDTH)
    stride, now = PowerStride(root, in_blocks(step[None], WIDTH, 0.1)[:, 0].copy(), np.array([4])), []
    for block, some in blocks():
        power_rows.move_rows(data, OTHER, rows, stride, workspace, block, child(KEY, block))
        strides = [(np.eye(RANK) if roots is None else roots[i], step[i], 4) for i in some]
        given = [naive_row(i, offset) for i in some]
        expected, chance = naive_power_rows.move_rows(V[:, some], given, strides, child(KEY, block), WIDTH)
        np.testing.assert_allclose(from_blocks(rows.values, N_ROWS)[:, some], expected, rtol=1e-10)
        np.testing.assert_allclose(rows.chance.ravel()[list(some)], chance, rtol=1e-9, atol=1e-200)
        now += list(workspace.now[: len(some)])
    moved = from_blocks(rows.values, N_ROWS)
    np.testing.assert_allclose(now, log_likelihoods(moved, offset), rtol=1e-12)
    assert np.any(moved != V)
    assert 0.1 < rows.chance.ravel()[:N_ROWS].mean() < 0.99


def exchanged(v, _, k, j):
    """As the twin, with sizes of all cells, seen or not."""
    return naive_power_rows.exchanged(v, OTHER, k, j)


@pytest.mark.parametrize("name", OFFSETS)
def test_exchanges(name):
    offset = OFFSETS[name]
    data, rows, workspace = arrange(offset)
    for block, some in blocks():
        workspace.now[:] = 0.0
        workspace.now[: len(some)] = np.array(log_likelihoods(V, offset))[list(some)]
        power_rows.exchange_components(data, OTHER, rows, workspace, block, 5, child(KEY, block))
        given = [naive_row(i, offset) for i in some]
        expected = naive_power_rows.exchange_components(V[:, some], given, 5, child(KEY, block), exchanged)
        moved = from_blocks(rows.values, N_ROWS)
        np.testing.assert_allclose(moved[:, some], expected, rtol=1e-12)
        np.testing.assert_allclose(
            workspace.now[: len(some)], np.array(log_likelihoods(moved, offset))[list(some)], rtol=1e-11
        )
    n_moved = np.sum(np.any(moved != V, axis=0))
    assert n_moved >= 3
    assert np.sum(np.all(np.sort(moved, axis=0) != V, axis=0)) >= 3


def test_an_exchange_back_leads_where_it_began():
    v = V[:, 0]
    there = naive_power_rows.exchanged(v, OTHER, 0, 2)
    np.testing.assert_allclose(naive_power_rows.exchanged(there, OTHER, 0, 2), v, rtol=1e-14)
    np.testing.assert_allclose(naive_power_rows.exchanged(v, OTHER, 2, 0), there, rtol=1e-14)


@pytest.mark.parametrize("name", OFFSETS)
def test_a_trajectory_back_leads_where_it_began(name):
    """With its momentum turned round, but for rounding (steps so short that it does not grow); accepted or not."""
    data, rows, workspace = arrange(OFFSETS[name])
    root = in_blocks(ROOTS.transpose(1, 2, 0).reshape(RANK * RANK, -1), WIDTH, 0.1).reshape(2, RANK, RANK, WIDTH)
    stride = PowerStride(root, in_blocks(STEP[None] / 3, WIDTH, 0.1)[:, 0].copy(), np.array([4]))
    for block, some in blocks():
        power_rows.move_rows(data, OTHER, rows, stride, workspace, block, child(KEY, block))
        v, target = workspace.v, power_rows.PowersTarget(data, OTHER, block, rows.shape[block], rows.scale[block])
        workspace.momentum[:] *= -1
        assert np.all(np.abs(v[:, : len(some)] / V[:, some] - 1) > 1e-4)
        power_rows._set_gradient(target, workspace)
        leapfrog.leap(target, workspace, root[block], 4)
        np.testing.assert_allclose(v[:, : len(some)], V[:, some], rtol=1e-11)


def test_rows_far_away_stay_numbers():
    data, rows, workspace = arrange(None)
    rows.values[:] = 1e-140
    stride = PowerStride(np.empty((1, 0, 0, 0)), np.full((2, WIDTH), 50.0), np.array([4]))
    for sweep, (block, _) in itertools.product(range(100), blocks()):
        power_rows.move_rows(data, OTHER, rows, stride, workspace, block, child(KEY, sweep, block))
    assert np.isfinite(rows.values).all()
    assert (rows.values > 0).all()
    assert np.isfinite(rows.chance).all()


def test_exchanges_stay_where_products_are_numbers():
    """Without a prior, components of sizes that are worlds apart would swap for certain."""
    data, rows, workspace = arrange(None)
    other, flat = OTHER * [1e-100, 1.0, 1e100], rows._replace(shape=-np.ones_like(V_BLOCKS), scale=0 * V_BLOCKS)
    power_rows.gradient_of_powers(data, other, 0, rows.values[0], workspace.inverses, workspace.gradient)
    power_rows._log_likelihoods(workspace.now, data.grid[0], workspace.inverses)
    for sweep in range(50):
        power_rows.exchange_components(data, other, flat, workspace, 0, 2, child(KEY, sweep))
    assert np.any(rows.values != V_BLOCKS)
    assert np.all((rows.values > 1e-150) & (rows.values < 1e150))


# -- inside the sampler --------------------------------------------------------------------------------------------

F, N = 5, 70
X = RNG.exponential(RNG.gamma(2.0, size=(F, 2)) @ (1 / RNG.gamma(2.0, size=(2, N))))
MASK, BESIDE, EXPOSURE = RNG.random(X.shape) < 0.8, RNG.gamma(1.0, size=X.shape), RNG.gamma(2.0, size=X.shape)
KNOWN = RNG.gamma(1.0, size=(F, 2))


def structure(prior_w, **options):
    return model(X, 2, prior_w, inverse_gamma([[1.5], [2.5]], 0.7), kind="exponential", **options)


PRIOR_W = inverse_gamma(2.0, 1.0)
STRUCTURES = {
    "plain": structure(PRIOR_W),
    "flat W": structure(None),
    "W known": structure(KNOWN),
    "mask, exposure, background": structure(PRIOR_W, mask=MASK, exposure=EXPOSURE, background=BESIDE),
}


def test_both_sides_of_the_data():
    sides = gibbs.prepare(STRUCTURES["mask, exposure, background"], Gibbs(), SERIAL).sides
    power, offset = np.where(MASK, X / EXPOSURE, 0.0), np.where(MASK, BESIDE / EXPOSURE, LOUD)
    for side, turn in zip(sides, (np.asarray, np.transpose), strict=True):
        width = side.data.grid.shape[2]
        assert side.n_rows == len(turn(X))
        np.testing.assert_allclose(side.data.grid, in_blocks(turn(power).T, width, 1.0), rtol=1e-14)
        np.testing.assert_allclose(side.data.offset, in_blocks(turn(offset).T, width, 1.0), rtol=1e-14)


def chain(problem, splits, tune=130):
    """(last state, draws and statistics) of 170 sweeps cut into blocks at ``splits``; of steps if there are none."""
    state, draws = gibbs.init(problem, KEY, {}), []
    for first, last in itertools.pairwise([0, *sorted({tune, *splits}), 170]):
        block = Block(first, last, 0 if first < tune else tune, 1, first < tune)
        state, values, stats = gibbs.run(problem, state, KEY, block)
        draws.append({**values, **stats})
    return state, {name: np.concatenate([some[name] for some in draws]) for name in draws[0]}


def steps(problem, tune=130):
    state, draws = gibbs.init(problem, KEY, {}), []
    for sweep in range(170):
        state, info = (gibbs.tune if sweep < tune else gibbs.step)(problem, state, child(KEY, STEPS, sweep))
        values, stats = gibbs.draw(problem, state, child(KEY, DRAW, sweep))
        draws.append({name: np.array(value) for name, value in {**values, **stats, **info._asdict()}.items()})
    return state, {name: np.stack([some[name] for some in draws]) for name in draws[0]}


@pytest.mark.parametrize("name", STRUCTURES)
def test_blocks_of_sweeps_and_single_steps_draw_the_same(name):
    problem = gibbs.prepare(STRUCTURES[name], Gibbs(), SERIAL)
    _, once = chain(problem, [])
    _, often = chain(problem, [1, 2, 57, 131, 166])
    _, single = steps(problem)
    for key, value in once.items():
        np.testing.assert_array_equal(often[key], value)
        np.testing.assert_array_equal(single[key], value)
    assert np.isfinite(once["accept_H"][130:]).all()
    assert np.isnan(once["accept_H"][:40]).all()


@pytest.mark.parametrize("name", STRUCTURES)
def test_threads_and_python_draw_what_the_compiled_sweep_draws(name):
    """Of problems too large for one call: blocks of rows are moved side by side."""
    compiled = gibbs.prepare(STRUCTURES[name], Gibbs(), SERIAL)
    workers = Workers(3)
    step_by_step = dataclasses.replace(compiled, sweeps=None, frames=compiled.frames._replace(workers=workers))
    _, expected = chain(compiled, [])
    _, found = steps(step_by_step)
    workers.close()
    for key, value in expected.items():
        if key == "lp":
            np.testing.assert_allclose(found[key], value, rtol=1e-11)
        else:
            np.testing.assert_array_equal(found[key], value)


def test_the_warm_up_finds_the_acceptance_it_aims_for_and_then_stands_still():
    problem = gibbs.prepare(STRUCTURES["plain"], Gibbs(), SERIAL)
    state = gibbs.init(problem, KEY, {})
    state, *_ = gibbs.run(problem, state, KEY, Block(0, 1000, 0, 0, True))
    root, step = state.tuning.H.root.copy(), state.tuning.H.step.copy()
    state, _, stats = gibbs.run(problem, state, KEY, Block(1000, 1400, 1000, 1, False))
    assert np.any(root[:, 0, 0] != 1.0)
    assert TARGET - 0.08 < stats["accept_H"].mean() < 0.99
    assert TARGET - 0.08 < stats["accept_W"].mean() < 0.99
    np.testing.assert_array_equal(state.tuning.H.root, root)
    np.testing.assert_array_equal(state.tuning.H.step, np.minimum(step, 3.0 / state.tuning.H.length[0]))


def test_all_that_is_learnt_lies_alike_in_memory():
    """Arrays with their axes in another order are another type to numba, and a compilation of minutes for the user."""
    for given in STRUCTURES.values():
        problem = gibbs.prepare(given, Gibbs(), SERIAL)
        state = gibbs.init(problem, KEY, {})
        assert all(array.flags.c_contiguous for side in state.tuning[:2] for array in side)
        assert all(array.flags.c_contiguous for side in problem.sides for array in side.data)
        workspaces = trajectories.make_side_workspaces(problem.sides, problem.priors)
        assert all(array.flags.c_contiguous for workspace in workspaces for part in workspace for array in part)


def test_unknown_hyperparameters_go_step_by_step():
    """Their priors' cells change from sweep to sweep, and trajectories with them."""
    scale = unknown("beta", "gamma", 2.0, 1.0)
    problem = gibbs.prepare(model(X, 2, PRIOR_W, inverse_gamma(1.5, scale), kind="exponential"), Gibbs(), SERIAL)
    assert gibbs.run(problem, gibbs.init(problem, KEY, {}), KEY, Block(0, 1, 0, 1, True)) is None
    _, draws = steps(problem)
    assert np.isfinite(draws["accept_W"][130:]).all()
    assert len(np.unique(draws["beta"])) == 170


def test_trajectories_can_be_left_out():
    problem = gibbs.prepare(STRUCTURES["plain"], Gibbs(trajectories="never"), SERIAL)
    _, draws = chain(problem, [])
    assert set(draws) == {"W", "H", "scale_move", "lp", "mean"}

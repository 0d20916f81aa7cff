"""Rows of negative binomial counts: the kernels that trajectories ask, against their naive twins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from nmf_zoo.inference.evidence import smc
from nmf_zoo.kernels.evidence.tempering import log_likelihood
from nmf_zoo.kernels.hmc import poisson_rows
from nmf_zoo.kernels.hmc.mass import climb
from nmf_zoo.kernels.overdispersed.particles import log_rising
from nmf_zoo.kernels.overdispersed.rows import DispersedRows
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.structure.likelihoods import negative_binomial
from tests.blocks_of_rows import NO_LAYOUT, from_blocks, in_blocks, rows_of, stride_of, workspace_for
from tests.naive.overdispersed import rows as naive
from tests.structures import gamma, model, unknown

KEY = seed_key(3)
N_ROWS, CELLS, RANK, WIDTH = 13, 9, 3, 8
RNG = np.random.default_rng(3)
OTHER, V = RNG.gamma(1.0, 1.0, (CELLS, RANK)), RNG.gamma(1.0, 1.0, (RANK, N_ROWS))
SEEN = RNG.random((N_ROWS, CELLS)) < 0.8
EXPOSURE, OFFSET = RNG.gamma(2.0, 0.5, (N_ROWS, CELLS)), RNG.gamma(1.0, 1.0, (N_ROWS, CELLS))
X = RNG.poisson(RNG.gamma(0.7, (OTHER @ V).T / 0.7)).astype(float)
SHAPE, RATE = RNG.gamma(2.0, 1.0, (RANK, N_ROWS)), RNG.gamma(4.0, 0.3, (RANK, N_ROWS))
SCALE, STEP = RNG.gamma(3.0, 0.3, (RANK, N_ROWS)), RNG.uniform(0.8, 1.8, N_ROWS)
ROOTS = np.tril(RNG.normal(0.0, 0.3, (N_ROWS, RANK, RANK))) + np.eye(RANK)
OF_ROWS, OF_CELLS = RNG.gamma(2.0, 1.0, N_ROWS), RNG.gamma(2.0, 1.0, CELLS)
FORMS = {
    "plain": (1.0, 0.0, 0.7, 1.0),
    "exposure, background": (EXPOSURE, OFFSET, OF_ROWS, 1.0),
    "mask": (np.where(SEEN, EXPOSURE, 0.0), 0.0, 1.0, OF_CELLS),
    "large alpha": (1.0, OFFSET, 1e13, 1.0),
}


def arrange(name):
    """The data of a form."""
    exposure, offset, of_rows, of_cells = FORMS[name]
    exposure = np.broadcast_to(exposure, X.shape)
    beside = in_blocks(np.broadcast_to(offset, X.shape).T, WIDTH, 0.0)
    alphas = in_blocks(np.broadcast_to(of_rows, (1, N_ROWS)), WIDTH, 1.0)[:, 0].copy(), np.full(CELLS, of_cells)
    x = np.where(exposure > 0.0, X, 0.0)
    return DispersedRows(in_blocks(x.T, WIDTH, 0.0), beside, NO_LAYOUT, in_blocks(exposure.T, WIDTH, 0.0), *alphas)


def naive_row(name, i):
    """x, u, offset, exposure and alpha of the cells of a row that are seen."""
    exposure, offset, of_rows, of_cells = FORMS[name]
    exposure = np.broadcast_to(exposure, X.shape)[i]
    offset = np.broadcast_to(offset, X.shape)[i]
    alpha = np.broadcast_to(of_rows, N_ROWS)[i] * np.broadcast_to(of_cells, CELLS)
    seen = exposure > 0.0
    return X[i, seen], OTHER[seen], offset[seen], exposure[seen], alpha[seen]


@pytest.mark.parametrize("name", FORMS)
def test_gradient_ratios_and_curvature(name):
    data, workspace, values = arrange(name), workspace_for(X, RANK, WIDTH), in_blocks(V, WIDTH, 1.0)
    slope, gradient = in_blocks(SCALE, WIDTH, 1.0), np.empty_like(values)
    bends, plain, gains = np.zeros((2, RANK, RANK, WIDTH)), np.zeros_like(values), np.zeros((2, WIDTH))
    for block in range(2):
        poisson_rows.gradient_of_counts(data, OTHER, block, 1.1 * values[block], workspace.before, gradient[block])
        poisson_rows.gradient_of_counts(data, OTHER, block, values[block], workspace.means, gradient[block])
        poisson_rows.add_log_ratios(data, block, workspace.means, workspace.before, gains[block])
        poisson_rows.add_curvature(data, OTHER, block, workspace.means, slope[block], bends[block])
        poisson_rows.add_plain_curvature(data, OTHER, block, workspace.means, plain[block])
    for i in range(N_ROWS):
        x, u, offset, exposure, alpha = naive_row(name, i)
        block, lane = divmod(i, WIDTH)
        expected = naive.slope(x, u, offset, V[:, i], exposure, alpha)
        np.testing.assert_allclose(gradient[block, :, lane], expected, rtol=1e-10, atol=1e-12)
        now, before = (exposure * (u @ (by * V[:, i]) + offset) for by in (1.0, 1.1))
        expected = naive.log_ratio(x, now, before, alpha)
        np.testing.assert_allclose(gains[block, lane], expected, rtol=1e-10, atol=1e-12)
        bend = naive.curvature(u, offset, V[:, i], exposure, alpha)
        np.testing.assert_allclose(plain[block, :, lane], np.diag(bend), rtol=1e-11)
        bend = np.tril(bend * np.outer(SCALE[:, i], SCALE[:, i]))
        np.testing.assert_allclose(bends[block, :, :, lane], bend, rtol=1e-11)


@pytest.mark.parametrize("roots", [ROOTS, None], ids=["mass of its own", "identity"])
@pytest.mark.parametrize("name", [name for name in FORMS if name != "large alpha"])
def test_trajectories(name, roots):
    data, workspace = arrange(name), workspace_for(X, RANK, WIDTH)
    rows, stride = rows_of(V, SHAPE, RATE, WIDTH), stride_of(SCALE, roots, STEP, 4, WIDTH)
    for block in range(2):
        poisson_rows.move_rows(data, OTHER, rows, stride, workspace, block, child(KEY, block))
    moved, chances = from_blocks(rows.values, N_ROWS), rows.chance.ravel()[:N_ROWS]
    for block in range(2):
        some, given = range(block * WIDTH, min((block + 1) * WIDTH, N_ROWS)), []
        for i in some:
            x, u, offset, exposure, alpha = naive_row(name, i)
            given.append((x, u, offset, SHAPE[:, i], RATE[:, i], exposure, alpha))
        strides = [(SCALE[:, i], np.eye(RANK) if roots is None else roots[i], STEP[i], 4) for i in some]
        expected, chance = naive.move_rows(V[:, some], given, strides, child(KEY, block), WIDTH)
        np.testing.assert_allclose(moved[:, some], expected, rtol=1e-9)
        np.testing.assert_allclose(chances[list(some)], chance, rtol=1e-8)
    assert np.any(moved != V)
    assert 0.1 < chances.mean() < 0.99


def test_the_naive_gradient_and_curvature():
    x, u, offset, exposure, alpha = naive_row("exposure, background", 2)
    free, v = RNG.normal(size=RANK), V[:, 2]
    row = (x, u, offset, SHAPE[:, 2], RATE[:, 2], SCALE[:, 2], exposure, alpha)
    np.testing.assert_allclose(
        naive.gradient(free, *row), approx_fprime(free, naive.log_density, 1e-7, *row), rtol=1e-4
    )
    at_mean = (exposure * (u @ v + offset), u, offset)
    bend = -approx_fprime(v, lambda own: naive.slope(*at_mean, own, exposure, alpha), 1e-7)
    np.testing.assert_allclose(naive.curvature(u, offset, v, exposure, alpha), bend, rtol=1e-5)


def test_a_row_of_zeros_keeps_its_slope():
    """A known zero has no mean: its slope is that of a small mean, and no NaN."""
    data, workspace, gradient = arrange("plain"), workspace_for(X, RANK, WIDTH), np.empty((RANK, WIDTH))
    other = OTHER.copy()
    other[4] = 0.0
    data.grid[:, 4] = 0.0
    poisson_rows.gradient_of_counts(data, other, 0, in_blocks(V, WIDTH, 1.0)[0], workspace.means, gradient)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", FORMS)
def test_an_em_step(name):
    data, workspace = arrange(name), workspace_for(X, RANK, WIDTH)
    values, shape, rate = (in_blocks(own, WIDTH, 1.0) for own in (V, SHAPE, RATE))
    for block in range(2):
        workspace.v[:] = values[block]
        poisson_rows.gradient_of_counts(data, OTHER, block, workspace.v, workspace.means, workspace.gradient)
        climb(data, OTHER, block, workspace, shape[block], rate[block])
        for i in range(block * WIDTH, min((block + 1) * WIDTH, N_ROWS)):
            x, u, offset, exposure, alpha = naive_row(name, i)
            expected = naive.climb(V[:, i], x, u, offset, SHAPE[:, i], RATE[:, i], exposure, alpha)
            np.testing.assert_allclose(workspace.v[:, i % WIDTH], expected, rtol=1e-9)


# -- particles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [(1, 1), (N_ROWS, 1), (1, CELLS)], ids=["all", "features", "samples"])
@pytest.mark.parametrize("is_masked", [True, False])
def test_likelihood_of_a_particle(ties, is_masked):
    cells = {"mask": SEEN} if is_masked else {"exposure": EXPOSURE, "background": OFFSET}
    unknown_alpha = unknown("a", "gamma", 2.0, 1.0, variable_shape=ties, shape=ties)
    x = np.where(SEEN, 30.0 * X, 0.0) if is_masked else X
    structure = model(x, RANK, gamma(0.8, 1.3), gamma(1.7, 0.6), kind="negative binomial", alpha=unknown_alpha, **cells)
    problem = smc.prepare(structure)
    scratch, alpha = smc.make_scratch(problem, smc.first_paces(problem)), RNG.gamma(2.0, 1.0, ties)
    scratch.alpha[:] = alpha.ravel()
    found = problem.constant + log_likelihood(smc.target_at(problem, 0.3), V.T.copy(), OTHER, scratch)
    np.testing.assert_allclose(found, structure.log_likelihood(V.T, OTHER.T, {"a": alpha}), rtol=1e-12)


@pytest.mark.parametrize("alpha", [1e-9, 0.3, 7.0, 1e6, 1e15])
def test_rising_factors(alpha):
    for x in (1.0, 2.0, 16.0, 17.0, 300.0, 1e6):
        expected = negative_binomial.log_rising(np.array(alpha), np.array(x))
        np.testing.assert_allclose(log_rising(alpha, x), expected, rtol=1e-9, atol=1e-15 * x)

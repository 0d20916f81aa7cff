"""Kernels of sequential Monte Carlo against their slow twins."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from nmf_zoo.inference.evidence import smc
from nmf_zoo.kernels.evidence.tempering import (
    draw_from_prior,
    log_likelihood,
    move_along_orbit,
    move_chains,
    slice_log_scale,
)
from nmf_zoo.kernels.hmc.mass import set_strides
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import child, seed_key, uniform
from nmf_zoo.kernels.random.resampling import resample
from tests.blocks_of_rows import from_blocks, in_blocks, row_counts, rows_of, stride_of, workspace_for
from tests.naive.evidence import tempering as naive_smc
from tests.structures import beside, gamma, half_normal, model, weight_of

KEY = seed_key(3)
N_ROWS, CELLS, RANK, WIDTH = 13, 9, 3, 8
RNG = np.random.default_rng(3)
X = RNG.poisson(2.0, (N_ROWS, CELLS)) * (RNG.random((N_ROWS, CELLS)) < 0.7).astype(float)
X[4] = 0.0
OTHER = RNG.gamma(1.0, 1.0, (CELLS, RANK))
SHAPE, RATE, PRIOR_RATE = (RNG.gamma(2.0, 1.0, (RANK, N_ROWS)) for _ in range(3))
OFFSET = RNG.gamma(1.0, 1.0, (N_ROWS, CELLS))
MASK = RNG.random((N_ROWS, CELLS)) < 0.8
W, H = RNG.gamma(1.0, 1.0, (N_ROWS, RANK)), RNG.gamma(1.0, 1.0, (RANK, CELLS))
EXPOSURE = RNG.gamma(3.0, 0.5, (N_ROWS, CELLS))
KNOWN = np.where(np.arange(N_ROWS)[:, None] % 3, W, 0.0)


@pytest.mark.parametrize("spread", [0.0, 1.0, 400.0])
def test_resampling(spread):
    log_weights = spread * RNG.normal(size=50) - 1e4
    for n_ancestors in (1, 10, 50, 77):
        ancestors = np.empty(n_ancestors, np.int64)
        resample(ancestors, log_weights, KEY)
        expected = naive_smc.resample(log_weights, n_ancestors, uniform(KEY, 0))
        np.testing.assert_array_equal(ancestors, expected)


def test_particles_of_weight_zero_have_no_descendants():
    log_weights = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    ancestors = np.empty(40, np.int64)
    resample(ancestors, log_weights, KEY)
    np.testing.assert_array_equal(np.bincount(ancestors, minlength=5), [0, 20, 0, 20, 0])


@pytest.mark.parametrize(("dense", "has_offset"), list(itertools.product((True, False), (True, False))))
def test_strides(dense, has_offset):
    offset = OFFSET if has_offset else None
    data, workspace = row_counts(X, offset, WIDTH, dense), workspace_for(X, RANK, WIDTH)
    rows = rows_of(np.ones((RANK, N_ROWS)), SHAPE, RATE, WIDTH)
    stride = stride_of(np.ones((RANK, N_ROWS)), np.zeros((N_ROWS, RANK, RANK)), np.ones(N_ROWS), 4, WIDTH)
    stride.root[:] = 7.0
    set_strides(data, OTHER, rows, stride, workspace, in_blocks(PRIOR_RATE, WIDTH, 1.0))
    scales = from_blocks(stride.scale, N_ROWS)
    for i in range(N_ROWS):
        beside = np.zeros(CELLS) if offset is None else offset[i]
        scale, root = naive_smc.stride(X[i], OTHER, beside, SHAPE[:, i], RATE[:, i], PRIOR_RATE[:, i])
        np.testing.assert_allclose(scales[:, i], scale, rtol=1e-12)
        np.testing.assert_allclose(stride.root[i // WIDTH, :, :, i % WIDTH], root, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("is_half_normal", [True, False])
@pytest.mark.parametrize("known", [None, 0, 2])
def test_strides_under_half_normal_priors_and_beside_known_components(known, is_half_normal):
    data, workspace = row_counts(X, OFFSET, WIDTH, True), workspace_for(X, RANK, WIDTH)
    curve, values = np.full((RANK, N_ROWS), 0.0), np.full((RANK, N_ROWS), np.nan)
    if is_half_normal:
        curve = RNG.gamma(2.0, 1.0, (RANK, N_ROWS))
    if known is not None:
        values[known] = W[:, known]
    rows = rows_of(
        np.nan_to_num(values, nan=3.0), SHAPE, RATE, WIDTH, curve if is_half_normal else None, np.isnan(values[:, 0])
    )
    stride = stride_of(np.ones((RANK, N_ROWS)), np.zeros((N_ROWS, RANK, RANK)), np.ones(N_ROWS), 4, WIDTH)
    set_strides(data, OTHER, rows, stride, workspace, in_blocks(PRIOR_RATE, WIDTH, 1.0))
    scales = from_blocks(stride.scale, N_ROWS)
    for i in range(N_ROWS):
        given = SHAPE[:, i], RATE[:, i], PRIOR_RATE[:, i], curve[:, i], values[:, i]
        scale, root = naive_smc.stride(X[i], OTHER, OFFSET[i], *given)
        np.testing.assert_allclose(scales[:, i], scale, rtol=1e-12)
        np.testing.assert_allclose(stride.root[i // WIDTH, :, :, i % WIDTH], root, rtol=1e-10, atol=1e-12)


def test_strides_do_not_depend_on_the_rows():
    data, workspace = row_counts(X, OFFSET, WIDTH, True), workspace_for(X, RANK, WIDTH)
    found = []
    for values in (1e-5, 30.0):
        rows = rows_of(np.full((RANK, N_ROWS), values), SHAPE, RATE, WIDTH)
        stride = stride_of(np.full((RANK, N_ROWS), values), np.zeros((N_ROWS, RANK, RANK)), np.ones(N_ROWS), 4, WIDTH)
        set_strides(data, OTHER, rows, stride, workspace, in_blocks(PRIOR_RATE, WIDTH, 1.0))
        found.append(stride)
    np.testing.assert_array_equal(found[0].scale, found[1].scale)
    np.testing.assert_array_equal(found[0].root, found[1].root)


def problem_of(prior_w=None, **cells):
    x = np.where(MASK, X, 0.0) if "mask" in cells else X
    return smc.prepare(model(x, RANK, gamma(0.8, 1.3) if prior_w is None else prior_w, gamma(1.7, 0.6), **cells))


def scratch_of(problem):
    return smc.make_scratch(problem, smc.first_paces(problem))


@pytest.mark.parametrize(
    "cells", [{}, {"mask": MASK, "exposure": EXPOSURE, "background": OFFSET}, {"exposure": EXPOSURE[:1]}]
)
def test_likelihood(cells):
    problem = problem_of(**cells)
    target, scratch = (
        smc.target_at(problem, 0.3),
        scratch_of(problem),
    )
    found = problem.constant + log_likelihood(target, W, np.ascontiguousarray(H.T), scratch)
    expected = naive_smc.log_likelihood(
        problem.structure.data.values, weight_of(problem.structure), cells.get("background", 0.0), W, H
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_mean_of_zero_forbids_a_count():
    known = np.full((N_ROWS, RANK), 0.5)
    known[0] = 0.0
    problem = problem_of(prior_w=known)
    target, scratch = (
        smc.target_at(problem, 1.0),
        scratch_of(problem),
    )
    assert log_likelihood(target, known, np.ascontiguousarray(H.T), scratch) == -np.inf


def test_the_prior_has_its_moments():
    problem = problem_of()
    population = smc.empty_population(problem, 4000)
    scratch = scratch_of(problem)
    draw_from_prior(smc.target_at(problem, 0.0), population, scratch, 0, 4000, KEY)
    for draws, shape, rate in ((population.W, 0.8, 1.3), (population.Ht, 1.7, 0.6)):
        np.testing.assert_allclose(draws.mean(), shape / rate, rtol=0.02)
        np.testing.assert_allclose(draws.var(), shape / rate**2, rtol=0.05)


def test_orbit_moves_keep_the_likelihood():
    problem = problem_of(mask=MASK)
    scratch = scratch_of(problem)
    scratch.W[:], scratch.Ht[:] = W, H.T
    move_along_orbit(smc.target_at(problem, 0.3), scratch, KEY)
    assert np.abs(scratch.W - W).min() > 0
    np.testing.assert_allclose(scratch.W @ scratch.Ht.T, W @ H, rtol=1e-9)


@pytest.mark.parametrize(("tilt", "sums"), [(2.0, (1.3, 0.4, 0.7, 2.1)), (-1.0, (0.0, 3.0, 0.5, 0.0))])
def test_slice_draws_of_a_scale_leave_its_law(tilt, sums):
    """Of draws from the law, by inversion on a fine grid, the moved ones have the same moments."""
    t = np.linspace(-20.0, 20.0, 400_001)
    a, b, A, B = sums
    with np.errstate(over="ignore"):
        log_density = tilt * t - (a * np.exp(t) + b * np.exp(-t) + A * np.exp(2 * t) + B * np.exp(-2 * t)) / 2
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    start = np.interp(np.random.default_rng(4).random(4000), mass / mass[-1], t)
    moved = []
    for i, s in enumerate(start):  # from t = s the law of what is added has its sums scaled
        own = a * np.exp(s), b * np.exp(-s), A * np.exp(2 * s), B * np.exp(-2 * s)
        moved.append(s + slice_log_scale(tilt, own, child(KEY, i)))
    assert np.mean(np.array(moved) != start) > 0.99
    assert stats.kstest(moved, lambda at: np.interp(at, t, mass / mass[-1])).pvalue > 1e-3
    shifted = np.array(moved) + 0.1 * np.std(moved)
    assert stats.kstest(shifted, lambda at: np.interp(at, t, mass / mass[-1])).pvalue < 1e-4


@pytest.mark.parametrize("sums", [(0.0, 0.0, 0.0, 0.0), (np.inf, 1.0, 0.0, 0.0)])
def test_a_scale_without_a_law_stays(sums):
    assert slice_log_scale(1.0, sums, KEY) == 0.0


def test_known_components_stay_and_the_others_move():
    structure = model(X, RANK, half_normal(1.5), gamma(1.7, 0.6))
    problem = smc.prepare(dataclasses.replace(structure, W=beside(structure.W, KNOWN, (1, RANK))))
    before, after = (smc.empty_population(problem, 12) for _ in range(2))
    target = smc.target_at(problem, 0.3)
    draw_from_prior(target, before, scratch_of(problem), 0, 12, KEY)
    move_chains(target, before, np.arange(4), after, scratch_of(problem), np.array([0, 4]), KEY)
    for population in (before, after):
        np.testing.assert_array_equal(population.W[:, :, 0], np.tile(np.maximum(KNOWN[:, 0], TINY), (12, 1)))
        assert len(np.unique(population.W[:, 0, 1])) == 12
    whole = smc.variables(problem, after, np.arange(12))["W"]
    np.testing.assert_array_equal(whole[:, :, 0], np.tile(KNOWN[:, 0], (12, 1)))


def test_every_state_of_a_chain_is_a_particle():
    """Chains in one piece or in two, and states whose likelihood is what is stored beside them."""
    problem = problem_of(background=OFFSET)
    before, after, again = (smc.empty_population(problem, 12) for _ in range(3))
    target, ancestors = smc.target_at(problem, 0.3), np.array([1, 1, 7, 11])
    draw_from_prior(target, before, scratch_of(problem), 0, 12, child(KEY, 1))
    move_chains(target, before, ancestors, after, scratch_of(problem), np.array([0, 4]), KEY)
    for part in ([0, 1], [1, 4]):
        move_chains(target, before, ancestors, again, scratch_of(problem), np.array(part), KEY)
    for one, other in zip(after, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(np.unique(after.log_likelihood)) == 12
    for i in range(12):
        expected = naive_smc.log_likelihood(X, np.ones_like(X), OFFSET, after.W[i], after.Ht[i].T)
        np.testing.assert_allclose(problem.constant + after.log_likelihood[i], expected, rtol=1e-12)

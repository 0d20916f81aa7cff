"""What holds of every Gibbs sweep: counts are conserved, factors stay positive and finite, labels don't matter."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells
from tests.structures import gamma, model, unknown

SWEEPS = 4
HYPER_SHAPE = unknown("a", "gamma", 2.0, 2.0)
SHAPES = st.sampled_from([1e-3, 0.02, 0.3, 1.0, 7.0, 1e4])
RATES = st.sampled_from([1e-6, 0.1, 1.0, 1e3])
COUNTS = st.sampled_from([0, 0, 0, 1, 2, 3, 7, 40, 1000, 2**31, 10**12])


@st.composite
def structures(draw):
    """Small models of every kind: empty rows and columns, masks, backgrounds, huge counts, extreme priors."""
    n_features, n_samples, rank = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    shape = n_features, n_samples
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = np.array(draw(st.lists(COUNTS, min_size=x_size(shape), max_size=x_size(shape)))).reshape(shape).astype(float)
    mask = rng.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.8])) if draw(st.booleans()) else None
    data = None
    if draw(st.booleans()):
        rows, cols = np.nonzero(x if mask is None else mask)
        data = Cells(rows=rows, cols=cols, values=x[rows, cols], shape=shape, is_complete=mask is None)
    return model(
        x,
        rank,
        gamma(HYPER_SHAPE if draw(st.booleans()) else draw(SHAPES), draw(RATES)),
        gamma(draw(SHAPES), mean=draw(RATES)),
        mask=mask,
        data=data,
        exposure=rng.gamma(2.0, 1.0, shape) if draw(st.booleans()) else None,
        background=rng.gamma(1.0, 1.0, shape) if draw(st.booleans()) else None,
    )


def x_size(shape):
    return shape[0] * shape[1]


def sweeps(structure, seed=0, start=None, moves=gibbs.MOVES):
    """The states after a few sweeps, one by one."""
    problem, key = gibbs.prepare(structure, gibbs.Gibbs(moves=moves), SERIAL), seed_key(seed)
    state = gibbs.init(problem, child(key, 0), start or {})
    for sweep in range(SWEEPS):
        state, info = gibbs.step(problem, state, child(key, 1, sweep))
        yield problem, state, info


def counts_by_side(structure):
    """Observed counts summed over samples and over features."""
    rows, cols, x = structure.observed_cells()
    n_features, n_samples = structure.shape
    return np.bincount(rows, x, minlength=n_features), np.bincount(cols, x, minlength=n_samples)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(structures(), st.integers(0, 100))
def test_allocations_sum_to_the_counts(structure, seed):
    by_feature, by_sample = counts_by_side(structure)
    for _, state, _ in sweeps(structure, seed):
        assert state.of_features.min() >= 0
        assert state.of_samples.min() >= 0
        np.testing.assert_array_equal(state.of_features.sum(axis=0), state.of_samples.sum(axis=0))
        if structure.likelihood.background is None:
            np.testing.assert_array_equal(state.of_features.sum(axis=1), by_feature)
            np.testing.assert_array_equal(state.of_samples.sum(axis=1), by_sample)
        else:
            assert np.all(state.of_features.sum(axis=1) <= by_feature)
            assert np.all(state.of_samples.sum(axis=1) <= by_sample)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(structures(), st.integers(0, 100))
def test_factors_stay_positive_and_finite(structure, seed):
    for problem, state, info in sweeps(structure, seed):
        for array in (state.W, state.Ht, *state.values.values()):
            assert np.all(array > 0)
            assert np.all(np.isfinite(array))
        assert np.isfinite(info.scale_move)
        values, stats = gibbs.draw(problem, state, seed_key(seed))
        assert set(values) == {"W", "H", *structure.unknowns}
        assert np.isfinite(stats["lp"])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(structures(), st.integers(0, 100))
def test_moves_leave_the_means_alone(structure, seed):
    for _, state, _ in sweeps(structure, seed):
        before, largest = state.W @ state.Ht.T, state.W.max() + state.Ht.max()
        priors = gibbs.prior_cells(structure, state.values)
        gibbs.move_along_orbit(gibbs.MOVES, state, priors, seed_key(seed))
        # a factor's cell may rest on the floor before or after
        floor = 4 * TINY * (state.W.max() + state.Ht.max() + largest)
        np.testing.assert_allclose(state.W @ state.Ht.T, before, rtol=1e-9, atol=floor)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(structures(), st.randoms(use_true_random=False))
def test_any_order_of_the_start_s_components_runs(structure, random):
    order = random.sample(range(structure.rank), structure.rank)
    for problem, state, _ in sweeps(structure):
        permuted = {"W": state.W[:, order], "H": state.Ht.T[order]}
        lp = problem.log_joint(state.W, state.Ht, {**state.values})
        again = gibbs.init(problem, seed_key(0), {**permuted, **state.values})
        rounding = 1e-8 + 1e-13 * structure.data.observed_values.sum()  # large terms cancel in the log joint
        if state.W.min() > 1e-9 * state.W.max() and state.Ht.min() > 1e-9 * state.Ht.max():  # else the start is floored
            np.testing.assert_allclose(problem.log_joint(again.W, again.Ht, again.values), lp, rtol=1e-9, atol=rounding)
        again, _ = gibbs.step(problem, again, seed_key(1))
        assert np.all(np.isfinite(again.W))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(structures(), st.integers(0, 100))
def test_the_same_seed_gives_the_same_draws(structure, seed):
    for (_, one, _), (_, other, _) in zip(sweeps(structure, seed), sweeps(structure, seed), strict=True):
        np.testing.assert_array_equal(one.W, other.W)
        np.testing.assert_array_equal(one.Ht, other.Ht)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(structures())
def test_zeros_in_the_start_are_no_trap(structure):
    start = {"W": np.zeros(structure.W.shape), "H": np.ones(structure.H.shape)}
    start["W"][0] = 1.0
    for _, state, _ in sweeps(structure, start=start):
        assert np.all(state.W > 0)

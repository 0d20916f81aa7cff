"""Gibbs kernels against their own Python (``.py_func``), naive twins, and the densities they draw from."""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pytest

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.shared.layout import by_count, compress, weigh
from nmf_zoo.kernels.counts import allocation
from nmf_zoo.kernels.counts import gibbs as kernels
from nmf_zoo.kernels.random import draws
from nmf_zoo.kernels.random.keyed_rng import child, fold, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Cells
from tests.naive.counts import gibbs as naive_gibbs
from tests.structures import gamma, model, unknown

KEY = seed_key(7)
RNG = np.random.default_rng(7)
F, K, N = 5, 3, 4
SIZES = {"tall": (F, N), "wide": (N, F)}


def in_python(kernel):
    """``.py_func`` with a ``fold`` for Python, where a compiled one returns uint64 as an int that the next refuses."""

    def python_fold(key, word):
        return np.uint64(fold(np.uint64(key), word))

    return FunctionType(kernel.py_func.__code__, {**kernel.py_func.__globals__, "fold": python_fold})


def problem_of(shape, background=True, mask=True, listed=False):
    """(structure, W, H, x, mask, exposure, background) with everything present."""
    x = RNG.poisson(3.0, shape).astype(float)
    seen = RNG.random(shape) < 0.7 if mask else np.ones(shape, dtype=bool)
    exposure, back = RNG.gamma(2.0, 0.5, shape), RNG.gamma(1.0, 1.0, shape) if background else np.zeros(shape)
    x = np.where(seen, x, 0.0)
    data = None
    if listed:
        rows, cols = np.nonzero(seen)
        data = Cells(rows=rows, cols=cols, values=x[rows, cols], shape=shape, is_complete=False)
    prior = (
        gamma(RNG.gamma(2.0, 1.0, (shape[0], K)), 1.3),
        gamma(RNG.gamma(2.0, 1.0, (K, 1)), RNG.gamma(2.0, 1.0, (1, shape[1]))),
    )
    structure = model(
        x, K, *prior, mask=seen if mask else None, exposure=exposure, background=back if background else None, data=data
    )
    W, H = RNG.gamma(1.0, 1.0, (shape[0], K)), RNG.gamma(1.0, 1.0, (K, shape[1]))
    return structure, W, H, x, seen, exposure, back


def allocate_all(kernel, layout, W, Ht, make_scratch=kernels.make_cell_scratch):
    major, minor = layout.sides(W, Ht)
    of_major, of_minor = np.full_like(major, np.nan), np.zeros_like(minor)
    scratch = make_scratch(layout, W.shape[1])
    failures = sum(kernel(layout, major, minor, c, of_major, of_minor, scratch, KEY) for c in range(layout.n_chunks))
    return *layout.sides(of_major, of_minor), failures


class Allocation(NamedTuple):
    """A kernel and how its scratch is made."""

    allocate_sources: Any
    make_scratch: Any


def make_lane_scratch(layout, rank):
    return allocation.make_scratch(layout, rank, by_count(layout))


BY_CELL = Allocation(kernels.allocate_cell_by_cell, kernels.make_cell_scratch)
IN_LANES = Allocation(allocation.allocate_sources, make_lane_scratch)
ALLOCATIONS = pytest.mark.parametrize("module", [BY_CELL, IN_LANES], ids=["by cell", "in lanes"])


@ALLOCATIONS
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_allocate_sources(size, background, module):
    structure, W, H, x, _, exposure, back = problem_of(SIZES[size], background)
    layout, Ht = compress(structure), np.ascontiguousarray(H.T)
    of_W, of_H, failures = allocate_all(module.allocate_sources, layout, W, Ht, module.make_scratch)
    expected = naive_gibbs.allocate_sources(x, W, H, back / exposure, KEY, layout.by_features)
    assert failures == 0
    np.testing.assert_array_equal(of_W, expected[0])
    np.testing.assert_array_equal(of_H, expected[1])


@ALLOCATIONS
def test_allocate_sources_equals_its_python(module):
    structure, W, H, *_ = problem_of((F, N))
    layout, Ht = compress(structure), np.ascontiguousarray(H.T)
    compiled = allocate_all(module.allocate_sources, layout, W, Ht, module.make_scratch)
    plain = allocate_all(in_python(module.allocate_sources), layout, W, Ht, module.make_scratch)
    for left, right in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("mean", [3.0, 400.0])
@pytest.mark.parametrize("background", [None, 2.0])
@pytest.mark.parametrize("rank", [1, 8, 16])
def test_allocation_in_lanes_equals_that_by_cell(rank, background, mean):
    """Small and large counts, components that fill the lanes or do not, weights of 0."""
    x, W, Ht = RNG.poisson(mean, (13, 9)), RNG.gamma(1.0, size=(13, rank)), RNG.gamma(1.0, size=(9, rank))
    W[0, :-1], Ht[1, 1:] = 0.0, 0.0
    layout = compress(model(x, rank, gamma(1.0, 1.0), gamma(1.0, 1.0), background=background))
    found, expected = (
        allocate_all(module.allocate_sources, layout, W, Ht, module.make_scratch) for module in (IN_LANES, BY_CELL)
    )
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(left, right)


@ALLOCATIONS
def test_allocate_sources_counts_failures(module):
    structure, W, H, *_ = problem_of((F, N), background=False, mask=False)
    layout = compress(structure)
    W[1] = 0.0
    failures = allocate_all(module.allocate_sources, layout, W, np.ascontiguousarray(H.T), module.make_scratch)[2]
    assert failures == np.count_nonzero(structure.data.values[1])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("listed", [False, True])
def test_log_joint(size, listed):
    """The samplers' lp is the structure's log joint, and its likelihood is SciPy's."""
    structure, W, H, x, mask, exposure, back = problem_of(SIZES[size], listed=listed)
    problem = gibbs.prepare(structure, gibbs.Gibbs(), SERIAL)
    Ht = np.ascontiguousarray(H.T)
    expected = naive_gibbs.log_likelihood(x, mask, exposure * (W @ H) + back)
    np.testing.assert_allclose(problem.log_joint.log_likelihood(W, Ht), expected, rtol=1e-10)
    values = {"W": W, "H": H}
    np.testing.assert_allclose(problem.log_joint(W, Ht, values), structure.log_joint(values), rtol=1e-10)


def test_log_joint_with_hyperparameters():
    shape, mean = unknown("a", "gamma", 3.0, 2.0), unknown("m", "half_normal", 2.0, variable_shape=(K,), shape=(K, 1))
    structure = model(RNG.poisson(2.0, (F, N)), K, gamma(shape, 1.5), gamma(shape, mean=mean))
    W, H = RNG.gamma(1.0, 1.0, (F, K)), RNG.gamma(1.0, 1.0, (K, N))
    values = {"W": W, "H": H, "a": np.array(0.7), "m": RNG.gamma(1.0, 1.0, K)}
    problem = gibbs.prepare(structure, gibbs.Gibbs(), SERIAL)
    lp = problem.log_joint(W, np.ascontiguousarray(H.T), values)
    np.testing.assert_allclose(lp, structure.log_joint(values), rtol=1e-10)


@pytest.mark.parametrize("least", [1e-3, 0.1, 0.5, 3.0])
def test_draw_factor(least):
    shape, rate = least + RNG.gamma(1.0, least, (F, K)), RNG.gamma(2.0, 1.0, (F, K))
    out, plain = np.empty((F, K)), np.empty((F, K))
    draws.draw_factor(out, shape, rate, 0, F, KEY)
    in_python(draws.draw_factor)(plain, shape, rate, 0, F, KEY)
    np.testing.assert_allclose(out, plain, rtol=1e-12)
    np.testing.assert_allclose(out, np.maximum(naive_gibbs.draw_factor(shape, rate, KEY), draws.TINY), rtol=1e-10)


def test_draw_factor_by_parts():
    shape, rate = RNG.gamma(1.0, 1.0, (F, K)), RNG.gamma(2.0, 1.0, (F, K))
    whole, parts = np.empty((F, K)), np.empty((F, K))
    draws.draw_factor(whole, shape, rate, 0, F, KEY)
    for first, last in ((3, F), (0, 3)):
        draws.draw_factor(parts, shape, rate, first, last, KEY)
    np.testing.assert_array_equal(parts, whole)


def priors():
    """Components as rows: shape and rate of W (K, F) and of H (K, N)."""
    return tuple(RNG.gamma(2.0, 0.7, (K, length)) for length in (F, F, N, N))


def test_shear_density():
    """What the slice draw uses is the change of the log prior."""
    W, H = RNG.gamma(1.0, 1.0, (K, F)), RNG.gamma(1.0, 1.0, (K, N))
    shape_w, rate_w, shape_h, rate_h = arrays = priors()
    k, j = 0, 2
    slope = np.sum(rate_h[j] * H[k]) - np.sum(rate_w[k] * W[j])
    ratios_w, ratios_h = np.empty(F), np.empty(N)
    lower, upper = -kernels.divide_rows(W[j], W[k], ratios_w), kernels.divide_rows(H[k], H[j], ratios_h)
    np.testing.assert_allclose(lower, -np.min(W[k] / W[j]), rtol=1e-14)
    np.testing.assert_allclose(upper, np.min(H[j] / H[k]), rtol=1e-14)
    start = naive_gibbs.log_shear_density(0.0, k, j, W, H, *arrays)
    for step in np.linspace(lower, upper, 9)[1:-1]:
        change = kernels._log_growth(ratios_w, shape_w[k], step) + kernels._log_growth(ratios_h, shape_h[j], -step)
        expected = naive_gibbs.log_shear_density(step, k, j, W, H, *arrays) - start
        np.testing.assert_allclose(change + slope * step, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shapes", [[1.0], [0.3], [0.3, 2.0], [1.0, 0.3, 0.3, 4.0]])
def test_log_growth(shapes):
    """Runs of one shape, shapes of 1, and terms that would leave float64's range when multiplied."""
    shape = np.resize(shapes, 60)
    ratios = 10.0 ** RNG.uniform(-200, 150, 60)
    expected = np.sum((shape - 1) * np.log1p(0.3 * ratios))
    np.testing.assert_allclose(kernels._log_growth(ratios, shape, 0.3), expected, rtol=1e-12)


def test_shears_keep_the_product():
    W, H = RNG.gamma(1.0, 1.0, (K, F)), RNG.gamma(1.0, 1.0, (K, N))
    moved_W, moved_H = W.copy(), H.copy()
    arrays = priors()
    kernels.move_shears(moved_W, moved_H, *arrays, KEY)
    np.testing.assert_allclose(moved_W.T @ moved_H, W.T @ H, rtol=1e-12)
    assert np.all(moved_W > 0)
    assert np.all(moved_H > 0)
    assert not np.allclose(moved_W, W)
    in_python(kernels.move_shears)(W, H, *arrays, KEY)
    np.testing.assert_allclose(W, moved_W, rtol=1e-9)


@pytest.mark.parametrize("shape", [1.0, 0.3])
def test_shears_with_what_rows_have_in_common(shape):
    """Shapes and rates of whole rows: the same moves as cell by cell, of which one is different by a last digit."""
    W, H = RNG.gamma(1.0, 1.0, (K, F)), RNG.gamma(1.0, 1.0, (K, N))
    arrays = [np.full((K, length), value) for length, value in ((F, shape), (F, 0.7), (N, shape), (N, 1.3))]
    other = [array * np.where(np.arange(array.size).reshape(array.shape) % 2, 1.0, 1.0 + 1e-13) for array in arrays]
    results = []
    for priors_of in (arrays, other):
        results.append((W.copy(), H.copy()))
        kernels.move_shears(*results[-1], *priors_of, KEY)
    np.testing.assert_array_equal(kernels._common(arrays[0]), np.full(K, shape))
    assert np.all(np.isnan(kernels._common(other[0])))
    for left, right in zip(*results, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9)


def test_cells_by_count():
    x = RNG.poisson(2.0, (40, 30))
    layout = compress(model(x, 2, gamma(1.0, 1.0), gamma(1.0, 1.0)))
    order = by_count(layout)
    for i in range(40):
        row = slice(layout.indptr[i], layout.indptr[i + 1])
        np.testing.assert_array_equal(np.sort(order[row]), np.arange(row.stop - row.start))
        np.testing.assert_array_equal(layout.values[row][order[row]], np.sort(layout.values[row]))


def test_scale_density(monkeypatch):
    """The law asked of the generalised inverse Gaussian is the prior along the orbit."""
    structure, W, H, *_ = problem_of((F, N))
    asked = {}

    def record(out, p, a, b, key):
        asked.update(p=p, a=a, b=b)
        out[:] = 2.0

    monkeypatch.setattr(gibbs, "draw_scales", record)
    problem = gibbs.prepare(structure, gibbs.Gibbs(moves="scale"), SERIAL)
    state = gibbs.init(problem, KEY, {"W": W, "H": H})
    gibbs.move_along_orbit(("scale",), state, problem.priors, KEY)
    np.testing.assert_array_equal(state.W, 2 * W)
    np.testing.assert_array_equal(state.Ht.T, H / 2)
    arrays = [np.broadcast_to(a, s).T for a, s in zip(structure.W.prior.shape_and_rate({}), [(F, K)] * 2, strict=True)]
    arrays += [np.broadcast_to(a, (K, N)) for a in structure.H.prior.shape_and_rate({})]
    t = np.linspace(-2, 2, 9)
    for k in range(K):
        expected = np.array([naive_gibbs.log_scale_density(one, k, W.T, H, *arrays) for one in t])
        found = (
            asked["p"][k] * t - (asked["a"][k] * np.exp(t) + asked["b"][k] * np.exp(-t)) / 2
        )  # of log c: one more power
        np.testing.assert_allclose(found - found[4], expected - expected[4], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_weights(size):
    """Denominators against sums over the dense mask * exposure, for every way they are stored."""
    structure, W, H, x, mask, exposure, _ = problem_of(SIZES[size])
    listed = problem_of(SIZES[size], listed=True)
    columns, rows = exposure[:1], exposure[:, :1]
    plain = (
        {"exposure": columns},
        {"exposure": rows},
        {"exposure": exposure},
        {"exposure": exposure[0]},
        {"exposure": exposure[0, 0]},
        {},
    )
    cases = [(structure, mask * exposure), (listed[0], listed[4] * listed[5])]
    cases += [
        (model(x, K, gamma(1.0, 1.0), gamma(1.0, 1.0), **o), np.broadcast_to(o.get("exposure", 1.0), x.shape))
        for o in plain
    ]
    for one, weight in cases:
        weights = weigh(one)
        np.testing.assert_allclose(np.broadcast_to(weights.over_samples(H.T), W.shape), weight @ H.T, rtol=1e-12)
        np.testing.assert_allclose(np.broadcast_to(weights.over_features(W), H.T.shape), weight.T @ W, rtol=1e-12)
        np.testing.assert_allclose(weights.total(W, H.T), np.sum(weight * (W @ H)), rtol=1e-12)


def test_one_sweep_equals_the_algorithm_written_out():
    """A whole sweep without moves, from the same keys."""
    structure, W, H, x, mask, exposure, back = problem_of((F, N))
    problem = gibbs.prepare(structure, gibbs.Gibbs(moves=()), SERIAL)
    state = gibbs.init(problem, KEY, {"W": W, "H": H})
    state, _ = gibbs.step(problem, state, KEY)
    of_W, of_H = naive_gibbs.allocate_sources(x, W, H, back / exposure, child(KEY, gibbs.SOURCES), by_features=True)
    weight = mask * exposure
    shape_w, rate_w = (np.broadcast_to(a, (F, K)) for a in structure.W.prior.shape_and_rate({}))
    W = naive_gibbs.draw_factor(shape_w + of_W, rate_w + weight @ H.T, child(KEY, gibbs.WEIGHTS))
    shape_h, rate_h = (np.broadcast_to(a, (K, N)).T for a in structure.H.prior.shape_and_rate({}))
    Ht = naive_gibbs.draw_factor(shape_h + of_H, rate_h + weight.T @ W, child(KEY, gibbs.ACTIVATIONS))
    np.testing.assert_allclose(state.W, W, rtol=1e-10)
    np.testing.assert_allclose(state.Ht, Ht, rtol=1e-10)

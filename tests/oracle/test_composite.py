"""The composite Gibbs kernels against complex amplitudes, cell by cell, and against the structure's own density."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
from scipy import integrate

from nmf_zoo.inference.counts.gibbs import Gibbs
from nmf_zoo.inference.powers import gibbs
from nmf_zoo.inference.shared.factor_view import two_sides
from nmf_zoo.kernels.counts.gibbs import divide_rows, draw_shear_step
from nmf_zoo.kernels.powers import composite
from nmf_zoo.kernels.powers.composite import LEAST, MOST, PowerFactors, apply_scales, draw_inverse_gamma, draw_scales
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Cells
from tests.naive.powers import composite as naive
from tests.statistical.gates import check_means
from tests.structures import inverse_gamma, model

KEY = seed_key(6)
ALONE = Gibbs(trajectories="never")
power_model = partial(model, kind="exponential")
RNG = np.random.default_rng(6)
F, N, K = 11, 7, 3
X = RNG.exponential(RNG.gamma(2.0, size=(F, K)) @ RNG.gamma(2.0, size=(K, N)))
X[2, 3] = 0.0
W, H = RNG.gamma(2.0, size=(F, K)), RNG.gamma(2.0, size=(K, N))
MASK = RNG.random(X.shape) < 0.7
PRIORS = inverse_gamma(1.3, 0.4), inverse_gamma(0.8, 2.5)
LISTED = Cells(rows=np.nonzero(MASK)[0], cols=np.nonzero(MASK)[1], values=X[MASK], shape=(F, N), is_complete=False)
MODELS = {
    "plain": power_model(X, K, *PRIORS),
    "rank 1": power_model(X, 1, *PRIORS),
    "masked": power_model(X, K, *PRIORS, mask=MASK),
    "listed": power_model(X, K, *PRIORS, data=LISTED),
    "background": power_model(X, K, *PRIORS, background=np.full((F, 1), 0.7)),
    "rank 1, background": power_model(X, 1, *PRIORS, background=np.full((F, 1), 0.7)),
    "all": power_model(
        X, K, *PRIORS, mask=MASK, background=RNG.uniform(0, 2, X.shape), exposure=RNG.uniform(0.5, 2, X.shape)
    ),
    "W flat": power_model(X, K, None, PRIORS[1]),
    "H flat": power_model(X, K, PRIORS[0], None, mask=MASK),
    "W known": power_model(X, K, W, PRIORS[1], mask=MASK),
    "H known": power_model(X, K, PRIORS[0], H),
}


def start_of(structure):
    rank = structure.rank
    return {"W": W[:, :rank], "H": H[:rank]}


def priors_of(structure):
    """(shape, scale) of W and of H, None for a factor that is known."""
    return tuple(
        None if side.is_fixed else tuple(part.item() for part in side.shape_and_scale({}))
        for side in two_sides(structure)
    )


def seen_in(structure):
    if structure.data is LISTED:
        return MASK
    return np.ones((F, N), bool) if structure.data.mask is None else structure.data.mask


@pytest.mark.parametrize("name", MODELS)
def test_a_sweep(name):
    structure = MODELS[name]
    problem = gibbs.prepare(structure, Gibbs(moves=(), trajectories="never"), SERIAL)
    state = gibbs.init(problem, KEY, start_of(structure))
    likelihood, seen = structure.likelihood, seen_in(structure)
    exposure = 1.0 if likelihood.exposure is None else likelihood.exposure
    background = None if likelihood.background is None else np.broadcast_to(likelihood.background / exposure, (F, N))
    keys = child(KEY, 1, gibbs.POWERS), child(KEY, 1, gibbs.WEIGHTS)
    power = np.where(seen, X, 0.0) / exposure
    expected = naive.sweep(power, seen, background, state.Wt.T, state.Ht.T, *priors_of(structure), keys)
    state, _ = gibbs.step(problem, state, child(KEY, 1))
    np.testing.assert_allclose(state.Wt.T, expected[0], rtol=1e-9)
    np.testing.assert_allclose(state.Ht.T, expected[1], rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_lp_is_the_log_joint(name):
    structure = MODELS[name]
    problem = gibbs.prepare(structure, ALONE, SERIAL)
    state, _ = gibbs.step(problem, gibbs.init(problem, KEY, start_of(structure)), KEY)
    values, stats = gibbs.draw(problem, state, KEY)
    np.testing.assert_allclose(stats["lp"], structure.log_joint(values), rtol=1e-10)
    rows, cols = problem.checked
    np.testing.assert_allclose(stats["mean"], (state.Wt.T @ state.Ht.T)[rows, cols], rtol=1e-12)


def test_chunks_do_not_matter_but_for_rounding(monkeypatch):
    found = []
    for cells in (1, 1 << 20):
        monkeypatch.setattr(gibbs, "CHUNK_CELLS", cells)
        problem = gibbs.prepare(MODELS["masked"], ALONE, SERIAL)
        state = gibbs.init(problem, KEY, {})
        found.append((len(problem.frames.chunks), gibbs.step(problem, state, KEY)[0]))
    assert [chunks for chunks, _ in found] == [N, 1]
    np.testing.assert_allclose(found[0][1].Wt, found[1][1].Wt, rtol=1e-12)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_do_not_matter(threads, monkeypatch):
    monkeypatch.setattr(gibbs, "CHUNK_CELLS", 1)
    states = []
    for workers in (SERIAL, Workers(threads)):
        problem = gibbs.prepare(MODELS["all"], ALONE, workers)
        state = gibbs.init(problem, KEY, {})
        for sweep in range(5):
            state, _ = gibbs.step(problem, state, child(KEY, sweep))
        states.append(state)
        workers.close()
    np.testing.assert_array_equal(states[0].Wt, states[1].Wt)
    np.testing.assert_array_equal(states[0].Ht, states[1].Ht)


@pytest.mark.parametrize("name", ["plain", "W flat"])
def test_the_scale_has_its_law(name):
    """Mean of log c by quadrature of the density written anew."""
    structure = MODELS[name]
    problem = gibbs.prepare(structure, ALONE, SERIAL)
    factors, out = PowerFactors(W.T.copy(), H.T.copy()), np.empty(K)
    draws = np.empty((20_000, K))
    for i in range(len(draws)):
        draw_scales(out, factors, problem.given, child(KEY, i))
        draws[i] = np.log(out)
    grid = np.linspace(-6, 6, 4001)
    for k in range(K):
        density = np.array([naive.log_scale_density(u, W[:, k], H[k], *priors_of(structure)) for u in grid])
        density = np.exp(density - density.max())
        mass = integrate.trapezoid(density, grid)
        mean = integrate.trapezoid(density * grid, grid) / mass
        spread = np.sqrt(integrate.trapezoid(density * (grid - mean) ** 2, grid) / mass)
        assert abs(draws[:, k].mean() - mean) < 5 * spread / np.sqrt(len(draws))
        np.testing.assert_allclose(draws[:, k].std(), spread, rtol=0.03)


def test_scales_leave_the_product_alone():
    factors = PowerFactors(W.T.copy(), H.T.copy())
    size = apply_scales(factors, np.array([0.5, 1.0, 3.0]))
    np.testing.assert_allclose(factors.Wt.T @ factors.Ht.T, W @ H, rtol=1e-14)
    np.testing.assert_allclose(size, np.sqrt((np.log(2) ** 2 + np.log(3) ** 2) / 3))


def orbit_priors():
    """Shapes and scales, components as rows; one of W's is flat."""
    shapes = [RNG.gamma(2.0, 0.7, (K, length)) for length in (F, F, N, N)]
    shapes[0][1], shapes[1][1] = -1.0, 0.0
    return shapes


def test_shear_density():
    """What the slice draw uses is the change of the log prior."""
    Wt, (shape_w, scale_w, shape_h, scale_h) = np.ascontiguousarray(W.T), orbit_priors()
    ratios_w, ratios_h = np.empty(F), np.empty(N)
    for k, j in ((0, 2), (1, 0), (2, 1)):
        lower, upper = -divide_rows(Wt[j], Wt[k], ratios_w), divide_rows(H[k], H[j], ratios_h)
        quotients = scale_w[k] / Wt[k], scale_h[j] / H[j]
        start = naive.log_shear_density(0.0, k, j, Wt, H, shape_w, scale_w, shape_h, scale_h)
        for step in np.linspace(lower, upper, 9)[1:-1]:
            change = composite._log_change(ratios_w, shape_w[k], quotients[0], step)
            change += composite._log_change(ratios_h, shape_h[j], quotients[1], -step)
            expected = naive.log_shear_density(step, k, j, Wt, H, shape_w, scale_w, shape_h, scale_h) - start
            np.testing.assert_allclose(change, expected, rtol=1e-9, atol=1e-10)


def test_shear_steps_have_their_law():
    """A chain of one pair's shears alone: moments of its position on the logistic scale, against its density's."""
    Wt, (shape_w, scale_w, shape_h, scale_h) = np.ascontiguousarray(W.T), orbit_priors()
    ratios_w, ratios_h, k, j = np.empty(F), np.empty(N), 0, 2
    ends = -divide_rows(Wt[j], Wt[k], ratios_w), divide_rows(H[k], H[j], ratios_h)
    grid = np.linspace(-25.0, 25.0, 4001)
    inside = ends[0] / (1.0 + np.exp(grid)) + ends[1] / (1.0 + np.exp(-grid))
    priors = shape_w, scale_w, shape_h, scale_h
    logs = np.array([naive.log_shear_density(step, k, j, Wt, H, *priors) for step in inside])
    logs += grid - 2.0 * np.log1p(np.exp(grid))
    weights = np.exp(logs - logs.max()) / np.sum(np.exp(logs - logs.max()))
    at, kept = 0.0, np.empty(20_000)
    for i in range(len(kept)):
        w, h = Wt[k] + at * Wt[j], H[j] - at * H[k]
        lower, upper = -divide_rows(Wt[j], w, ratios_w), divide_rows(H[k], h, ratios_h)
        rows = (
            composite.InverseGammaRow(ratios_w, shape_w[k], scale_w[k] / w),
            composite.InverseGammaRow(ratios_h, shape_h[j], scale_h[j] / h),
        )
        at += draw_shear_step(lower, upper, *rows, 0.0, child(KEY, i))
        kept[i] = np.log(at - ends[0]) - np.log(ends[1] - at)
    check_means(["u", "u^2"], np.stack([kept, kept**2], axis=1), np.array([weights @ grid, weights @ grid**2]))


def test_shears_keep_the_product():
    Wt, Ht = W.T.copy(), H.copy()
    composite.move_inverse_shears(Wt, Ht, *orbit_priors(), KEY)
    np.testing.assert_allclose(Wt.T @ Ht, W @ H, rtol=1e-12)
    assert np.all(Wt > 0)
    assert np.all(Ht > 0)
    assert not np.any(np.all(np.isclose(Wt, W.T), axis=1))


@pytest.mark.parametrize(
    ("shape", "scale"), [(1e-3, 1.0), (1e-4, 1e-19), (0.2, 1e300), (5.0, 1e-300), (5.0, 0.0), (0.1, 0.0)]
)
def test_inverse_gammas_stay_numbers(shape, scale):
    draws = np.array([draw_inverse_gamma(shape, scale, child(KEY, i)) for i in range(1000)])
    assert np.all((draws >= LEAST) & (draws <= MOST))


@pytest.mark.parametrize("size", [1e-19, 1e6, 1e-120])
def test_powers_of_any_size(size):
    """The draws scale with the data."""
    one, other = (power_model(X * s, K, inverse_gamma(1.3, 0.4 * s), PRIORS[1]) for s in (1.0, size))
    states = []
    for structure, s in ((one, 1.0), (other, size)):
        problem = gibbs.prepare(structure, ALONE, SERIAL)
        state = gibbs.init(problem, KEY, {"W": W * s, "H": H})
        for sweep in range(20):
            state, _ = gibbs.step(problem, state, child(KEY, sweep))
        states.append(state)
    np.testing.assert_allclose(states[1].Wt / size, states[0].Wt, rtol=1e-9)
    np.testing.assert_allclose(states[1].Ht, states[0].Ht, rtol=1e-9)


def test_silence_keeps_the_factors_positive():
    structure = power_model(np.zeros((4, 5)), 2, *PRIORS)
    problem = gibbs.prepare(structure, ALONE, SERIAL)
    state = gibbs.init(problem, KEY, {})
    for sweep in range(200):
        state, _ = gibbs.step(problem, state, child(KEY, sweep))
    for factor in state.factors:
        assert np.all((factor >= LEAST) & (factor <= MOST))


MIXED = X.copy()
MIXED[0, 0], MIXED[1, 1], MIXED[2, 2] = 1e300, 1e-300, 5e-324
EXTREMES = {
    "powers": (MIXED, PRIORS, {}),
    "powers and scales": (MIXED, (inverse_gamma(2.0, 1e-150), inverse_gamma(2.0, 1e-150)), {}),
    "scales": (X, (inverse_gamma(2.0, 1e-300), inverse_gamma(2.0, 1e-300)), {}),
    "exposure": (X, PRIORS, {"exposure": np.where(X > 1, 1e-200, 1e200)}),
    "loud background": (X, PRIORS, {"background": np.full((F, N), 1e300)}),
    "faint background": (X, PRIORS, {"background": np.full((F, N), 5e-324)}),
    "shapes": (X, (inverse_gamma(1e-5, 1.0), inverse_gamma(1e300, 1e300)), {"mask": np.zeros((F, N), bool)}),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_nothing_absurd_ends_in_nan(name):
    x, priors, options = EXTREMES[name]
    problem = gibbs.prepare(power_model(x, K, *priors, **options), ALONE, SERIAL)
    problem = dataclasses.replace(problem, sweeps=None)
    state = gibbs.init(problem, KEY, {})
    for sweep in range(50):
        state, info = gibbs.step(problem, state, child(KEY, sweep))
        for factor in state.factors:
            assert np.all((factor >= LEAST) & (factor < np.inf))
        assert np.isfinite(info.scale_move)

"""Kernels of frames against their twins, exact expectations, and complex normals drawn the long way."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.kernels.powers import frame_gibbs, frame_splits
from nmf_zoo.kernels.random.keyed_rng import child, fold, random_bits, seed_key
from tests.naive.powers import frame_gibbs as naive_frames

RNG = np.random.default_rng(3)
KEY = seed_key(1)
NOTHING = np.empty((0, 0), dtype=bool)


def chain(K, sweeps, keep, background=None, is_plain=False, shape=1.5, scale=0.8, leaps=0):
    noise = np.empty(0) if background is None else np.asarray(background, dtype=float)
    return frame_gibbs.FramePlan(np.full(K, shape), np.full(K, scale), noise, sweeps, keep, is_plain, leaps)


def noise_of(keys, n):
    """The exponentials and cosines that a kernel draws from words 0 ... n - 1 of each key, from their bits."""
    bits = np.array([[random_bits(key, f) for f in range(n)] for key in keys], dtype=np.uint64)
    u = 1.0 - (bits >> np.uint64(24)).astype(float) * 2.0**-40
    v = (bits & np.uint64(0xFFFFFF)).astype(float) * 2.0**-24 - 0.5
    return -np.log(u), np.sin(np.pi * v)


def variances(weights, h, background=0.0):
    rest = np.zeros((len(h) + 1, weights.shape[1]))
    rest[-1] = background
    for k in range(len(h) - 1, -1, -1):
        rest[k] = rest[k + 1] + weights[k] * h[k]
    return rest


# -- splits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [0.0, 0.3])
def test_relative_powers_are_the_twins(background):
    K, D = 4, 24
    weights, h, left = RNG.gamma(0.3, size=(K, D)), RNG.gamma(1.0, size=K), RNG.exponential(size=D)
    left[:3] = 0.0
    rest = np.empty((K + 1, D))
    rest[K] = background
    frame_splits.add_variances(rest, weights, h, D)
    np.testing.assert_allclose(rest, variances(weights, h, background), rtol=1e-14)
    keys = np.array([child(KEY, k) for k in range(K if background else K - 1)])
    parts, work = np.empty((K, D)), left.copy()
    frame_splits.split_power(parts, rest, weights, h, work, keys, D)
    expected = naive_frames.relative_powers(left, rest, weights, h, *noise_of(keys, D))
    np.testing.assert_allclose(parts, expected, rtol=1e-9, atol=1e-11)
    assert parts.min() >= 0.0


def test_exponentials_and_angles_have_their_moments():
    e, cosine = noise_of([child(KEY, 9)], 200_000)
    for power, moment in enumerate((1.0, 2.0, 6.0), start=1):
        assert abs((e**power).mean() - moment) < 5 * (e**power).std() / np.sqrt(e.size)
    for power, moment in enumerate((0.0, 1 / 2, 0.0, 3 / 8), start=1):
        assert abs((cosine**power).mean() - moment) < 5 * (cosine**power).std() / np.sqrt(e.size)
    assert abs(np.corrcoef(e[0], cosine[0] ** 2)[0, 1]) < 5 / np.sqrt(e.size)


def moments_of(parts):
    """First, second and mixed moments of relative powers, one row a draw: (draws, moments)."""
    K = parts.shape[-1]
    pairs = [parts[..., i] * parts[..., j] for i in range(K) for j in range(i, K)]
    return np.stack([*np.moveaxis(parts, -1, 0), *pairs], -1).reshape(len(parts), -1)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_parts_have_the_law_of_complex_components(is_wrong):
    """Two samples, one of them from complex normals; with a share taken for another the difference is seen."""
    weights, h = np.array([[1.0, 0.02], [0.5, 3.0], [0.2, 0.4]]), np.array([1.0, 0.7, 2.0])
    power, n = np.array([2.5, 0.3]), 20_000
    rest = variances(weights, h)
    mine = np.empty((n, 2, 3))
    for i in range(n):
        parts, keys = np.empty((3, 2)), np.array([child(KEY, i, k) for k in range(2)])
        used = weights[::-1].copy() if is_wrong else weights
        frame_splits.split_power(parts, rest, used, h, power / rest[0], keys, 2)
        mine[i] = parts.T
    rng, own = np.random.default_rng(0), (weights * h[:, None]).T
    theirs = np.array([np.abs(naive_frames.draw_components(power, own, rng)) ** 2 / own for _ in range(n)])
    one, other = moments_of(mine), moments_of(theirs)
    z = (one.mean(0) - other.mean(0)) / np.sqrt((one.var(0) + other.var(0)) / n)
    assert (np.abs(z).max() > 10) if is_wrong else (np.abs(z).max() < 5), z


# -- chains --------------------------------------------------------------------------------------------------------

W3 = np.array([[1.0, 0.1], [0.6, 0.5], [0.02, 2.0]])
CASES = {
    "plain sound": ([1.2, 0.3, 2.5], {}),
    "loud": ([1.2e6, 0.3e6, 2.5e6], {"scale": 1e6}),
    "silent": ([0.0, 0.0, 0.0], {}),
    "a zero": ([1.2, 0.0, 2.5], {}),
    "background": ([1.2, 0.3, 2.5], {"background": [0.3, 0.05, 1.0]}),
    "dominated": ([1.2, 0.3, 25.0], {"scale": 0.05, "shape": 4.0}),
}


def run_frames(power, W, seen=None, copies=200, sweeps=400, key=KEY, **options):
    """Expectations of chains of the same frame with different draws, one row a chain."""
    F, K = W.shape
    plan = chain(K, sweeps, sweeps - 100, **options)
    Wt, workspace = np.array(W.T, order="C"), frame_gibbs.make_workspace(F, K, True)
    mask = NOTHING if seen is None else np.repeat(np.asarray(seen)[None], copies, 0)
    block = frame_gibbs.Frames(np.repeat(np.asarray(power, dtype=float)[None], copies, 0), mask, 0)
    out = frame_gibbs.Activations(np.empty((copies, K)), np.empty((copies, K)), np.zeros((copies, K, F)))
    frame_gibbs.activate_frames(out, block, Wt, plan, workspace, key)
    ratio, counts, inverse = np.zeros((copies, K, F)), np.zeros(F), np.zeros((copies, K))
    for n in range(copies):
        one = frame_gibbs.Frames(block.power[n : n + 1], mask[n : n + 1], n)
        frame_gibbs.expect_frames(
            frame_gibbs.FrameStatistics(ratio[n], counts, inverse[n]), one, Wt, plan, workspace, key
        )
    return {
        "mean": out.mean,
        "square": out.square,
        "inverse": inverse,
        "share": out.shares.transpose(0, 2, 1),
        "ratio": (ratio / Wt).transpose(0, 2, 1),
    }


def z_scores(found, exact):
    """How many standard errors the mean over chains is off; errors below 1e-9 of the value are rounding."""
    scores = {}
    for name, rows in found.items():
        error = rows.std(0, ddof=1) / np.sqrt(len(rows)) + 1e-9 * (1.0 + np.abs(exact[name]))
        assert np.all(error < 0.15 * (0.05 + np.abs(exact[name]))), (name, error, exact[name])
        scores[name] = np.abs(rows.mean(0) - exact[name]) / error
    return scores


@pytest.mark.parametrize("way", [{}, {"is_plain": True}, {"leaps": 2}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_expectations_are_those_of_quadrature(case, way):
    power, options = CASES[case]
    found = run_frames(power, W3, **way, **options)
    background = np.asarray(options.get("background", 0.0))
    shape, scale = options.get("shape", 1.5), options.get("scale", 0.8)
    middle = np.log(scale)
    exact = naive_frames.posterior(np.array(power), W3, shape, scale, background, low=middle - 12, high=middle + 12)
    for name, z in z_scores(found, exact).items():
        assert z.max() < 5, (name, z, found[name].mean(0), exact[name])


@pytest.mark.parametrize("wrong", [{"shape": 1.7}, {"scale": 0.9}, {"power": 1.08}, {"background": 0.02}])
def test_small_errors_are_seen(wrong):
    """Expectations of a model that is slightly another."""
    power = np.array(CASES["plain sound"][0])
    other = {"power": 1.0, "shape": 1.5, "scale": 0.8, "background": 0.0} | wrong
    exact = naive_frames.posterior(other["power"] * power, W3, other["shape"], other["scale"], other["background"])
    found = run_frames(power, W3)
    assert max(z.max() for z in z_scores(found, exact).values()) > 8


def test_moves_swap_modes():
    """Two modes far apart, in the heavy tails of either activation, which the Gibbs sweeps alone hardly swap."""
    power = np.array([40.0, 90.0, 30.0])
    exact = naive_frames.posterior(power, W3, 1.5, 0.8)
    for name, z in z_scores(run_frames(power, W3, sweeps=2000, leaps=3), exact).items():
        assert z.max() < 5, (name, z)


@pytest.mark.parametrize("leaps", [0, 2])
def test_moves_make_draws_nearly_independent(leaps):
    """The variance of an average of 200 draws, as a multiple of that of as many independent ones."""
    rng = np.random.default_rng(0)
    W = rng.gamma(1.0, size=(64, 4)) + 1e-3
    power = rng.exponential(size=64) * (W @ np.array([1.0, 0.3, 3.0, 1.0]))
    block = frame_gibbs.Frames(np.repeat(power[None], 200, 0), NOTHING, 0)
    workspace, Wt, means = frame_gibbs.make_workspace(64, 4), np.array(W.T, order="C"), []
    for keep in (1, 200):
        plan = chain(4, 200 + keep, keep, leaps=leaps)
        out = frame_gibbs.Activations(*np.empty((2, 200, 4)), np.zeros((0, 0, 0)))
        frame_gibbs.activate_frames(out, block, Wt, plan, workspace, KEY)
        means.append(out.mean.copy())
    multiple = 200 * means[1].var(axis=0) / means[0].var(axis=0)
    assert np.all(multiple < 5.0) if leaps else np.all(multiple > 8.0), multiple


def test_the_root_is_that_of_the_information():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 5))
    G = A @ A.T + np.eye(5)
    root = np.tril(G)
    frame_gibbs._invert_root(root)
    root = np.triu(root)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(G), rtol=1e-10)


def test_the_slope_is_that_of_the_density():
    rng = np.random.default_rng(0)
    W, power, background = rng.gamma(1.0, size=(9, 3)), rng.exponential(size=9), rng.gamma(1.0, size=9)
    workspace, plan = frame_gibbs.make_workspace(9, 3), chain(3, 1, 1, background, leaps=1)
    workspace.weights[:, :9], workspace.power[:9], workspace.rest[3, :9] = W.T, power, background
    workspace.weights[:, 9:] = 1.0

    def height(u):
        workspace.moves[frame_gibbs.U], workspace.h[:] = u, np.exp(u)
        frame_gibbs._find_slope(plan, workspace, 9, 16)
        return frame_gibbs._height(plan, workspace, 9), workspace.moves[frame_gibbs.SLOPE].copy()

    u = np.array([0.3, -0.5, 1.0])
    variance = W @ np.exp(u) + background
    expected = -(np.log(variance) + power / variance).sum() + naive_frames.log_prior(u, 1.5, 0.8)
    value, slope = height(u)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    numeric = [(height(u + d)[0] - height(u - d)[0]) / 2e-5 for d in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(slope, numeric, rtol=1e-7)


def test_three_components():
    W = np.array([[1.0, 0.1, 0.4], [0.6, 0.5, 0.1], [0.02, 2.0, 0.3], [0.3, 0.2, 3.0]])
    power = np.array([2.0, 0.3, 5.0, 0.8])
    exact = naive_frames.posterior(power, W, 1.5, 0.8, points=90)
    for name, z in z_scores(run_frames(power, W), exact).items():
        assert z.max() < 5, (name, z)


def test_one_component_is_known_in_closed_form():
    """One sweep: c = y, so h ~ InverseGamma(shape + F, scale + sum p / w), and the share is all."""
    power, W = np.array([1.2, 0.3, 2.5]), W3[:, :1]
    found = run_frames(power, W)
    a, b = 1.5 + 3, 0.8 + (power / W[:, 0]).sum()
    np.testing.assert_allclose(found["mean"], b / (a - 1), rtol=1e-12)
    np.testing.assert_allclose(found["square"], b**2 / ((a - 1) * (a - 2)), rtol=1e-12)
    np.testing.assert_allclose(found["inverse"], a / b, rtol=1e-12)
    np.testing.assert_allclose(found["share"], 1.0, rtol=1e-12)


def test_missing_cells_are_left_out():
    """Bit for bit the frame without these frequencies; their shares are 0."""
    rng = np.random.default_rng(0)
    W, power = rng.gamma(1.0, size=(21, 3)), rng.exponential(size=21)
    seen = rng.random(21) < 0.6
    found = run_frames(np.where(seen, power, np.inf), W, seen, copies=4)
    alone = run_frames(power[seen], np.ascontiguousarray(W[seen]), copies=4)
    for name in ("mean", "square"):
        np.testing.assert_array_equal(found[name], alone[name])
    for name in ("share", "ratio"):
        np.testing.assert_array_equal(found[name][:, seen], alone[name])
        np.testing.assert_array_equal(found[name][:, ~seen], 0.0)


def test_counts_are_of_observed_cells():
    rng = np.random.default_rng(0)
    seen, power = rng.random((5, 9)) < 0.5, rng.exponential(size=(5, 9))
    out = frame_gibbs.FrameStatistics(np.zeros((2, 9)), np.zeros(9), np.zeros(2))
    block = frame_gibbs.Frames(power, seen, 0)
    frame_gibbs.expect_frames(
        out, block, rng.gamma(1.0, size=(2, 9)), chain(2, 9, 4), frame_gibbs.make_workspace(9, 2), KEY
    )
    np.testing.assert_array_equal(out.counts, seen.sum(axis=0))
    assert np.all((out.power > 0) == (out.counts > 0))


def test_a_frame_without_cells_is_the_prior():
    found = run_frames([1.0, 2.0, 3.0], W3, [False] * 3, copies=2, shape=3.0)
    np.testing.assert_allclose(found["mean"], 0.8 / 2.0)
    np.testing.assert_allclose(found["square"], 0.8**2 / 2.0)
    np.testing.assert_array_equal(found["ratio"], 0.0)
    np.testing.assert_allclose(found["inverse"], 3.0 / 0.8)


def test_draws_are_those_of_the_number():
    rng = np.random.default_rng(0)
    W, power = rng.gamma(1.0, size=(11, 2)), rng.exponential(size=(6, 11))
    plan, workspace = chain(2, 20, 10), frame_gibbs.make_workspace(11, 2)
    Wt = np.array(W.T, order="C")

    def mean(first, last):
        block = frame_gibbs.Frames(power, NOTHING, 0).part(first, last)
        out = frame_gibbs.Activations(*np.empty((2, last - first, 2)), np.zeros((0, 0, 0)))
        frame_gibbs.activate_frames(out, block, Wt, plan, workspace, KEY)
        return out.mean

    np.testing.assert_array_equal(mean(0, 6), np.concatenate([mean(0, 1), mean(1, 4), mean(4, 6)]))
    assert fold(KEY, 0) != fold(KEY, 1)


@pytest.mark.parametrize("factor", [1e-80, 1e80])
@pytest.mark.parametrize("leaps", [0, 2])
def test_extreme_weights_give_numbers(factor, leaps):
    """A component that is nothing beside the other, and powers of any size."""
    W = W3 * np.array([1.0, factor])
    for power in ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1e60, 1e-60, 1.0]):
        found = run_frames(power, W, copies=3, sweeps=150, leaps=leaps)
        assert all(np.all(np.isfinite(rows)) and np.all(rows >= 0.0) for rows in found.values())

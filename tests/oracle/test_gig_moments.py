"""Generalised inverse Gaussians against integrals, SciPy and closed forms; the pass over the cells of the bound."""

import functools
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import gammaln, kve

from nmf_zoo.inference.powers.spectra import NOWHERE, Spectra
from nmf_zoo.kernels.numerics.gig_moments import (
    FIRST_OCTAVE,
    LAST_OCTAVE,
    Orders,
    fill_gig_moments,
    ratio_and_height,
    tabulate,
)
from nmf_zoo.kernels.powers import composite_bound
from nmf_zoo.kernels.powers.composite_bound import (
    BLOCK,
    TILE,
    MeanPair,
    gather_features,
    gather_frames,
    make_cells,
    spread,
)
from tests.naive.powers import composite_bound as naive

ORDERS = [0.01, 0.3, 0.499, 0.5, 0.75, 1.0, 1.2, 1.5, 2.0, 3.7, 10.0, 50.0]


table_of = functools.lru_cache(tabulate)


def orders_of(p, with_table):
    p = np.atleast_2d(np.asarray(p, dtype=float))
    if not with_table:
        return Orders(p, np.full(p.shape, -1), np.empty((0, *table_of(1.0).shape)))
    distinct, which = np.unique(np.abs(p), return_inverse=True)
    return Orders(p, which.reshape(p.shape), np.stack([table_of(float(nu)) for nu in distinct]))


def fill(p, rho, tau, with_table=False, rows=None):
    """(E[v], 1 / E[1/v], sum of logs of integrals + E[(rho v + tau / v) / 2])"""
    mean, harmonic = np.full_like(rho, np.nan), np.full_like(rho, np.nan)
    height = fill_gig_moments(mean, harmonic, rho, tau, orders_of(p, with_table), *(rows or (0, len(rho))))
    return mean, harmonic, height


@pytest.mark.parametrize("with_table", [False, True], ids=["direct", "table"])
@pytest.mark.parametrize("p", [sign * nu for nu in ORDERS for sign in (-1.0, 1.0)])
def test_moments_and_normalisers_are_those_of_the_integrals(p, with_table):
    rng = np.random.default_rng(3)
    z, ratio = np.exp(rng.uniform(-4.0, 9.0, 8)), np.exp(rng.uniform(-8.0, 8.0, 8))
    for rho, tau in zip(z * ratio, z / ratio, strict=True):
        mean, harmonic, height = fill(p, np.full((1, 1), rho), np.full((1, 1), tau), with_table)
        v, weights, log_integral = naive.law_on_grid(p, rho, tau)
        np.testing.assert_allclose([mean[0, 0], harmonic[0, 0]], [weights @ v, 1.0 / (weights @ (1.0 / v))], rtol=1e-11)
        expected = log_integral + weights @ (0.5 * (rho * v + tau / v))
        np.testing.assert_allclose(height, expected, rtol=1e-12, atol=1e-11 * max(1.0, np.sqrt(rho * tau)))


@pytest.mark.parametrize("nu", [0.05, *ORDERS, 101.3, 300.0])
def test_functions_are_scipys_where_scipy_has_them(nu):
    z = 10.0 ** np.linspace(-8.0, 8.0, 400)
    with np.errstate(all="ignore"):
        below, here = kve(nu - 1.0, z), kve(nu, z)
    z, below, here = (part[np.isfinite(below) & np.isfinite(here) & (here > 0)] for part in (z, below, here))
    found = np.array([ratio_and_height(nu, one * one) for one in z])
    ratio = z * below / here
    np.testing.assert_allclose(found[:, 0], ratio, rtol=1e-12)
    height = np.log(2.0 * here) - z + nu * np.log(0.5 * z) + ratio + nu
    assert np.max(np.abs(found[:, 1] - height) / np.maximum(np.maximum(z, np.abs(height)), 1.0)) < 1e-13


@pytest.mark.parametrize("n", [0, 1, 2, 50, 1000])
def test_half_integer_orders_are_in_closed_form_over_the_whole_range(n):
    """K_{1/2} and the recurrence, which holds only positive terms."""
    z = 10.0 ** np.linspace(-140.0, 140.0, 141)
    ratio, below, log_scaled = z.copy(), np.zeros(len(z)), np.full(len(z), 0.5 * np.log(np.pi))  # below: z - ratio
    for order in 0.5 + np.arange(n):
        log_scaled += np.log(0.5 * ratio + order)
        ratio, below = z * (z / (ratio + 2.0 * order)), z * ((2.0 * order - below) / (ratio + 2.0 * order))
    found = np.array([ratio_and_height(0.5 + n, one * one) for one in z])
    np.testing.assert_allclose(found[:, 0], ratio, rtol=1e-12 + 2e-15 * n)
    height = log_scaled - below + 0.5 + n
    assert np.max(np.abs(found[:, 1] - height) / np.maximum(np.abs(height), 1.0)) < 1e-13 + 1e-15 * n


@pytest.mark.parametrize("nu", [0.3, 1.0, 1.5, 4.2, 199.5, 1000.0])
def test_integer_steps_of_the_order_obey_the_recurrence(nu):
    for s in 10.0 ** np.linspace(-300.0, 16.0, 80):
        ratio, height = ratio_and_height(nu, s)
        above, height_above = ratio_and_height(nu + 1.0, s)
        np.testing.assert_allclose(above, s / (ratio + 2.0 * nu), rtol=1e-12)
        rise = np.log(0.5 * ratio + nu) + (above - ratio) + 1.0
        np.testing.assert_allclose(height_above - height, rise, atol=1e-12 * max(1.0, abs(height), np.sqrt(s)))


@pytest.mark.parametrize("nu", [0.05, 0.3, 0.5, 1.0, 1.01, 2.0, 7.5, 100.0])
def test_tables_are_the_functions_on_the_whole_range_and_beyond(nu):
    rng = np.random.default_rng(0)
    edges = np.ldexp(1.0 + np.arange(8) / 8.0, np.arange(-40, 24, 8))
    s = np.concatenate([2.0 ** rng.uniform(FIRST_OCTAVE - 20, LAST_OCTAVE + 20, 3000), edges, np.nextafter(edges, 0.0)])
    one = np.ones((len(s), 1))
    direct, table = (fill(-nu, s[:, None], one, with_table) for with_table in (False, True))
    np.testing.assert_allclose(table[0], direct[0], rtol=1e-13)
    np.testing.assert_allclose(table[1], direct[1], rtol=1e-13)
    for i in range(0, len(s), 50):
        heights = [fill(-nu, s[:, None], one, with_table, (i, i + 1))[2] for with_table in (False, True)]
        np.testing.assert_allclose(*heights, atol=1e-13 * max(1.0, abs(heights[0])))


def test_a_huge_order_costs_no_more_and_nan_stays_nan():
    for nu in (1e4, 1e9):
        ratio, height = ratio_and_height(nu, 1.0)
        np.testing.assert_allclose([ratio, height], [0.5 / (nu - 1.0), gammaln(nu) + nu], rtol=0.3 / nu**2 + 1e-12)
    assert np.all(np.isnan(ratio_and_height(np.nan, 1.0)))
    for rho in (np.nan, 1.0):
        assert np.isnan(fill(-1.0, np.full((1, 1), rho), np.full((1, 1), np.nan), with_table=True)[0][0, 0])


def test_limits_are_gamma_and_inverse_gamma():
    zero, three = np.zeros((1, 1)), np.full((1, 1), 3.0)
    mean, harmonic, height = fill(-2.5, zero, three)  # inverse gamma, shape 2.5 and scale 1.5
    np.testing.assert_allclose([mean[0, 0], harmonic[0, 0]], [1.5 / 1.5, 1.5 / 2.5], rtol=1e-12)
    np.testing.assert_allclose(height, gammaln(2.5) - 2.5 * np.log(1.5) + 2.5, rtol=1e-12)
    mean, harmonic, height = fill(1.0, three, zero)  # exponential: E[1/v] is infinite
    np.testing.assert_allclose([mean[0, 0], harmonic[0, 0]], [2.0 / 3.0, 0.0], rtol=1e-12)
    np.testing.assert_allclose(height, -np.log(1.5) + 1.0, rtol=1e-12)
    for tau in (zero, np.full((1, 1), 1e-320)):
        mean, harmonic, _ = fill(2.5, three, tau)
        np.testing.assert_allclose([mean[0, 0], harmonic[0, 0]], [2.5 / 1.5, 1.5 / 1.5], rtol=1e-12)
    mean, _, _ = fill(-0.7, zero, three)  # its mean is infinite
    assert 1e50 < mean[0, 0] < np.inf


@pytest.mark.parametrize("with_table", [False, True], ids=["direct", "table"])
@pytest.mark.parametrize("p", [-50.0, -1.0, -0.2, 1.0, 30.0])
def test_no_argument_gives_nan(p, with_table):
    sizes = 10.0 ** np.array([-300.0, -200.0, -100.0, -20.0, 0.0, 4.0, 8.0, 100.0])
    rho, tau = (np.ascontiguousarray(part) for part in np.meshgrid(sizes, sizes))
    mean, harmonic, height = fill(p, rho, tau, with_table)
    assert np.all(np.isfinite(mean) & (mean > 0))
    assert np.isfinite(height)
    inside = (rho * tau > 1e-290) & (rho * tau < 1e290)
    assert np.all(harmonic[inside] > 0)
    assert np.all(harmonic[inside] <= mean[inside] * (1 + 1e-13))


def test_orders_may_differ_by_row_and_by_component():
    rng = np.random.default_rng(1)
    rho, tau = rng.gamma(2.0, 2.0, (5, 3)), rng.gamma(2.0, 2.0, (5, 3))
    for p in (rng.normal(size=(5, 3)), rng.normal(size=(5, 1)), rng.normal(size=(1, 3))):
        for with_table in (False, True):
            mean, harmonic, _ = fill(p, rho, tau, with_table)
            np.testing.assert_allclose((mean, harmonic), naive.means(p, rho, tau), rtol=1e-11)


# -- the pass over the cells ------------------------------------------------------------------------------------------


def look(x, W, H, seen=None, background=None, cuts=()):
    """(sums for W (2, F, K), for H (2, N, K), part of the bound) by the kernels; W, H: (E, G), (F, K) and (N, K)."""
    (n_features, rank), n_frames = W[0].shape, len(H[0])
    spectra = Spectra(
        np.ascontiguousarray(x.T),
        np.empty((0, 0), bool) if seen is None else np.ascontiguousarray(seen.T),
        NOWHERE if background is None else np.ascontiguousarray(background.T),
    )
    pair, sums = (MeanPair(spread(rank, n_features), spread(rank, n_features)) for _ in range(2))
    for padded, value in zip(pair, W, strict=True):
        padded.values[:, :n_features] = value.T
    of_H = MeanPair(np.full((n_frames, rank), np.nan), np.full((n_frames, rank), np.nan))
    bound, bounds = 0.0, [0, *cuts, n_frames]
    for first, last in pairwise(bounds):
        bound += gather_features(sums, pair, MeanPair(*H), spectra, make_cells(n_features), first, last)
        gather_frames(of_H, pair, MeanPair(*H), spectra, make_cells(n_features), first, last)
    return np.stack([part.values[:, :n_features].T for part in sums]), np.stack(of_H), bound


def naive_look(x, W, H, seen=None, background=None):
    seen = np.ones(x.shape) if seen is None else seen
    background = 0.0 if background is None else background
    m, low = (e @ h.T + background for e, h in zip(W, H, strict=True))
    one, other = seen / m, np.where(x > 0, x, 0.0) / np.where(x > 0, low, 1.0) ** 2
    of_W, of_H = np.stack([one @ H[0], other @ H[1]]), np.stack([one.T @ W[0], other.T @ W[1]])
    return of_W, of_H, -np.sum(seen * np.log(m)) - np.sum(other * low)


@pytest.mark.parametrize("size", [(1, 1, 1), (5, 3, 2), (33, BLOCK + 1, 3), (TILE, 2 * BLOCK, 1), (40, 19, 7)])
@pytest.mark.parametrize("setting", ["plain", "mask", "background", "both"])
def test_the_pass_is_the_formula(size, setting):
    rng = np.random.default_rng(2)
    _, n_frames, rank = size
    W, H = ([v, v * rng.random(v.shape)] for v in (rng.gamma(1.0, 1.0, (rows, rank)) for rows in size[:2]))
    x = rng.exponential(W[0] @ H[0].T)
    x[rng.random(x.shape) < 0.1] = 0.0
    seen = rng.random(x.shape) < 0.7 if setting in ("mask", "both") else None
    background = rng.random(x.shape) if setting in ("background", "both") else None
    x = x if seen is None else x * seen
    cuts = (n_frames // 2,) if n_frames > 1 else ()
    for found, expected in zip(
        look(x, W, H, seen, background, cuts), naive_look(x, W, H, seen, background), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_means_that_changed_places_would_be_seen():
    rng = np.random.default_rng(6)
    W, H = ([v, 0.9 * v] for v in (rng.random((4, 2)), rng.random((3, 2))))
    x = rng.exponential(1.0, (4, 3))
    for wrong in ((W[::-1], H), (W, H[::-1]), (W[::-1], H[::-1])):
        for found, expected in zip(look(x, *wrong), naive_look(x, W, H), strict=True):
            assert not np.allclose(found, expected, rtol=1e-3)


def test_an_order_of_the_wrong_sign_would_be_seen():
    rho, tau = np.full((1, 1), 2.0), np.full((1, 1), 3.0)
    for nu in (0.3, 1.0, 5.0):
        for found, expected in zip(fill(nu, rho, tau)[:2], naive.means(-nu, rho, tau), strict=True):
            assert not np.allclose(found, expected, rtol=1e-2)


def test_a_silent_feature_without_a_harmonic_mean_is_no_nan():
    rng = np.random.default_rng(4)
    W, H = [rng.random((4, 2)), rng.random((4, 2))], [rng.random((3, 2)), rng.random((3, 2))]
    x = rng.exponential(1.0, (4, 3))
    x[1], W[1][1] = 0.0, 0.0
    for found, expected in zip(look(x, W, H), naive_look(x, W, H), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-70, 1e-20, 1e20, 1e70])
def test_the_pass_takes_powers_of_any_size(scale):
    rng = np.random.default_rng(5)
    W, H = [rng.random((20, 2))] * 2, [rng.random((9, 2)) * scale] * 2
    x = scale * rng.exponential(1.0, (20, 9))
    for found, expected in zip(look(x, W, H), naive_look(x, W, H), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_workspaces_lie_apart_in_memory():
    """A load whose address agrees with a pending quotient's in the lowest 12 bits waits for it: four times slower."""
    starts = [padded.values.ctypes.data % 4096 for padded in make_cells(256)]
    assert starts == [0, 1024, 2048]
    assert composite_bound.BLOCK % 4 == 0

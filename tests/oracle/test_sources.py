"""Expected sources: kernels against the obvious formula, dense against sparse, one thread against many."""

import dataclasses

import numpy as np
import pytest
from scipy.special import gammaln, psi

from nmf_zoo.inference.shared.layout import DenseSources, Logs, SparseSources
from nmf_zoo.kernels.counts import sources as kernels
from nmf_zoo.kernels.counts.variational import fill_moments
from nmf_zoo.kernels.numerics.multiplicative import (
    FLOOR,
    largest_change,
    largest_of_columns,
    largest_slope,
    update_rows,
)
from nmf_zoo.kernels.numerics.special import digamma_and_log_gamma, fast_log
from nmf_zoo.kernels.simd.lanes import padded_zeros, tile_lanes
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Cells
from tests.naive.counts import sources as naive
from tests.structures import model


def make(F, N, K, seed=0, background=False, exposure=False):
    rng = np.random.default_rng(seed)
    x = rng.poisson(0.7, (F, N)).astype(float)
    x[F // 2], x[:, N // 3] = 0.0, 0.0
    optional = {
        "background": rng.random((F, N)) if background else None,
        "exposure": rng.random((1, N)) + 0.5 if exposure else None,
    }
    return model(x, K, None, None, **optional), rng.random((F, K)) + 0.1, rng.random((N, K)) + 0.1


def as_cells(structure):
    rows, cols = np.nonzero(structure.data.values)
    values = structure.data.values[rows, cols]
    return dataclasses.replace(
        structure, data=Cells(rows=rows, cols=cols, values=values, shape=structure.shape, is_complete=True)
    )


def offset_of(structure):
    background, exposure = structure.likelihood.background, structure.likelihood.exposure
    return 0.0 if background is None else background / (1.0 if exposure is None else exposure)


@pytest.mark.parametrize("shape", [(23, 11), (9, 40), (1, 1), (5, 1), (150, 300)])
@pytest.mark.parametrize("rank", [1, 3, 4, 9])
@pytest.mark.parametrize("background", [False, True])
def test_gathered_sources_equal_the_formula(shape, rank, background):
    structure, W, Ht = make(*shape, rank, background=background, exposure=background)
    C = naive.expected_sources(structure.data.values, W, Ht.T, offset_of(structure))
    log_mean = naive.sum_x_log_mean(structure.data.values, W, Ht.T, offset_of(structure))
    for sources in (DenseSources(structure, SERIAL), SparseSources(as_cells(structure), SERIAL)):
        for sides in ("W", "H", "WH", ""):
            of_W, of_H, total = sources.gather(W, Ht, sides)
            assert (of_W is None) == ("W" not in sides)
            assert (of_H is None) == ("H" not in sides)
            if of_W is not None:
                np.testing.assert_allclose(of_W, C.sum(axis=2), rtol=1e-10, atol=1e-13)
            if of_H is not None:
                np.testing.assert_allclose(of_H, C.sum(axis=0).T, rtol=1e-10, atol=1e-13)
            np.testing.assert_allclose(total, log_mean, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rank", "precision"), [(70, "float64"), (150, "float64"), (150, "float32")])
def test_rows_longer_than_the_registers_go_in_tiles(rank, precision):
    structure, W, Ht = make(23, 40, rank, background=True)
    C = naive.expected_sources(structure.data.values, W, Ht.T, offset_of(structure))
    sources = SparseSources(as_cells(structure), SERIAL, precision=precision)
    of_W, of_H, _ = sources.gather(W, Ht)
    assert sources._pad(W).values.shape[1] > tile_lanes(sources._pad(W))
    rtol = 1e-10 if precision == "float64" else 1e-5
    np.testing.assert_allclose(of_W, C.sum(axis=2), rtol=rtol, atol=rtol * 1e-3)
    np.testing.assert_allclose(of_H, C.sum(axis=0).T, rtol=rtol, atol=rtol * 1e-3)


@pytest.mark.parametrize("kind", [DenseSources, SparseSources])
@pytest.mark.parametrize("background", [False, True])
def test_single_precision_keeps_six_digits(kind, background):
    structure, W, Ht = make(150, 300, 9, background=background, exposure=background)
    structure = structure if kind is DenseSources else as_cells(structure)
    double, single = (kind(structure, SERIAL, precision=name).gather(W, Ht) for name in ("float64", "float32"))
    assert single.of_W.dtype == single.of_H.dtype == np.float64
    assert not np.array_equal(double.of_W, single.of_W)
    np.testing.assert_allclose(single.of_W, double.of_W, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(single.of_H, double.of_H, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(single.log_mean, double.log_mean, rtol=1e-8)


@pytest.mark.parametrize("kind", [DenseSources, SparseSources])
def test_single_precision_shares_what_only_double_precision_can_hold(kind):
    """Means of 1e-60 are 0 in float32, and a factor's cell of 1e-45 must be free to grow again."""
    structure, W, Ht = make(7, 6, 3)
    W[:3] *= 1e-60
    W[5, 0] = 1e-45
    structure = structure if kind is DenseSources else as_cells(structure)
    double, single = (kind(structure, SERIAL, precision=name).gather(W, Ht) for name in ("float64", "float32"))
    np.testing.assert_allclose(single.of_W, double.of_W, rtol=1e-5)
    np.testing.assert_allclose(single.of_H, double.of_H, rtol=1e-5)
    np.testing.assert_allclose(single.log_mean, double.log_mean, rtol=1e-6)


@pytest.mark.parametrize("kind", [DenseSources, SparseSources])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_threads_do_not_change_a_bit(kind, precision):
    structure, W, Ht = make(300, 500, 5)
    structure = structure if kind is DenseSources else as_cells(structure)
    sources = kind(structure, SERIAL)
    assert (len(sources.bounds) - 1 if kind is DenseSources else sources.layout.n_chunks) > 1
    workers = Workers(3)
    alone, together = (kind(structure, w, precision=precision).gather(W, Ht) for w in (SERIAL, workers))
    workers.close()
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [DenseSources, SparseSources])
@pytest.mark.parametrize("background", [False, True])
def test_means_that_underflow_are_shared_by_their_logarithms(kind, background):
    structure, W, Ht = make(7, 6, 3, background=background)
    if background:
        structure.likelihood.background[:] = 0.0
        structure.likelihood.background[0] = 1e-3
    log_W, log_Ht = np.log(W), np.log(Ht)
    log_W[:3] -= 900.0 + np.arange(3) * 3
    log_Ht[2] -= 300.0
    structure = structure if kind is DenseSources else as_cells(structure)
    of_W, of_H, log_mean = kind(structure, SERIAL).gather(np.exp(log_W), np.exp(log_Ht), "WH", Logs(log_W, log_Ht))
    x, offset = make(7, 6, 3)[0].data.values, np.broadcast_to(offset_of(structure), (7, 6))
    with np.errstate(divide="ignore"):
        terms = np.concatenate([log_W[:, :, None] + log_Ht.T[None], np.log(offset)[:, None]], axis=1)
    log_means = np.logaddexp.reduce(terms, axis=1)
    C = x[:, None] * np.exp(terms - log_means[:, None])[:, :3]
    np.testing.assert_allclose(of_W, C.sum(axis=2), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(of_H, C.sum(axis=0).T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(log_mean, np.sum(x * log_means), rtol=1e-10)


def test_a_count_where_nothing_can_be_is_minus_infinity():
    structure, W, Ht = make(6, 5, 2)
    row = int(np.argmax(structure.data.values.sum(axis=1)))
    W[row] = 0.0
    for sources in (DenseSources(structure, SERIAL), SparseSources(as_cells(structure), SERIAL)):
        of_W, of_H, log_mean = sources.gather(W, Ht)
        assert log_mean == -np.inf
        assert np.all(np.isfinite(of_W))
        assert np.all(np.isfinite(of_H))


def test_compiled_kernels_equal_their_python():
    structure, W, Ht = make(190, 180, 4)
    sources = SparseSources(as_cells(structure), SERIAL)
    outs = []
    minor = padded_zeros(*Ht.shape, np.float64)
    minor.values[:, :4] = Ht
    for kernel in (kernels.gather, kernels.gather.py_func):
        of_major, of_minor = np.zeros_like(W), padded_zeros(*Ht.shape, np.float64)
        totals = [
            kernel(sources.layout, W, minor, chunk, of_major, of_minor) for chunk in range(sources.layout.n_chunks)
        ]
        outs.append((of_major, of_minor.values, np.array(totals)))
    for one, other in zip(*outs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_special_functions():
    x = np.concatenate([np.logspace(-300, 300, 4001), 1.0 + np.linspace(-1e-3, 1e-3, 101)])
    logs = np.array([fast_log(value) for value in x])
    np.testing.assert_allclose(logs, np.log(x), rtol=4e-16, atol=4e-16)
    a = np.concatenate([np.logspace(-12, 15, 3001), np.linspace(0.9, 3.1, 301)])
    digamma, log_gamma = np.array([digamma_and_log_gamma(value) for value in a]).T
    # near their roots the terms of the recurrence, of size log(a + 8) and (a + 8) log(a + 8) ~ 17, leave their rounding
    assert np.max(np.abs(digamma - psi(a)) / np.maximum(np.abs(psi(a)), 2.0)) < 2e-15
    assert np.max(np.abs(log_gamma - gammaln(a)) / np.maximum(np.abs(gammaln(a)), 17.0)) < 2e-15


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("tall_rate", [False, True])
def test_moments_of_gammas(rows, tall_rate):
    rng = np.random.default_rng(1)
    shape = rng.gamma(0.3, 5.0, (rows, 5)) + 1e-3
    rate = rng.gamma(2.0, 1.0, (rows if tall_rate else 1, 5))
    mean, log, own = (np.full_like(shape, np.nan) for _ in range(3))
    middle = rows // 2
    parts = [fill_moments(mean, log, own, shape, rate, np.log(rate), *at) for at in ((0, middle), (middle, rows))]
    expected = naive.gamma_moments(shape, rate)
    for got, wanted in zip((mean, log, sum(parts)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tall", [False, True])
def test_update_rows(tall):
    """In one piece and in two, with rows without denominator and cells that end at the floor."""
    rng = np.random.default_rng(3)
    old, numerator = rng.gamma(1.0, size=(2, 7, 5))
    numerator[2, 3] = 0.0
    denominator, power = rng.gamma(1.0, size=(2, 7 if tall else 1, 5))
    power[:, 3] = 0.0
    if tall:
        denominator[4] = 0.0
    expected = naive.multiplicative_update(old, numerator, denominator, power, FLOOR)
    new, top = np.full_like(old, np.nan), largest_of_columns(old)
    residuals = [update_rows(new, old, numerator, denominator, power, top, *rows) for rows in ((0, 3), (3, 7))]
    np.testing.assert_allclose(new, expected[0], rtol=1e-15)
    np.testing.assert_allclose(max(residuals), expected[1], rtol=1e-14)
    np.testing.assert_array_equal(top, old.max(axis=0))


def test_residuals():
    rng = np.random.default_rng(2)
    for rows in (1, 2, 33):
        old, new = rng.gamma(0.5, 1.0, (2, rows, 5)) + 1e-9
        np.testing.assert_allclose(largest_change(old, new, 1e-300), naive.largest_change(old, new, 1e-300), rtol=1e-14)
        np.testing.assert_allclose(largest_slope(old, new), naive.largest_slope(old, new), rtol=1e-14)
    assert largest_change(np.zeros((3, 2)), np.zeros((3, 2)), 1e-300) == 0.0
    assert largest_slope(old, old) == 0.0

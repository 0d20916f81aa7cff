"""Expected sources: kernels against the obvious formula, dense against sparse, one thread against many."""

import dataclasses

import numpy as np
import pytest
from scipy.special import gammaln, psi

from nmf_zoo.inference.sources import DenseSources, Logs, SparseSources
from nmf_zoo.inference.workers import SERIAL, Workers
from nmf_zoo.kernels import sources as kernels
from nmf_zoo.kernels.special import fast_log, gamma_functions
from nmf_zoo.structure import Cells
from tests import naive
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


@pytest.mark.parametrize("kind", [DenseSources, SparseSources])
def test_threads_do_not_change_a_bit(kind):
    structure, W, Ht = make(300, 400, 5)
    structure = structure if kind is DenseSources else as_cells(structure)
    assert kind is DenseSources or kind(structure, SERIAL).layout.n_chunks > 1
    workers = Workers(3)
    alone, together = (kind(structure, w).gather(W, Ht) for w in (SERIAL, workers))
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
    for kernel in (kernels.gather, kernels.gather.py_func):
        of_major, of_minor = np.zeros_like(W), np.zeros_like(Ht)
        totals = [kernel(sources.layout, W, Ht, chunk, of_major, of_minor) for chunk in range(sources.layout.n_chunks)]
        outs.append((of_major, of_minor, np.array(totals)))
    for one, other in zip(*outs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_special_functions():
    x = np.concatenate([np.logspace(-300, 300, 4001), 1.0 + np.linspace(-1e-3, 1e-3, 101)])
    logs = np.array([fast_log(value) for value in x])
    np.testing.assert_allclose(logs, np.log(x), rtol=4e-16, atol=4e-16)
    a = np.concatenate([np.logspace(-12, 15, 3001), np.linspace(0.9, 3.1, 301)])
    digamma, log_gamma = np.empty_like(a), np.empty_like(a)
    gamma_functions(a, digamma, log_gamma)
    # near their roots the terms of the recurrence, of size log(a + 8) and (a + 8) log(a + 8) ~ 17, leave their rounding
    assert np.max(np.abs(digamma - psi(a)) / np.maximum(np.abs(psi(a)), 2.0)) < 2e-15
    assert np.max(np.abs(log_gamma - gammaln(a)) / np.maximum(np.abs(gammaln(a)), 17.0)) < 2e-15

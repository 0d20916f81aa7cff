"""How data lie in memory: nothing lost, nothing added, whatever the orientation, mask and spelling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.shared import layout as layouts
from nmf_zoo.inference.shared.layout import compress, likelihood_constant, weigh
from nmf_zoo.structure import Cells, log_factorial
from tests.structures import gamma, model

RNG = np.random.default_rng(3)
SHAPES = [(6, 4), (4, 6), (5, 5), (1, 7), (7, 1), (1, 1)]
PRIORS = gamma(1.0, 1.0), gamma(1.0, 1.0)


def build(x, **options):
    return model(x, 2, *PRIORS, **options)


def unpack(layout, shape):
    """Back to a dense matrix, and the offset of each cell."""
    major = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr))
    rows, cols = layout.sides(major, layout.indices)
    x, offset = np.zeros(shape), np.zeros(shape)
    x[rows, cols] = layout.values
    if layout.offset.size:
        offset[rows, cols] = layout.offset
    return x, offset


def as_cells(x, is_complete, mask=None):
    rows, cols = np.nonzero(x if is_complete else mask)
    order = RNG.permutation(len(rows))
    rows, cols = rows[order], cols[order]
    return Cells(rows=rows, cols=cols, values=x[rows, cols], shape=x.shape, is_complete=is_complete)


@pytest.mark.parametrize("shape", SHAPES)
def test_dense_data_survive(shape):
    x = RNG.poisson(1.0, shape).astype(float)
    layout = compress(build(x))
    assert layout.by_features == (shape[0] >= shape[1])
    assert len(layout.values) == np.count_nonzero(x)
    np.testing.assert_array_equal(unpack(layout, shape)[0], x)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_complete", [True, False])
def test_listed_cells_equal_dense_ones(shape, is_complete):
    x, mask = RNG.poisson(1.0, shape).astype(float), RNG.random(shape) < 0.7
    x = x if is_complete else x * mask
    dense = compress(build(x, mask=None if is_complete else mask))
    listed = compress(build(x, data=as_cells(x, is_complete, mask)))
    for left, right in zip(dense, listed, strict=True):
        np.testing.assert_array_equal(left, right)


def test_listed_zeros_are_no_counts():
    data = Cells(
        rows=np.array([0, 1]), cols=np.array([1, 0]), values=np.array([0.0, 3.0]), shape=(2, 2), is_complete=True
    )
    assert len(compress(build(np.zeros((2, 2)), data=data)).values) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_offset_is_background_over_exposure(shape):
    x, background, exposure = RNG.poisson(1.0, shape) + 1.0, RNG.gamma(1.0, 1.0, shape[1:]), RNG.gamma(2.0, 1.0, shape)
    layout = compress(build(x, background=background, exposure=exposure))
    np.testing.assert_allclose(unpack(layout, shape)[1], background / exposure, rtol=1e-15)
    assert compress(build(x, exposure=exposure)).offset.size == 0


@pytest.mark.parametrize("rate", [0.0, 0.01, 5.0])
def test_chunks_cover_the_long_side_once(rate, monkeypatch):
    monkeypatch.setattr(layouts, "CHUNK_NONZEROS", 10)
    layout = compress(build(RNG.poisson(rate, (40, 9)).astype(float)))
    assert layout.chunks[0] == 0
    assert layout.chunks[-1] == 40
    assert np.all(np.diff(layout.chunks) >= 0)
    assert 1 <= layout.n_chunks <= layouts.MOST_CHUNKS
    if rate == 5.0:
        assert layout.n_chunks == layouts.MOST_CHUNKS
        assert np.ptp(np.diff(layout.indptr[layout.chunks])) <= 2 * 9


def test_one_full_row_takes_one_chunk(monkeypatch):
    """A row can't be cut: its chunk is large and others are empty, but every row is in one."""
    monkeypatch.setattr(layouts, "CHUNK_NONZEROS", 2)
    x = np.zeros((30, 20))
    x[7] = 1.0
    layout = compress(build(x))
    assert sorted(np.diff(layout.chunks).tolist())[-1] <= 30
    assert np.sum(np.diff(layout.chunks)) == 30


def test_sides_is_its_own_inverse():
    for shape in ((3, 2), (2, 3)):
        layout = compress(build(np.ones(shape)))
        assert layout.sides(*layout.sides("features", "samples")) == ("features", "samples")


@pytest.mark.parametrize("spelling", ["dense", "mask", "cells", "sparse"])
@pytest.mark.parametrize("background", [False, True])
def test_likelihood_constant(spelling, background):
    """sum x log(W H + offset) - sum weight W H + constant is the Poisson log-likelihood."""
    shape = (5, 4)
    x, mask = RNG.poisson(1.5, shape).astype(float), RNG.random(shape) < 0.7
    if spelling in ("mask", "cells"):
        x *= mask
    data = {"cells": as_cells(x, False, mask), "sparse": as_cells(x, True)}.get(spelling)
    exposure, back = RNG.gamma(2.0, 1.0, shape), RNG.gamma(1.0, 1.0, shape) * background
    structure = build(
        x,
        mask=mask if spelling == "mask" else None,
        exposure=exposure,
        background=back if background else None,
        data=data,
    )
    W, H = RNG.gamma(1.0, 1.0, (5, 2)), RNG.gamma(1.0, 1.0, (2, 4))
    mean = exposure * (W @ H) + back
    seen = mask if spelling in ("mask", "cells") else np.ones(shape, dtype=bool)
    expected = np.sum((xlogy(x, mean) - mean - gammaln(x + 1))[seen])
    varying = np.sum(xlogy(x, W @ H + back / exposure)) - weigh(structure).total(W, H.T)
    np.testing.assert_allclose(varying + likelihood_constant(structure), expected, rtol=1e-12)


@pytest.mark.parametrize("largest", [3, 4095, 4096, 1e6, 1e17])
@pytest.mark.parametrize("step", [1.0, 0.5])
def test_log_factorials_are_those_of_the_gamma_function(largest, step):
    """To the bit: of small whole numbers they are looked up."""
    x = largest - step * np.arange(4.0)
    assert log_factorial(x[x >= 0]).tolist() == gammaln(x[x >= 0] + 1).tolist()

"""Rows in SIMD registers: machine code against the Python it stands for, at the edges of matrices and tiles."""

import numpy as np
import pytest
from numba import njit

from nmf_zoo.kernels.simd.lanes import (
    MOST_VECTORS,
    VECTOR_BYTES,
    add_scaled,
    dot,
    load,
    load_some,
    nothing,
    padded_zeros,
    store,
    store_product,
    tile_lanes,
)

RANKS = [1, 4, 7, 8, 9, 10, 16, 20, 27, 29, 63, 64, 65, 130]


def work(padded, matrix, i, out):
    """Every function at row i, tile by tile. Returns the inner product of the two rows."""
    total = 0.0
    for k in range(0, padded.values.shape[1], tile_lanes(padded)):
        some, row = load_some(matrix, i, k, padded), load(padded, i, k)
        total += dot(some, row)
        store(padded, i, k, add_scaled(nothing(row), 0.25, add_scaled(row, 2.0, some)))
        store_product(out, i, k, load(padded, i, k), matrix)
    return total


compiled = njit(work)


def example(rank, dtype, rows=3):
    rng = np.random.default_rng(rank)
    padded, matrix = padded_zeros(rows, rank, dtype, shift=5), rng.random((rows, rank))
    padded.values[:, :rank] = rng.random((rows, rank))
    return padded, matrix, np.full((rows, rank), np.nan)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_machine_code_equals_python(rank, dtype):
    results = []
    for function in (work, compiled):
        padded, matrix, out = example(rank, dtype)
        products = [function(padded, matrix, i, out) for i in range(3)]
        results.append((np.array(products), padded.values.copy(), out))
    rtol = 1e-14 if dtype is np.float64 else 1e-6
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol)


@pytest.mark.parametrize("rank", RANKS)
def test_nothing_is_read_or_written_beyond_a_row(rank):
    padded, matrix, out = example(rank, np.float64)
    before = padded.values.copy()
    compiled(padded, matrix, 1, out)
    assert np.all(np.isnan(out[[0, 2]]))
    assert np.all(np.isfinite(out[1]))
    np.testing.assert_array_equal(padded.values[[0, 2]], before[[0, 2]])
    assert np.all(padded.values[:, rank:] == 0.0)
    matrix[[0, 2]] = np.nan
    assert np.isfinite(compiled(padded, matrix, 1, out))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_padded_matrices_are_whole_tiles_on_a_boundary(rank, dtype):
    for shift in (0, 5):
        padded = padded_zeros(3, rank, dtype, shift)
        assert padded.values.ctypes.data % 4096 == shift * VECTOR_BYTES
        assert padded.values.flags.c_contiguous
        assert len(padded.width) <= MOST_VECTORS
        assert rank <= padded.values.shape[1] < rank + tile_lanes(padded)
        assert padded.values.shape[1] % tile_lanes(padded) == 0


@pytest.mark.parametrize(("rank", "dtype", "lanes"), [(10, float, 12), (10, np.float32, 16), (50, float, 56)])
def test_rows_waste_few_lanes(rank, dtype, lanes):
    assert padded_zeros(2, rank, dtype).values.shape[1] == lanes

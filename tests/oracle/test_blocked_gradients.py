"""The SIMD kernel over a grid of counts against NumPy, for every rank with code of its own and beyond."""

from __future__ import annotations

import numpy as np
import pytest

from nmf_zoo.kernels.simd.blocked_gradients import CELLS, LANES, MOST_IN_REGISTERS, gradient_of_grid

RNG = np.random.default_rng(9)


def grid(cells, rows, rank):
    other, values = RNG.gamma(1.0, size=(cells, rank)), RNG.gamma(1.0, size=(rank, rows))
    return other, RNG.poisson(3.0, (cells, rows)).astype(float), values, RNG.gamma(1.0, size=(cells, rows))


@pytest.mark.parametrize("rank", [*range(1, MOST_IN_REGISTERS + 3), 23])
@pytest.mark.parametrize("cells", [1, CELLS - 1, CELLS, 2 * CELLS + 1])
@pytest.mark.parametrize("blocks", [1, 3])
def test_gradient_of_grid(cells, rank, blocks):
    other, counts, values, offset = grid(cells, blocks * LANES, rank)
    means, gradient = offset.copy(), np.full((rank, blocks * LANES), np.nan)
    gradient_of_grid(other, counts, values, means, gradient)
    np.testing.assert_allclose(means, other @ values + offset, rtol=1e-13)
    np.testing.assert_allclose(gradient, other.T @ (counts / (other @ values + offset)), rtol=1e-13)


def test_gradient_of_grid_equals_its_python():
    other, counts, values, offset = grid(5, 2 * LANES, 3)
    results = []
    for kernel in (gradient_of_grid, gradient_of_grid.py_func):
        means, gradient = offset.copy(), np.full((3, 2 * LANES), np.nan)
        kernel(other, counts, values, means, gradient)
        results.append((means, gradient))
    for left, right in zip(*results, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-13)

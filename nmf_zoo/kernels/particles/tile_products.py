"""A matrix times the particles of a tile: sums of a few rows at a time, in SIMD lanes along the particles."""

from __future__ import annotations

from numba import njit

from nmf_zoo.kernels.basis_states import in_lanes


@in_lanes
def multiply(out, matrix, x, n):
    """Overwrite the first n columns of out with matrix @ x."""
    for k in range(x.shape[0]):
        combine(out[k], matrix[k], x, 0, x.shape[0], n)


@in_lanes
def multiply_upper(out, R, x, n):
    """Overwrite the first n columns of out with R @ x, R upper triangular."""
    for k in range(x.shape[0]):
        combine(out[k], R[k], x, k, x.shape[0], n)


@in_lanes
def multiply_transposed(out, R, x, n):
    """Overwrite the first n columns of out with R' @ x, R upper triangular."""
    for k in range(x.shape[0]):
        combine(out[k], R[:, k], x, 0, k + 1, n)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, forceinline=True)
def combine(out, weights, x, first, last, n):
    """out_i = sum_j weights_j x_ji, j from ``first`` to ``last``, four at a time."""
    for i in range(n):
        out[i] = 0.0
    j = first
    while j + 4 <= last:
        a, b, c, d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for i in range(n):
            out[i] += (a * x[j, i] + b * x[j + 1, i]) + (c * x[j + 2, i] + d * x[j + 3, i])
        j += 4
    while j < last:
        for i in range(n):
            out[i] += weights[j] * x[j, i]
        j += 1

"""Expected sources at the non-zero cells: each count is shared among its components in proportion to w_f * h_n.

``major`` and ``minor`` are the factors of a :class:`nmf_zoo.inference.layout.Layout`'s two sides, (rows, K). With
ratio = x / (u_i . v_j + offset) the gathered sums are::

    of_major_i = sum_j ratio v_j      (major, K), overwritten at the chunk's rows
    of_minor_j = sum_i ratio u_i      (minor, K), added to

and the expected sources, summed, are u * of_major and v * of_minor. The kernels return (sum of x log mean, number of
cells whose mean is too small to divide by): these cells are left out of all three sums.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from nmf_zoo.kernels.special import fast_log

SMALLEST = 1e-200  # means below it may have lost terms to underflow
SUMS = {"reassoc", "contract"}  # let sums run in SIMD lanes; NaN and infinity keep their meaning


@njit(cache=True, nogil=True, fastmath=SUMS)
def _dot(u, v):
    total = 0.0
    for k in range(u.size):
        total += u[k] * v[k]
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
def _divide(x, means):
    """Overwrite means with x / means. Returns (sum x log means, cells left out)."""
    total, lost = 0.0, 0
    for c in range(x.size):
        fine = means[c] >= SMALLEST
        mean = means[c] if fine else 1.0
        share = x[c] if fine else 0.0
        total += share * fast_log(mean)
        means[c] = share / mean
        lost += 0 if fine or x[c] == 0.0 else 1
    return total, lost


@njit(cache=True, nogil=True)
def divide(x, means):
    """Overwrite means (rows, cols) with x / means, 0 where x is. Returns (sum x log means, cells left out)."""
    total, lost = 0.0, 0
    for i in range(x.shape[0]):
        row_total, row_lost = _divide(x[i], means[i])
        total += row_total
        lost += row_lost
    return total, lost


@njit(cache=True, nogil=True)
def _longest_row(layout, chunk):
    longest = 0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        longest = max(longest, layout.indptr[i + 1] - layout.indptr[i])
    return longest


@njit(cache=True, nogil=True)
def _row_ratios(layout, u, minor, i, ratios):
    """Overwrite ratios (row's cells) with x / mean."""
    first = layout.indptr[i]
    for c in range(ratios.size):
        ratios[c] = _dot(u, minor[layout.indices[first + c]])
    if layout.offset.size > 0:
        for c in range(ratios.size):
            ratios[c] += layout.offset[first + c]
    return _divide(layout.values[first : first + ratios.size], ratios)


@njit(cache=True, nogil=True)
def gather(layout, major, minor, chunk, of_major, of_minor):
    """Gather the sums of a chunk; None for a side that isn't wanted, and the compiler leaves its loops out."""
    buffer, total, lost = np.empty(_longest_row(layout, chunk)), 0.0, 0
    for i in range(layout.chunks[chunk], layout.chunks[chunk + 1]):
        first, u = layout.indptr[i], major[i]
        ratios = buffer[: layout.indptr[i + 1] - first]
        row_total, row_lost = _row_ratios(layout, u, minor, i, ratios)
        total += row_total
        lost += row_lost
        if of_major is not None:
            out_u = of_major[i]
            out_u[:] = 0.0
        for c in range(ratios.size):
            j, ratio = layout.indices[first + c], ratios[c]
            if of_major is not None:
                v = minor[j]
                for k in range(u.size):
                    out_u[k] += ratio * v[k]
            if of_minor is not None:
                out_v = of_minor[j]
                for k in range(u.size):
                    out_v[k] += ratio * u[k]
    return total, lost

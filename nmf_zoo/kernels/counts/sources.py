"""Expected sources at the non-zero cells: each count is shared among its components in proportion to w_f * h_n.

``major`` and ``minor`` are the factors of a :class:`nmf_zoo.inference.shared.layout.Layout`'s two sides. With
ratio = x / (u_i . v_j + offset) the gathered sums are::

    of_major_i = u_i * sum_j ratio v_j      (major, K), overwritten at the chunk's rows: expected sources
    of_minor_j = sum_i ratio u_i            like minor, overwritten: times v_j they are expected sources

Rows of the minor side are met again and again: it is :class:`nmf_zoo.kernels.simd.lanes.Padded`, and its precision is
that of the work at the cells. A few rows of the major side at a time go through means, ratios and sums, while the rows
they meet are still in cache. The kernels return (sum of x log mean, sum of the counts left out): counts whose mean is
too small to divide by are left out of all three sums.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.compile import kernel, summing
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.simd.lanes import add_scaled, dot, load, load_some, nothing, store, store_product, tile_lanes

SMALLEST, SMALLEST_SINGLE = 1e-200, 1e-30  # see smallest_mean
BLOCK = 256  # cells of the rows that are taken together, about


@kernel
def gather(layout, major, minor, chunk, of_major, of_minor):
    """Gather the sums of a chunk; None for a side that isn't wanted, and the compiler leaves its loops out."""
    if of_minor is not None:
        of_minor.values[:] = 0.0
    start, last = layout.chunks[chunk], layout.chunks[chunk + 1]
    ratios = np.empty(max(BLOCK, longest_row(layout.indptr, start, last)), minor.values.dtype)
    total, lost = 0.0, 0.0
    while start < last:
        stop = _end_of_block(layout.indptr, start, last, ratios.size)
        x = layout.values[layout.indptr[start] : layout.indptr[stop]]
        fill_means(ratios, layout, major, minor, start, stop)
        block_total, block_lost = divide_cells(x, ratios)
        total += block_total
        lost += block_lost
        share_cells(ratios, layout, major, minor, (start, stop), of_major, of_minor)
        start = stop
    return total, lost


@kernel
def fill_means(means, layout, major, minor, start, stop):
    """Overwrite the first of means with u_i . v_j + offset at the cells of the major rows from start to stop."""
    indptr, indices, offset = layout.indptr, layout.indices, layout.offset
    first, columns, tile = indptr[start], minor.values.shape[1], tile_lanes(minor)
    for i in range(start, stop):
        u = load_some(major, i, 0, minor)
        for c in range(indptr[i], indptr[i + 1]):
            means[c - first] = dot(u, load(minor, indices[c], 0))
        for k in range(tile, columns, tile):
            u = load_some(major, i, k, minor)
            for c in range(indptr[i], indptr[i + 1]):
                means[c - first] += dot(u, load(minor, indices[c], k))
    if offset.size > 0:
        for c in range(first, indptr[stop]):
            means[c - first] += offset[c]


@kernel
def share_cells(ratios, layout, major, minor, block, of_major, of_minor):
    """Gather the sums of the major rows from block[0] to block[1], whose ratios are the first of ``ratios``."""
    indptr, indices = layout.indptr, layout.indices
    first, columns, tile = indptr[block[0]], minor.values.shape[1], tile_lanes(minor)
    for i in range(block[0], block[1]):
        for k in range(0, columns, tile):
            u = load_some(major, i, k, minor)
            sums = nothing(u)
            for c in range(indptr[i], indptr[i + 1]):
                j, ratio = indices[c], ratios[c - first]
                if of_major is not None:
                    sums = add_scaled(sums, ratio, load(minor, j, k))
                if of_minor is not None:
                    store(of_minor, j, k, add_scaled(load(of_minor, j, k), ratio, u))
            if of_major is not None:
                store_product(of_major, i, k, sums, major)


@kernel
def smallest_mean(means):
    """Means below it may have lost terms to underflow."""
    return SMALLEST if means.itemsize == 8 else SMALLEST_SINGLE


@summing
def divide_cells(x, means):
    """Overwrite the first of means with x / means. Returns (sum x log means, sum of the counts left out)."""
    low, total, smallest = 0.0, 0.0, smallest_mean(means)
    for c in range(x.size):
        low += 1.0 if means[c] < smallest else 0.0
    if low > 0.0:
        return _divide_what_can_be(x, means, smallest)
    for c in range(x.size):
        mean = means[c]
        total += x[c] * fast_log(mean)
        means[c] = x[c] / mean
    return total, 0.0


@summing
def _divide_what_can_be(x, means, smallest):
    total, lost = 0.0, 0.0
    for c in range(x.size):
        low = means[c] < smallest
        mean = 1.0 if low else means[c]
        share = 0.0 if low else x[c]
        total += share * fast_log(mean)
        lost += x[c] - share
        means[c] = share / mean
    return total, lost


@kernel
def divide(x, means):
    """Overwrite means (rows, columns) with x / means, 0 where x is. Returns as :func:`divide_cells` does."""
    total, lost = 0.0, 0.0
    for i in range(x.shape[0]):
        row_total, row_lost = divide_cells(x[i], means[i])
        total += row_total
        lost += row_lost
    return total, lost


@kernel
def longest_row(indptr, start, last):
    """The most cells that a row from start to last has."""
    longest = 0
    for i in range(start, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    return longest


@kernel
def _end_of_block(indptr, start, last, most_cells):
    stop = start + 1
    while stop < last and indptr[stop + 1] - indptr[start] <= most_cells:
        stop += 1
    return stop

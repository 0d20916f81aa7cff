"""The counts as the rows of one factor see them: each row's means, and what pulls on its components.

Given the other factor u the rows v_i of a factor are independent, and of row i the log-likelihood is::

    sum_c x_ci log m_ci - sum_k rate_ki v_ki       m_ci = sum_k u_ck v_ki + offset_ci,  rate_ki = sum_c weight_ci u_ck

(weight = mask * exposure, offset = background / exposure): cells without counts enter through the rates alone. Its
gradient is pull - rate with pull_ki = sum_c u_ck x_ci / m_ci.

Rows are cut into blocks of equal width, a multiple of eight, one row in each SIMD lane; arrays of a block are
(K, width). The last block is filled up with rows that have no counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from nmf_zoo.kernels.grid import pull_of_grid
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import kernel

SUMS = {"reassoc", "nsz", "contract"}  # sums in SIMD lanes
in_lanes = njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)


class RowCounts(NamedTuple):
    """The data, by row. ``grid`` has cells if they are dense; else they are in ``layout``.

    Attributes
    ----------
    grid : (blocks, cells, width) the counts, 0 where not observed; or size 0
    offset : the same of background / exposure, or size 0 for none
    layout : a :class:`nmf_zoo.inference.layout.Layout` whose major side are these rows
    """

    grid: np.ndarray
    offset: np.ndarray
    layout: Any


@kernel
def pull(data, other, block, values, means, pulls):
    """Overwrite means (the block's cells, flat) with those at ``values`` (K, width), and pulls (K, width).

    ``other`` is (cells, K), contiguous.
    """
    pull_into(data, other, block, values, table_of(data, block, values.shape[1], means), pulls)


@kernel
def pull_into(data, other, block, values, table, pulls):
    """The same with the means as a :func:`table_of` the block, which callers may keep."""
    if data.grid.size > 0:
        if data.offset.size > 0:
            table[:] = data.offset[block]
        else:
            table[:] = 0.0
        pull_of_grid(other, data.grid[block], values, table, pulls)
    else:
        _pull_of_cells(data.layout, other, block, values, table[:, 0], pulls)


@kernel
def table_of(data, block, width, flat):
    """The beginning of a flat array as a table with a place for each cell of a block: (cells, width), or (cells, 1)."""
    if data.grid.size > 0:
        n_cells = data.grid.shape[1]
        return flat[: n_cells * width].reshape(n_cells, width)
    first, last = block_rows(data.layout, block, width)
    n_cells = data.layout.indptr[last] - data.layout.indptr[first]
    return flat[:n_cells].reshape(n_cells, 1)


@kernel
def block_rows(layout, block, width):
    """(first, last) row of a block."""
    return block * width, min((block + 1) * width, layout.indptr.size - 1)


@kernel
def _pull_of_cells(layout, other, block, values, means, pulls):
    rank, width = values.shape
    first, last = block_rows(layout, block, width)
    v, sums, start = np.empty(rank), np.empty(rank), layout.indptr[first]
    pulls[:] = 0.0
    for i in range(first, last):
        for k in range(rank):
            v[k] = values[k, i - first]
        begin, end = layout.indptr[i], layout.indptr[i + 1]
        _pull_of_row(layout, other, (begin, end), v, means[begin - start : end - start], sums)
        for k in range(rank):
            pulls[k, i - first] = sums[k]


@in_lanes
def _pull_of_row(layout, other, cells, v, means, sums):
    first, last = cells
    has_offset = layout.offset.size > 0
    sums[:] = 0.0
    for cell in range(first, last):
        u = other[layout.indices[cell]]
        mean = layout.offset[cell] if has_offset else 0.0
        for k in range(v.size):
            mean += u[k] * v[k]
        means[cell - first] = mean
        ratio = layout.values[cell] / mean
        for k in range(v.size):
            sums[k] += ratio * u[k]


@kernel
def add_log_ratios(data, block, means, before, out):
    """Add to out (width,) each row's sum of x log(means / before); both as :func:`pull` leaves them."""
    if data.grid.size > 0:
        after, start = table_of(data, block, out.size, means), table_of(data, block, out.size, before)
        _add_log_ratios(data.grid[block], after, start, out)
        return
    layout = data.layout
    first, last = block_rows(layout, block, out.size)
    start = layout.indptr[first]
    for i in range(first, last):
        begin, end = layout.indptr[i], layout.indptr[i + 1]
        inside = slice(begin - start, end - start)
        out[i - first] += _sum_log_ratios(layout.values[begin:end], means[inside], before[inside])


@in_lanes
def _add_log_ratios(counts, means, before, out):
    for c in range(counts.shape[0]):
        for b in range(out.size):
            out[b] += counts[c, b] * fast_log(means[c, b] / before[c, b])


@in_lanes
def _sum_log_ratios(counts, means, before):
    total = 0.0
    for c in range(counts.size):
        total += counts[c] * fast_log(means[c] / before[c])
    return total


@kernel
def add_curvature(data, other, block, means, slope, out):
    """Add slope_k slope_j sum_c (x / m^2) u_ck u_cj to out (K, K, width), k >= j; means as :func:`pull` leaves them.

    That is minus the second derivative of the log-likelihood in coordinates of which v has this slope (K, width), less
    what the bend of the coordinates adds.
    """
    if data.grid.size > 0:
        _add_curvature_of_grid(data.grid[block], other, means, slope, out)
    else:
        _add_curvature_of_cells(data.layout, other, block, means, slope, out)


@kernel
def add_plain_curvature(data, other, block, means, out):
    """Add sum_c (x / m^2) u_ck^2 to out (K, width)."""
    rank, width = out.shape
    if data.grid.size > 0:
        counts, share = data.grid[block], np.empty(width)
        for c in range(counts.shape[0]):
            _divide_squared(counts[c], means[c * width : (c + 1) * width], share)
            for k in range(rank):
                _add_scaled(out[k], other[c, k] * other[c, k], share)
        return
    layout = data.layout
    first, last = block_rows(layout, block, width)
    start = layout.indptr[first]
    for i in range(first, last):
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            u, mean = other[layout.indices[cell]], means[cell - start]
            for k in range(rank):
                out[k, i - first] += layout.values[cell] / (mean * mean) * u[k] * u[k]


@kernel
def _add_curvature_of_grid(counts, other, means, slope, out):
    rank, width = slope.shape
    share, sums = np.empty(width), np.zeros(out.shape)
    for c in range(counts.shape[0]):
        _divide_squared(counts[c], means[c * width : (c + 1) * width], share)
        for k in range(rank):
            for j in range(k + 1):
                _add_scaled(sums[k, j], other[c, k] * other[c, j], share)
    for k in range(rank):
        for j in range(k + 1):
            _add_product(out[k, j], sums[k, j], slope[k], slope[j])


@in_lanes
def _divide_squared(counts, means, out):
    for b in range(out.size):
        out[b] = counts[b] / (means[b] * means[b])


@in_lanes
def _add_scaled(out, factor, x):
    for b in range(out.size):
        out[b] += factor * x[b]


@in_lanes
def _add_product(out, x, y, z):
    for b in range(out.size):
        out[b] += x[b] * y[b] * z[b]


@kernel
def _add_curvature_of_cells(layout, other, block, means, slope, out):
    rank, width = slope.shape
    first, last = block_rows(layout, block, width)
    start = layout.indptr[first]
    for i in range(first, last):
        b = i - first
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            u, mean = other[layout.indices[cell]], means[cell - start]
            share = layout.values[cell] / (mean * mean)
            for k in range(rank):
                for j in range(k + 1):
                    out[k, j, b] += share * slope[k, b] * slope[j, b] * u[k] * u[j]

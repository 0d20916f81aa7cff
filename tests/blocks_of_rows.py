"""Row blocks of small problems, made by hand: dense or sparse, for the tests of the kernels that move rows."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.shared.layout import Layout
from nmf_zoo.kernels.hmc.poisson_rows import NO_CURVE, FactorRows, RowCounts, Stride, make_workspace

NO_LAYOUT = Layout(True, np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0), np.zeros(2, np.int64))
NO_GRID = np.empty((0, 0, 0))


def in_blocks(table, width, fill):
    """(R, rows) to (blocks, R, width)."""
    n_blocks = -(-table.shape[1] // width)
    out = np.full((len(table), n_blocks * width), fill, dtype=np.float64)
    out[:, : table.shape[1]] = table
    return np.ascontiguousarray(out.reshape(len(table), n_blocks, width).transpose(1, 0, 2))


def from_blocks(blocks, n_rows):
    """(blocks, R, width) to (R, rows)."""
    return blocks.transpose(1, 0, 2).reshape(blocks.shape[1], -1)[:, :n_rows]


def row_counts(x, offset, width, dense):
    """Counts x (rows, cells), with an offset of the same shape or None."""
    if dense:
        beside = NO_GRID if offset is None else in_blocks(offset.T, width, 1.0)
        return RowCounts(in_blocks(x.T, width, 0.0), beside, NO_LAYOUT)
    cells = sp.csr_array(x)
    cells.sort_indices()
    at = np.repeat(np.arange(len(x)), np.diff(cells.indptr)), cells.indices
    beside = np.empty(0) if offset is None else offset[at]
    layout = Layout(
        True, cells.indptr.astype(np.int64), cells.indices.astype(np.int32), cells.data.astype(np.float64), beside,
        np.array([0, len(x)]),
    )  # fmt: skip
    return RowCounts(NO_GRID, NO_GRID, layout)


def rows_of(v, shape, rate, width, curve=None, free=None):
    """Rows at v (K, rows); of a ``curve`` (K, rows), precisions of half-normal priors; ``free`` (K,), all if None."""
    blocks = [in_blocks(np.broadcast_to(table, v.shape), width, 1.0) for table in (v, shape, rate)]
    curves = NO_CURVE if curve is None else in_blocks(np.broadcast_to(curve, v.shape), width, 1.0)
    return FactorRows(
        *blocks, np.zeros((len(blocks[0]), width)), curves, np.ones(len(v), bool) if free is None else free
    )


def stride_of(scale, roots, step, length, width):
    """scale (K, rows), roots (rows, K, K) or None for the identity, step (rows,)."""
    rank = len(scale)
    root = np.empty((1, 0, 0, 0))
    if roots is not None:
        flat = in_blocks(roots.transpose(1, 2, 0).reshape(rank * rank, -1), width, 0.1)
        root = flat.reshape(len(flat), rank, rank, width)
    steps = in_blocks(step[None], width, 0.1)[:, 0].copy()
    return Stride(in_blocks(scale, width, 1.0), root, steps, np.array([length]))


def workspace_for(x, rank, width):
    """Enough for any block of x (rows, cells)."""
    return make_workspace(width * x.shape[1], rank, width)

"""The observed cells laid out by the rows of one side, for the kernel that draws multipliers and sources."""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.shared.layout import nonzero_cells
from nmf_zoo.kernels.overdispersed.multipliers import CellsOfRows
from nmf_zoo.structure import Array, Cells, Factorisation, Offset, Outer, broadcast
from nmf_zoo.structure.offsets import sides_of

NONE = np.zeros(0)


def cells_of_rows(structure: Factorisation, *, by_features: bool) -> CellsOfRows:
    """The cells that are not 0 where all others are zeros and have offsets by feature and sample; else all observed."""
    likelihood, shape = structure.likelihood, structure.shape
    exposure = outer(likelihood.exposure, 1.0, shape, by_features)
    background = outer(likelihood.background, 0.0, shape, by_features)
    is_complete = structure.data.is_complete and exposure is not None and background is not None
    rows, cols, values = nonzero_cells(structure) if is_complete else all_observed_cells(structure)
    own, other = (rows, cols) if by_features else (cols, rows)
    order = np.lexsort((other, own))
    n_rows = shape[0] if by_features else shape[1]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=n_rows))]).astype(np.int64)
    listed = (NONE, NONE)
    if not is_complete:
        at = rows[order], cols[order]
        listed = structure.exposure_at(*at), structure.background_at(*at)
        exposure = background = (NONE, NONE)
    assert exposure is not None
    assert background is not None
    ordered = other[order].astype(np.int64), values[order].astype(np.float64)
    return CellsOfRows(indptr, *ordered, np.array([is_complete]), *listed, *exposure, *background)


def all_observed_cells(structure: Factorisation) -> tuple[Array, Array, Array]:
    """(rows, cols, values), zeros of sparse data among them."""
    rows, cols, values = structure.observed_cells()
    if not (isinstance(structure.data, Cells) and structure.data.is_complete):
        return rows, cols, values
    table = np.zeros(structure.shape)
    table[rows, cols] = values
    rows, cols = np.indices(structure.shape).reshape(2, -1)
    return rows, cols, table.ravel()


def outer(offset: Offset | None, none: float, shape: tuple[int, int], by_features: bool) -> tuple[Array, Array] | None:
    """(rows,) and (columns,) whose product it is, rows being those of the side; None if it is no such product."""
    sides = Outer(of_features=np.full((1, 1), none), of_samples=np.ones((1, 1))) if offset is None else sides_of(offset)
    if sides is None:
        return None
    of_features = np.array(broadcast(sides.of_features[:, 0], shape[:1]), dtype=np.float64)
    of_samples = np.array(broadcast(sides.of_samples[0], shape[1:]), dtype=np.float64)
    return (of_features, of_samples) if by_features else (of_samples, of_features)

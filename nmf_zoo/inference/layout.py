"""How the data lie in memory for the kernels, and what the unobserved and the exposed cells weigh.

Factors travel as ``W (F, K)`` and ``Ht (N, K)``, the transpose of H: both with one row per feature or sample and the
components contiguous, so that every kernel is symmetric in the two sides.

The mean is ``exposure * (W @ H) + background``. Allocating a count to its sources only depends on the ratio of the two,
so a kernel sees one number per non-zero cell, ``offset = background / exposure``; exposure and mask meet again in
:class:`Weights`, ``weight = mask * exposure``, the denominators of every update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, xlogy

from nmf_zoo.structure import CHUNK, Array, Cells, Dense, Factorisation, is_rising, slices

MOST_CHUNKS, CHUNK_NONZEROS = 8, 1 << 14  # chunks depend on the data alone, so that no sum depends on the threads
LARGEST_INT32 = np.iinfo(np.int32).max

Side = TypeVar("Side")


class Layout(NamedTuple):
    """The non-zero observed cells, compressed along the longer side.

    Attributes
    ----------
    by_features : the major side (one ``indptr`` slot per row) is the features; else the samples
    indptr : (major + 1,) int64
    indices : (non-zeros,) int32, positions on the minor side
    values : (non-zeros,) float64
    offset : (non-zeros,) background / exposure, or (0,) when there is no background
    chunks : (n_chunks + 1,) int64, boundaries on the major side, about equal in non-zeros
    """

    by_features: bool
    indptr: Array
    indices: Array
    values: Array
    offset: Array
    chunks: Array

    @property
    def n_chunks(self) -> int:
        """Into how many pieces the work is cut."""
        return len(self.chunks) - 1

    def sides(self, of_features: Side, of_samples: Side) -> tuple[Side, Side]:
        """Order a pair (features', samples') as (major, minor); applied twice it is the identity."""
        return (of_features, of_samples) if self.by_features else (of_samples, of_features)


def compress(structure: Factorisation) -> Layout:
    """Lay out the non-zero observed cells of the data along the longer side; cells in that order are not copied."""
    rows, cols, values = nonzero_cells(structure)
    by_features = structure.shape[0] >= structure.shape[1]
    major, minor = (rows, cols) if by_features else (cols, rows)
    n_major, n_minor = sorted(structure.shape, reverse=True)
    if is_rising(major, minor):
        indptr = np.searchsorted(major, np.arange(n_major + 1, dtype=major.dtype))
        indices, values = (np.require(own, kind, ("C", "W")) for own, kind in ((minor, np.int32), (values, np.float64)))
    else:
        compressed = sp.csr_array((values, (major, minor)), shape=(n_major, n_minor))
        compressed.sort_indices()
        indptr, indices, values = compressed.indptr, compressed.indices.astype(np.int32, copy=False), compressed.data
    layout = _layout(by_features, indptr, indices, values, np.empty(0))
    return layout if structure.likelihood.background is None else layout._replace(offset=_offset_at(structure, layout))


def by_count(layout: Layout) -> Array:
    """The cells of each major row in the order of their values, numbered from the row's first: (non-zeros,) int32."""
    order = np.empty(len(layout.values), np.int32)
    for first, stop in pairwise(layout.chunks):
        cells, starts = slice(layout.indptr[first], layout.indptr[stop]), layout.indptr[first:stop]
        rows = np.repeat(np.arange(stop - first, dtype=np.int32), np.diff(layout.indptr[first : stop + 1]))
        order[cells] = np.lexsort((layout.values[cells], rows)) - (starts - cells.start)[rows]
    return order


def turn(layout: Layout, n_minor: int) -> Layout:
    """The same cells, compressed along the other side, of ``n_minor`` rows."""
    shape = len(layout.indptr) - 1, n_minor
    turned, offset = _turned(layout, layout.values, shape), layout.offset
    if offset.size:
        offset = _turned(layout, offset, shape).data
    return _layout(
        not layout.by_features, turned.indptr, turned.indices.astype(np.int32, copy=False), turned.data, offset
    )


def _turned(layout: Layout, values: Array, shape: tuple[int, int]) -> sp.csc_array:
    indptr = layout.indptr if len(values) > LARGEST_INT32 else layout.indptr.astype(np.int32)  # as indices: no copies
    return sp.csr_array((values, layout.indices, indptr), shape=shape).tocsc()


def _layout(by_features: bool, indptr: Array, indices: Array, values: Array, offset: Array) -> Layout:
    indptr = indptr.astype(np.int64)
    return Layout(by_features, indptr, indices, values, offset, _boundaries(indptr))


def nonzero_cells(structure: Factorisation) -> tuple[Array, Array, Array]:
    """(rows, cols, values) of the observed cells that are not 0."""
    if isinstance(structure.data, Dense):
        rows, cols = np.nonzero(structure.data.values)
        return rows, cols, structure.data.values[rows, cols]
    cells = structure.data
    if np.all(cells.values):
        return cells.rows, cells.cols, cells.values
    filled = cells.values != 0
    return cells.rows[filled], cells.cols[filled], cells.values[filled]


def _offset_at(structure: Factorisation, layout: Layout) -> Array:
    background, exposure = structure.likelihood.background, structure.likelihood.exposure
    major = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr))
    rows, cols = layout.sides(major, layout.indices)
    return structure.at_cells(background, rows, cols, 0.0) / structure.at_cells(exposure, rows, cols, 1.0)


def _boundaries(indptr: Array) -> Array:
    n_chunks = int(np.clip(indptr[-1] // CHUNK_NONZEROS, 1, MOST_CHUNKS))
    targets = np.linspace(0, indptr[-1], n_chunks + 1)
    boundaries = np.searchsorted(indptr, targets, side="left").astype(np.int64)
    boundaries[0], boundaries[-1] = 0, len(indptr) - 1
    return np.maximum.accumulate(boundaries)


@dataclass(frozen=True)
class Weights:
    """weight = mask * exposure, as it multiplies a factor: ones, an outer product, or a matrix.

    Attributes
    ----------
    of_features : (F, 1) or (1, 1); of_samples : (N, 1) or (1, 1)
        weight = of_features @ of_samples.T when ``matrix`` is None
    matrix : (F, N) array or CSR matrix, or None
    """

    of_features: Array
    of_samples: Array
    matrix: Array | sp.csr_array | None = None

    @property
    def are_ones(self) -> bool:
        """Whether every cell is observed without an exposure."""
        parts = self.of_features, self.of_samples
        return self.matrix is None and all(part.size == 1 and part[0, 0] == 1.0 for part in parts)

    def over_samples(self, Ht: Array) -> Array:
        """sum_n weight_fn h_kn: (F, K), or (1, K) when it is the same for all features."""
        if self.matrix is not None:
            return self.matrix @ Ht
        return self.of_features * _sum_rows(self.of_samples, Ht)

    def over_features(self, W: Array) -> Array:
        """sum_f weight_fn w_fk: (N, K), or (1, K) when it is the same for all samples."""
        if self.matrix is not None:
            return self.matrix.T @ W
        return self.of_samples * _sum_rows(self.of_features, W)

    def total(self, W: Array, Ht: Array) -> float:
        """sum_fn weight_fn (W H)_fn"""
        if self.matrix is not None:
            return float(np.sum(W * self.over_samples(Ht)))
        return float(_sum_rows(self.of_features, W) @ _sum_rows(self.of_samples, Ht))


def _sum_rows(weight: Array, factor: Array) -> Array:
    """sum_i weight_i factor_ik, (K,), for one weight (1, 1) or one for each row (rows, 1); a product is BLAS's."""
    return (weight[:, 0] if len(weight) == len(factor) else np.full(len(factor), weight[0, 0])) @ factor


def weigh(structure: Factorisation) -> Weights:
    """The weights of a structure's mask and exposure."""
    data, exposure = structure.data, structure.likelihood.exposure
    exposure = np.ones((1, 1)) if exposure is None else np.atleast_2d(exposure)
    if isinstance(data, Cells) and not data.is_complete:
        weight = structure.at_cells(exposure, data.rows, data.cols, 1.0)
        return Weights(*_ones(), sp.csr_array((weight, (data.rows, data.cols)), shape=structure.shape))
    if isinstance(data, Dense) and data.mask is not None:
        return Weights(*_ones(), data.mask * np.broadcast_to(exposure, structure.shape))
    if exposure.shape[0] == 1:
        return Weights(np.ones((1, 1)), np.ascontiguousarray(exposure.T, dtype=np.float64))
    if exposure.shape[1] == 1:
        return Weights(np.asarray(exposure, dtype=np.float64), np.ones((1, 1)))
    return Weights(*_ones(), np.array(np.broadcast_to(exposure, structure.shape), dtype=np.float64))


def _ones() -> tuple[Array, Array]:
    return np.ones((1, 1)), np.ones((1, 1))


def background_of_samples(structure: Factorisation) -> Array | float:
    """The sum of the background over each sample's observed cells, (N,)."""
    background, data = structure.likelihood.background, structure.data
    if background is None:
        return 0.0
    full = np.broadcast_to(background, structure.shape)
    if isinstance(data, Cells) and not data.is_complete:
        return np.bincount(data.cols, full[data.rows, data.cols], structure.shape[1])
    return full.sum(axis=0, where=data.mask if isinstance(data, Dense) and data.mask is not None else True)


def likelihood_constant(structure: Factorisation) -> float:
    """What the Poisson log-likelihood holds beside the factors.

    log p(X | W, H) = sum_nonzero x log((W H) + offset) - sum weight (W H) + this constant.
    """
    constant = sum(float(np.sum(xlogy(x, exposure) - gammaln(x + 1))) for x, exposure in _counts(structure))
    if structure.likelihood.background is None:
        return constant
    background = np.broadcast_to(structure.likelihood.background, structure.shape)
    if isinstance(structure.data, Dense):
        return constant - float(np.sum(background, where=True if structure.data.mask is None else structure.data.mask))
    if structure.data.is_complete:
        return constant - float(np.sum(background))
    return constant - float(np.sum(background[structure.data.rows, structure.data.cols]))


def _counts(structure: Factorisation) -> Iterator[tuple[Array, Array]]:
    """Yields (counts, their exposures), missing cells as 0, part by part."""
    data, exposure = structure.data, structure.likelihood.exposure
    if isinstance(data, Dense):
        exposure = np.broadcast_to(1.0 if exposure is None else exposure, structure.shape)
        height = max(1, CHUNK // max(1, structure.shape[1]))
        for part in slices(len(data.values), height):
            yield data.values[part], exposure[part]
        return
    for part in slices(len(data.values), CHUNK):
        yield data.values[part], structure.at_cells(exposure, data.rows[part], data.cols[part], 1.0)

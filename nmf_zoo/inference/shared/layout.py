"""How the data lie in memory for the kernels, and what the unobserved and the exposed cells weigh.

Factors travel as ``W (F, K)`` and ``Ht (N, K)``, the transpose of H: both with one row per feature or sample and the
components contiguous, so that every kernel is symmetric in the two sides.

The mean is ``exposure * (W @ H) + background``. Allocating a count to its sources only depends on the ratio of the two,
so a kernel sees one number per non-zero cell, ``offset = background / exposure``; exposure and mask meet again in
:class:`Weights`, ``weight = mask * exposure``, the denominators of every update.

**Expected sources** E[C] of Poisson data, summed over either side, are what EM and VB need of X, and all they need::

    E[c_fkn] = x_fn w_fk h_kn / ((W H)_fn + offset_fn),     0/0 := 0

Lists of cells go through the sparse kernels in O(non-zeros * K), dense data through BLAS in blocks. Work is cut into
chunks of the longer side that depend on the data alone, and their sums over it are added in order: results don't depend
on the threads. In single precision the factors are rounded to float32 and the sums at the cells are float32; what comes
out is float64 again, and sum x log mean is accumulated in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp

from nmf_zoo.errors import RunFailed
from nmf_zoo.kernels.counts.sources import divide, fill_means, gather, smallest_mean
from nmf_zoo.kernels.simd.lanes import Padded, padded_zeros
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import (
    CHUNK,
    Array,
    Cells,
    Dense,
    Factorisation,
    Outer,
    even_bounds,
    is_rising,
    slices,
    total_of,
)

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


def compress(structure: Factorisation, by_features: bool | None = None, with_offset: bool = True) -> Layout:
    """Lay out the non-zero observed cells of the data along the longer side; cells in that order are not copied.

    ``by_features`` : which side, where that is not to be the longer one; ``with_offset`` : that of the background, too.
    """
    by_features = structure.shape[0] >= structure.shape[1] if by_features is None else by_features
    lay_out = _of_table if isinstance(structure.data, Dense) else _of_cells
    layout = lay_out(structure, by_features)
    if structure.likelihood.background is None or not with_offset:
        return layout
    return layout._replace(offset=_offset_at(structure, layout))


def _of_table(structure: Factorisation, by_features: bool) -> Layout:
    """A table along either side, without sorting cells."""
    table = np.ascontiguousarray(structure.data.values if by_features else structure.data.values.T)
    at, starts = np.flatnonzero(table != 0.0), table.shape[1] * np.arange(len(table) + 1)
    indptr, values = np.searchsorted(at, starts), table.ravel()[at]
    at -= np.repeat(starts[:-1], np.diff(indptr))
    return _layout(by_features, indptr, at.astype(np.int32), values, np.empty(0))


def _of_cells(structure: Factorisation, by_features: bool) -> Layout:
    rows, cols, values = nonzero_cells(structure)
    major, minor = (rows, cols) if by_features else (cols, rows)
    n_major, n_minor = structure.shape if by_features else structure.shape[::-1]
    known = structure.data.indptr if values is structure.data.values else None
    if known is not None and not by_features:
        indptr, indices = known, np.require(minor, np.int32, ("C", "W"))
        values = np.require(values, np.float64, ("C", "W"))
    elif is_rising(major, minor):
        indptr = np.searchsorted(major, np.arange(n_major + 1, dtype=major.dtype))
        indices, values = (np.require(own, kind, ("C", "W")) for own, kind in ((minor, np.int32), (values, np.float64)))
    else:
        compressed = sp.csr_array((values, (major, minor)), shape=(n_major, n_minor))
        compressed.sort_indices()
        indptr, indices, values = compressed.indptr, compressed.indices.astype(np.int32, copy=False), compressed.data
    return _layout(by_features, indptr, indices, values, np.empty(0))


def by_count(layout: Layout) -> Array:
    """The cells of each major row in the order of their values, numbered from the row's first: (non-zeros,) int32."""
    order = np.empty(len(layout.values), np.int32)
    for first, stop in pairwise(layout.chunks):
        cells, starts = slice(layout.indptr[first], layout.indptr[stop]), layout.indptr[first:stop]
        rows = np.repeat(np.arange(stop - first, dtype=np.int32), np.diff(layout.indptr[first : stop + 1]))
        order[cells] = np.lexsort((layout.values[cells], rows)) - (starts - cells.start)[rows]
    return order


def as_stored(layout: Layout) -> Array:
    """The cells of each major row in the order in which they are stored, as of :func:`by_count`."""
    starts = np.repeat(layout.indptr[:-1], np.diff(layout.indptr))
    return (np.arange(len(layout.values)) - starts).astype(np.int32)


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
    major = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr))
    rows, cols = layout.sides(major, layout.indices)
    return structure.background_at(rows, cols) / structure.exposure_at(rows, cols)


def _boundaries(indptr: Array) -> Array:
    n_chunks = int(np.clip(indptr[-1] // CHUNK_NONZEROS, 1, MOST_CHUNKS))
    targets = np.linspace(0, indptr[-1], n_chunks + 1)
    boundaries = np.searchsorted(indptr, targets, side="left").astype(np.int64)
    boundaries[0], boundaries[-1] = 0, len(indptr) - 1
    return np.maximum.accumulate(boundaries)


class SumsOfWeights(Protocol):
    """What engines ask of weights, whichever they are; see :class:`Weights`."""

    @property
    def are_ones(self) -> bool: ...

    def over_samples(self, Ht: Array) -> Array: ...

    def over_features(self, W: Array) -> Array: ...

    def total(self, W: Array, Ht: Array) -> float: ...


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
    if isinstance(data, Cells) and not data.is_complete:
        weight = structure.exposure_at(data.rows, data.cols)
        return Weights(*_ones(), sp.csr_array((weight, (data.rows, data.cols)), shape=structure.shape))
    if isinstance(data, Dense) and data.mask is not None:
        return Weights(*_ones(), data.mask * structure.exposure_table())
    if isinstance(exposure, Outer):
        return Weights(exposure.of_features, np.ascontiguousarray(exposure.of_samples.T))
    assert isinstance(exposure, np.ndarray | None)  # others are of incomplete data, or of a background
    exposure = np.ones((1, 1)) if exposure is None else np.atleast_2d(exposure)
    if exposure.shape[0] == 1:
        return Weights(np.ones((1, 1)), np.ascontiguousarray(exposure.T, dtype=np.float64))
    if exposure.shape[1] == 1:
        return Weights(np.asarray(exposure, dtype=np.float64), np.ones((1, 1)))
    return Weights(*_ones(), np.array(np.broadcast_to(exposure, structure.shape), dtype=np.float64))


def _ones() -> tuple[Array, Array]:
    return np.ones((1, 1)), np.ones((1, 1))


def background_of_samples(structure: Factorisation) -> Array | float:
    """The sum of the background over each sample's observed cells, (N,)."""
    data, background = structure.data, structure.likelihood.background
    if background is None:
        return 0.0
    if isinstance(data, Cells) and not data.is_complete:
        return np.bincount(data.cols, structure.background_at(data.rows, data.cols), structure.shape[1])
    if isinstance(background, Outer) and not isinstance(data, Dense):
        return np.sum(background.of_features) * background.of_samples[0]
    seen = data.mask if isinstance(data, Dense) and data.mask is not None else True
    return structure.background_table().sum(axis=0, where=seen)


def likelihood_constant(structure: Factorisation) -> float:
    """What the Poisson log-likelihood holds beside the factors.

    log p(X | W, H) = sum_nonzero x log((W H) + offset) - sum weight (W H) + this constant.
    """
    constant = structure.constant_of_counts
    if structure.likelihood.background is None:
        return constant
    data = structure.data
    if isinstance(data, Dense):
        return constant - float(np.sum(structure.background_table(), where=True if data.mask is None else data.mask))
    if data.is_complete:
        return constant - total_of(structure.likelihood.background, structure.shape)
    return constant - float(np.sum(structure.background_at(data.rows, data.cols)))


# -- expected sources ------------------------------------------------------------------------------------------------


BLOCK_CELLS = 1 << 17  # cells of a dense block: its buffers stay in cache
CHUNK_CELLS = 1 << 16  # a chunk of dense data has at least so many: BLAS likes them large
APART = 34  # where of_minor begins in its page, minor at 0: stores to one don't hold up loads from the other


class Statistics(NamedTuple):
    """of_W (F, K): sum_n E[C]; of_H (N, K): sum_f E[C]; None when not asked for. log_mean: sum x log(W H + offset)."""

    of_W: Any
    of_H: Any
    log_mean: float


class Logs(NamedTuple):
    """Logarithms of the two factors, (F, K) and (N, K), for cells whose mean underflows."""

    W: Array
    Ht: Array


class SparseSources:
    """Expected sources of a list of cells."""

    def __init__(
        self, structure: Factorisation, workers: Workers, layout: Layout | None = None, precision: str = "float64"
    ):
        self.layout = compress(structure) if layout is None else layout
        self.workers, self.dtype = workers, np.dtype(precision)

    def gather(self, W: Array, Ht: Array, sides: str = "WH", logs: Logs | None = None) -> Statistics:
        """Statistics at W (F, K), Ht (N, K) for the sides "W", "H", "WH" or "", which leaves ``log_mean`` alone.

        ``logs`` when the factors may underflow.
        """
        layout = self.layout
        major, minor = layout.sides(np.ascontiguousarray(W), np.ascontiguousarray(Ht))
        wants_major, wants_minor = layout.sides("W" in sides, "H" in sides)
        rows, of_major = self._pad(minor), np.empty_like(major) if wants_major else None
        spare: list[Array] = []

        def gather_chunk(chunk: int):
            part = self._sums_like(minor, rows.width, spare) if wants_minor else None
            found = gather(layout, major, rows, chunk, of_major, part)
            return *found, None if part is None else part.values  # padding and all: whole arrays are added faster

        log_mean, lost, of_minor = _add_up(self.workers, gather_chunk, layout.n_chunks, spare)
        of_minor = None if of_minor is None else np.multiply(of_minor[:, : minor.shape[1]], minor, order="C")
        statistics = Statistics(*layout.sides(of_major, of_minor), log_mean)
        return _rescue(statistics, self._cells_lost(major, rows), W, Ht, logs) if lost else statistics

    def _pad(self, minor: Array) -> Padded:
        rows = padded_zeros(len(minor), minor.shape[1], self.dtype)
        rows.values[:, : minor.shape[1]] = require_held(minor, self.dtype)
        return rows

    def _sums_like(self, minor: Array, width: tuple[int, ...], spare: list[Array]) -> Padded:
        """Where a chunk's sums go, which overwrite what is there: an array that was added, or another."""
        try:
            return Padded(spare.pop(), width)
        except IndexError:
            return padded_zeros(len(minor), minor.shape[1], self.dtype, APART)

    def _cells_lost(self, major: Array, minor: Padded):
        """(rows, columns, x, offset) of the cells that the kernel left out: it computed the same means."""
        layout: Layout = self.layout
        means = np.empty(len(layout.values), self.dtype)
        fill_means(means, layout, major, minor, 0, len(major))
        at = np.flatnonzero(means < smallest_mean(means))
        rows, cols = layout.sides(np.searchsorted(layout.indptr, at, side="right") - 1, layout.indices[at])
        return rows, cols, layout.values[at], layout.offset[at] if layout.offset.size else np.zeros(len(at))


class DenseSources:
    """Expected sources of a dense matrix, missing cells 0.

    ``values`` (major, minor): the data with the longer side first, ``offset`` alike or None.
    """

    def __init__(self, structure: Factorisation, workers: Workers, precision: str = "float64"):
        self.by_features = structure.shape[0] >= structure.shape[1]
        self.workers, self.dtype = workers, np.dtype(precision)
        ratio = structure.background_ratio()
        self.values, self.offset = self._turn(structure.data.values), None if ratio is None else self._turn(ratio)
        n_major, n_minor = self.values.shape
        self.height = max(16, BLOCK_CELLS // max(1, n_minor))
        n_chunks = min(MOST_CHUNKS, 1 << max(0, (n_major * n_minor // CHUNK_CELLS).bit_length() - 1))
        self.bounds = even_bounds(n_major, n_chunks)

    def gather(self, W: Array, Ht: Array, sides: str = "WH", logs: Logs | None = None) -> Statistics:
        """Statistics at W (F, K), Ht (N, K) for the sides "W", "H" or "WH"; ``logs`` when the factors may underflow."""
        factors = self._sides(W, Ht)
        major, minor = (np.ascontiguousarray(require_held(factor, self.dtype), self.dtype) for factor in factors)
        wants_major, wants_minor = self._sides("W" in sides, "H" in sides)
        of_major = np.empty(major.shape) if wants_major else None
        log_mean, lost, of_minor = _add_up(
            self.workers,
            lambda chunk: self._gather_chunk(chunk, major, minor, of_major, wants_minor),
            len(self.bounds) - 1,
        )
        if of_major is not None:
            of_major *= factors[0]
        if of_minor is not None:
            of_minor = np.multiply(of_minor.T, factors[1], order="C")
        statistics = Statistics(*self._sides(of_major, of_minor), log_mean)
        return _rescue(statistics, self._cells_lost(major, minor), W, Ht, logs) if lost else statistics

    def _gather_chunk(self, chunk: int, major: Array, minor: Array, of_major: Array | None, wants_minor: bool):
        """Blocks of the chunk's rows: (sum x log mean, counts left out, (K, minor) the sums of the minor side)."""
        shape = minor.shape[::-1]
        part, of_minor = (np.empty(shape, self.dtype), np.zeros(shape)) if wants_minor else (None, None)
        log_mean, lost = 0.0, 0.0
        for block, ratios in self._means(major, minor, self.bounds[chunk], self.bounds[chunk + 1]):
            block_log_mean, block_lost = divide(self.values[block], ratios)
            log_mean += block_log_mean
            lost += block_lost
            if of_major is not None:
                of_major[block] = np.dot(ratios, minor)
            if wants_minor:
                of_minor += np.dot(major[block].T, ratios, out=part)  # a tenth faster than its transpose
        return log_mean, lost, of_minor

    def _means(self, major: Array, minor: Array, first: int, last: int):
        """Yields (rows, means at them) block by block; every block overwrites the one before."""
        buffer = np.empty((min(self.height, last - first), len(minor)), self.dtype)
        for block in slices(last, self.height, first):
            means = np.dot(major[block], minor.T, out=buffer[: block.stop - block.start])
            if self.offset is not None:
                means += self.offset[block]
            yield block, means

    def _cells_lost(self, major: Array, minor: Array):
        """(rows, columns, x, offset) of the cells that were left out: the means are the same, block by block."""
        found = []
        for first, last in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            for block, means in self._means(major, minor, first, last):
                rows, cols = np.nonzero((means < smallest_mean(means)) & (self.values[block] != 0))
                found.append((rows + block.start, cols))
        rows, cols = (np.concatenate(indices) for indices in zip(*found, strict=True))
        offset = np.zeros(len(rows)) if self.offset is None else self.offset[rows, cols].astype(np.float64)
        return *self._sides(rows, cols), self.values[rows, cols].astype(np.float64), offset

    def _turn(self, matrix: Array) -> Array:
        return np.ascontiguousarray(matrix if self.by_features else matrix.T, self.dtype)

    def _sides(self, of_features: Any, of_samples: Any) -> tuple[Any, Any]:
        """As :meth:`nmf_zoo.inference.shared.layout.Layout.sides`."""
        return (of_features, of_samples) if self.by_features else (of_samples, of_features)


def expected_sources(
    structure: Factorisation, workers: Workers, precision: str = "float64"
) -> DenseSources | SparseSources:
    """The way to the expected sources that suits the data, at the cells in "float64" or "float32"."""
    if isinstance(structure.data, Dense):
        return DenseSources(structure, workers, precision)
    return SparseSources(structure, workers, precision=precision)


def require_held(factor: Array, dtype: np.dtype) -> Array:
    """The factor; RunFailed where it has grown beyond single precision, as one does while the other shrinks."""
    if dtype == np.float32 and np.max(factor, initial=0.0) > np.finfo(np.float32).max:
        raise RunFailed('a factor has grown beyond what single precision holds, 3.4e38: use precision="float64"')
    return factor


def _add_up(
    workers: Workers, work: Callable, n_chunks: int, spare: list[Array] | None = None
) -> tuple[float, float, Array | None]:
    """Add up (number, number, array or None) over the chunks, in order; arrays that were added go to ``spare``."""
    log_mean, lost, total = 0.0, 0.0, None

    def add(found: tuple[float, float, Array | None]) -> None:
        nonlocal log_mean, lost, total
        chunk_log_mean, chunk_lost, part = found
        log_mean += chunk_log_mean
        lost += chunk_lost
        if part is not None:
            total = part.astype(np.float64, copy=False) if total is None else np.add(total, part, out=total)
            if spare is not None and total is not part:
                spare.append(part)

    workers.fold(work, range(n_chunks), add)
    return log_mean, lost, total


def _rescue(statistics: Statistics, cells, W: Array, Ht: Array, logs: Logs | None) -> Statistics:
    """Add the cells whose mean underflows, by log-sum-exp. A mean that really is 0 gives log_mean = -inf."""
    with np.errstate(divide="ignore"):
        log_W, log_Ht = logs if logs is not None else (np.log(W), np.log(Ht))
        log_offset = np.log(cells[3])
    of_W, of_H, log_mean = statistics
    for part in slices(len(log_offset), CHUNK):
        rows, cols, x = (array[part] for array in cells[:3])
        terms = np.column_stack([log_W[rows] + log_Ht[cols], log_offset[part]])
        peak = terms.max(axis=1, keepdims=True)
        weights = np.exp(terms - np.where(np.isfinite(peak), peak, 0.0))
        total = weights.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            log_mean += float(x @ (peak + np.log(total))[:, 0])
        shares = x[:, None] * weights[:, :-1] / np.where(total > 0, total, 1.0)
        for out, index in ((of_W, rows), (of_H, cols)):
            if out is not None:
                np.add.at(out, index, shares)
    return Statistics(of_W, of_H, log_mean)

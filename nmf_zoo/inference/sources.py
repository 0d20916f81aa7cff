"""Expected sources E[C] of Poisson data, summed over either side: what EM and VB need of X, and all they need.

    E[c_fkn] = x_fn w_fk h_kn / ((W H)_fn + offset_fn),     0/0 := 0

Dense data go through BLAS in blocks of columns, lists of cells through the sparse kernels in O(non-zeros * K). Work is
cut into chunks that depend on the data alone, and their sums are added in order: results don't depend on the threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.layout import MOST_CHUNKS, Layout, compress
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.cells import rates_at_cells
from nmf_zoo.kernels.sources import SMALLEST, divide, gather
from nmf_zoo.structure import CHUNK, Array, Dense, Factorisation

LANES = 4  # rank is padded to a multiple: loops over components run in whole SIMD lanes
BLOCK_CELLS = 1 << 17  # cells of a dense block: its few buffers stay in cache


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

    def __init__(self, structure: Factorisation, workers: Workers, layout: Layout | None = None):
        self.layout, self.workers = compress(structure) if layout is None else layout, workers

    def gather(self, W: Array, Ht: Array, sides: str = "WH", logs: Logs | None = None) -> Statistics:
        """Statistics at W (F, K), Ht (N, K) for the sides "W", "H", "WH" or "", which leaves ``log_mean`` alone.

        ``logs`` when the factors may underflow.
        """
        layout = self.layout
        major, minor = layout.sides(_pad(W), _pad(Ht))
        wants_major, wants_minor = layout.sides("W" in sides, "H" in sides)
        of_major = np.empty_like(major) if wants_major else None

        def gather_chunk(chunk: int):
            part = np.zeros_like(minor) if wants_minor else None
            return *gather(layout, major, minor, chunk, of_major, part), part

        log_mean, lost, parts = _reduce(self.workers.map(gather_chunk, range(layout.n_chunks)))
        of_W, of_H = layout.sides(of_major, parts)
        statistics = Statistics(_times(W, of_W), _times(Ht, of_H), log_mean)
        return _rescue(statistics, self._cells_lost(W, Ht), W, Ht, logs) if lost else statistics

    def _cells_lost(self, W: Array, Ht: Array):
        layout: Layout = self.layout
        major = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr))
        rows, cols = layout.sides(major, layout.indices)
        offset = layout.offset if layout.offset.size else np.zeros(len(rows))
        means = np.empty(len(rows))
        rates_at_cells(means, W, Ht, rows, cols)
        at = np.flatnonzero(offset + means < SMALLEST)
        return rows[at], cols[at], layout.values[at], offset[at]


class DenseSources:
    """Expected sources of a dense matrix, missing cells 0."""

    def __init__(self, structure: Factorisation, workers: Workers):
        likelihood = structure.likelihood
        self.values, self.workers = structure.data.values, workers
        self.offset = None
        if likelihood.background is not None:
            exposure = 1.0 if likelihood.exposure is None else likelihood.exposure
            self.offset = np.broadcast_to(likelihood.background / exposure, structure.shape)
        F, N = structure.shape
        self.width = max(16, BLOCK_CELLS // max(1, F))
        self.bounds = np.linspace(0, N, MOST_CHUNKS + 1).astype(int)

    def gather(self, W: Array, Ht: Array, sides: str = "WH", logs: Logs | None = None) -> Statistics:
        """Statistics at W (F, K), Ht (N, K) for the sides "W", "H" or "WH"; ``logs`` when the factors may underflow."""
        of_H = np.empty_like(Ht) if "H" in sides else None
        chunks = self.workers.map(
            lambda chunk: self._gather_chunk(chunk, W, Ht, "W" in sides, of_H), range(MOST_CHUNKS)
        )
        log_mean, lost, of_W = _reduce(chunks)
        statistics = Statistics(_times(W, of_W), _times(Ht, of_H), log_mean)
        return _rescue(statistics, self._cells_lost(W, Ht), W, Ht, logs) if lost else statistics

    def _gather_chunk(self, chunk: int, W: Array, Ht: Array, wants_W: bool, of_H: Array | None):
        """Blocks of the chunk's columns; returns (sum x log mean, cells left out, the sums of W's side)."""
        of_W, part = (np.zeros_like(W), np.empty_like(W)) if wants_W else (None, None)
        log_mean, lost, last = 0.0, 0, self.bounds[chunk + 1]
        buffers = np.empty((2, len(W) * self.width))
        for start in range(self.bounds[chunk], last, self.width):
            block = slice(start, min(start + self.width, last))
            cells = len(W) * (block.stop - block.start)
            x, ratios = buffers[:, :cells].reshape(2, len(W), -1)
            np.copyto(x, self.values[:, block])
            np.dot(W, Ht[block].T, out=ratios)
            if self.offset is not None:
                ratios += self.offset[:, block]
            block_log_mean, block_lost = divide(x, ratios)
            log_mean += block_log_mean
            lost += block_lost
            if wants_W:
                of_W += np.dot(ratios, Ht[block], out=part)
            if of_H is not None:
                np.dot(ratios.T, W, out=of_H[block])
        return log_mean, lost, of_W

    def _cells_lost(self, W: Array, Ht: Array):
        rows, cols = np.nonzero(self.values)
        offset = np.zeros(len(rows)) if self.offset is None else self.offset[rows, cols]
        means = np.empty(len(rows))
        rates_at_cells(means, W, Ht, rows, cols)
        at = np.flatnonzero(offset + means < SMALLEST)
        return rows[at], cols[at], self.values[rows[at], cols[at]], offset[at]


def expected_sources(structure: Factorisation, workers: Workers) -> DenseSources | SparseSources:
    """The way to the expected sources that suits the data."""
    return (DenseSources if isinstance(structure.data, Dense) else SparseSources)(structure, workers)


def _times(factor: Array, sums: Array | None) -> Array | None:
    """The expected sources of a factor's cells, without the padding."""
    return None if sums is None else factor * sums[:, : factor.shape[1]]


def _pad(factor: Array) -> Array:
    """A contiguous copy with columns of zeros up to a whole number of lanes."""
    return np.pad(factor, ((0, 0), (0, -factor.shape[1] % LANES)))


def _reduce(chunks) -> tuple[float, int, Array | None]:
    """Add up (number, count, array or None) over the chunks, in order."""
    log_mean, lost, total = 0.0, 0, None
    for chunk_log_mean, chunk_lost, part in chunks:
        log_mean += chunk_log_mean
        lost += chunk_lost
        total = part if total is None else np.add(total, part, out=total)
    return log_mean, lost, total


def _rescue(statistics: Statistics, cells, W: Array, Ht: Array, logs: Logs | None) -> Statistics:
    """Add the cells whose mean underflows, by log-sum-exp. A mean that really is 0 gives log_mean = -inf."""
    with np.errstate(divide="ignore"):
        log_W, log_Ht = logs if logs is not None else (np.log(W), np.log(Ht))
        log_offset = np.log(cells[3])
    of_W, of_H, log_mean = statistics
    for start in range(0, len(log_offset), CHUNK):
        part = slice(start, start + CHUNK)
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

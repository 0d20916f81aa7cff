"""The observed cells of negative binomial data, piece by piece: zeros have terms of their own, and are never stored.

A pass over the cells goes through blocks of samples, in which a sparse X is dense while the block lasts, or through a
list of cells where all others are missing. Time goes with the observed cells, zeros among them; memory with the
non-zero ones and a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.kernels.numerics.cells import rates_at_cells
from nmf_zoo.structure import Array, Cells, Factorisation


@dataclass(frozen=True)
class CellBlock:
    """All features of some samples.

    Attributes
    ----------
    columns : the samples
    x : (F, columns), anything where not seen
    seen : (F, columns) bool, or None where all are
    exposure, background : (F, columns), or None for ones and zeros
    """

    columns: slice
    x: Array
    seen: Array | None
    exposure: Array | None
    background: Array | None

    def product(self, W: Array, Ht: Array) -> Array:
        """(W H) at the cells"""
        return W @ Ht[self.columns].T

    def parameter(self, own: Array) -> Array:
        """Of an array (1 or F, 1 or N), what belongs to the cells."""
        return own if own.shape[1] == 1 else own[:, self.columns]

    def add_over_samples(self, out: Array, values: Array, Ht: Array) -> None:
        """out (F, K) += values Ht"""
        out += values @ Ht[self.columns]

    def add_over_features(self, out: Array, values: Array, W: Array) -> None:
        """out (N, K) += values' W at the samples"""
        out[self.columns] += values.T @ W

    def add_up(self, out: Array, values: Array) -> None:
        """out (1 or F, 1 or N) += the sums of values over what shares an entry"""
        own = out if out.shape[1] == 1 else out[:, self.columns]
        own += sum_to(values, own.shape)


@dataclass(frozen=True)
class CellList:
    """Listed cells, (cells,) each; all others are missing. Members as of :class:`CellBlock`."""

    rows: Array
    cols: Array
    x: Array
    seen: None
    exposure: Array | None
    background: Array | None
    shape: tuple[int, int]

    def product(self, W: Array, Ht: Array) -> Array:
        out = np.empty(len(self.x))
        rates_at_cells(out, np.ascontiguousarray(W), np.ascontiguousarray(Ht), self.rows, self.cols)
        return out

    def parameter(self, own: Array) -> Array:
        return np.broadcast_to(own, self.shape)[self.rows, self.cols]

    def _matrix(self, values: Array) -> sp.csr_array:
        return sp.csr_array((values, (self.rows, self.cols)), self.shape)

    def add_over_samples(self, out: Array, values: Array, Ht: Array) -> None:
        out += self._matrix(values) @ Ht

    def add_over_features(self, out: Array, values: Array, W: Array) -> None:
        out += self._matrix(values).T @ W

    def add_up(self, out: Array, values: Array) -> None:
        at = self.cols if out.shape[1] > 1 else self.rows if out.shape[0] > 1 else np.zeros(len(values), np.intp)
        out += np.bincount(at, values, out.size).reshape(out.shape)


Piece = CellBlock | CellList


@dataclass(frozen=True)
class Pieces:
    """All observed cells of a model's data."""

    structure: Factorisation

    @cached_property
    def _by_sample(self) -> sp.csc_array:
        data = self.structure.data
        return sp.csc_array((data.values, (data.rows, data.cols)), data.shape)

    def __iter__(self) -> Iterator[Piece]:
        data = self.structure.data
        if isinstance(data, Cells) and not data.is_complete:
            yield self._listed
            return
        likelihood = self.structure.likelihood
        for columns in self.structure.column_blocks(chunks=1):
            dense = data.values[:, columns] if not isinstance(data, Cells) else self._by_sample[:, columns].toarray()
            seen = None if isinstance(data, Cells) or data.mask is None else data.mask[:, columns]
            exposure = None if likelihood.exposure is None else self.structure.exposure_table(columns)
            background = None if likelihood.background is None else self.structure.background_table(columns)
            yield CellBlock(columns, dense, seen, exposure, background)

    @cached_property
    def _listed(self) -> CellList:
        structure, data = self.structure, self.structure.data
        at, likelihood = (data.rows, data.cols), structure.likelihood
        exposure = None if likelihood.exposure is None else structure.exposure_at(*at)
        background = None if likelihood.background is None else structure.background_at(*at)
        return CellList(*at, data.values, None, exposure, background, structure.shape)


def mean_at(piece: Piece, product: Array) -> Array:
    """exposure * product + background at the cells"""
    mean = product if piece.exposure is None else piece.exposure * product
    return mean if piece.background is None else mean + piece.background


def where_seen(piece: Piece, values: Array) -> Array:
    """The values, 0 at missing cells."""
    return values if piece.seen is None else np.where(piece.seen, values, 0.0)


def exposed(piece: Piece, values: Array) -> Array:
    """exposure * values, 0 at missing cells"""
    return where_seen(piece, values if piece.exposure is None else piece.exposure * values)

"""What is known of the mean beside W H: exposures, which multiply it cell by cell, and backgrounds, added to it.

The mean is ``exposure * (W @ H) + background``. Either is an array that broadcasts to (F, N); an :class:`Outer` product
of one number per feature and one per sample, which is never multiplied out for sparse data; or :class:`Listed`, known
at listed cells alone where all other cells are missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from nmf_zoo.errors import InputError
from nmf_zoo.structure.parameters import Array

Shape = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Outer:
    """of_features * of_samples.

    Attributes
    ----------
    of_features : (F, 1)
    of_samples : (1, N)
    """

    of_features: Array
    of_samples: Array

    @property
    def shape(self) -> Shape:
        return len(self.of_features), self.of_samples.shape[1]

    @property
    def is_shared(self) -> bool:
        """Whether it is the same for all samples."""
        return bool(np.all(self.of_samples == self.of_samples[:, :1]))

    def at(self, rows: Array, cols: Array) -> Array:
        return self.of_features[rows, 0] * self.of_samples[0, cols]

    def table(self, columns: slice = slice(None)) -> Array:
        return self.of_features * self.of_samples[:, columns]

    def scaled(self, factor: float) -> Outer:
        return Outer(of_features=self.of_features, of_samples=factor * self.of_samples)

    def ends(self) -> tuple[float, float]:
        ends = np.multiply.outer(*([np.min(side), np.max(side)] for side in (self.of_features, self.of_samples)))
        return np.min(ends), np.max(ends)  # of any signs


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Values at the listed cells of a matrix of which all others are missing.

    Attributes
    ----------
    rows, cols : (cells,) int32
    values : (cells,) float64
    shape : (F, N)
    elsewhere : what a dense table holds at missing cells
    """

    rows: Array
    cols: Array
    values: Array
    shape: Shape
    elsewhere: float

    @cached_property
    def _places(self) -> sp.csr_array:
        """The number of each listed cell, from 1; 0 elsewhere."""
        numbers = np.arange(1, len(self.values) + 1)
        return sp.csr_array((numbers, (self.rows, self.cols)), shape=self.shape)

    def at(self, rows: Array, cols: Array) -> Array:
        """The values of these cells; InputError where one is not listed."""
        if rows is self.rows and cols is self.cols:
            return self.values
        found = np.asarray(self._places[rows, cols]).ravel() if len(rows) else np.zeros(0, dtype=int)
        if not np.all(found):
            first = int(np.argmax(found == 0))
            got = f"row {rows[first]}, column {cols[first]}, of which the model lists no exposure, background or sigma"
            raise InputError("cells", got, "listed cells", "ask for observed cells, or declare them for every cell")
        return self.values[found - 1]

    def table(self, columns: slice = slice(None)) -> Array:
        full = np.full(self.shape, self.elsewhere)
        full[self.rows, self.cols] = self.values
        return full[:, columns]

    def scaled(self, factor: float) -> Listed:
        return replace(self, values=factor * self.values)

    def ends(self) -> tuple[float, float]:
        return np.min(self.values), np.max(self.values)


Offset = Array | Outer | Listed


def offset_at(offset: Offset | None, rows: Array, cols: Array, shape: Shape, none: float) -> Array:
    """Its values at the given cells of an (F, N) matrix; ``none`` where there is no offset."""
    if offset is None:
        return np.full(len(rows), none)
    if isinstance(offset, Outer | Listed):
        return offset.at(rows, cols)
    return np.asarray(np.broadcast_to(offset, shape)[rows, cols], dtype=np.float64)


def offset_table(offset: Offset | None, shape: Shape, none: float, columns: slice = slice(None)) -> Array:
    """Its values in a block of samples, (F, columns): a view where it is an array; ``none`` where nothing is known."""
    if isinstance(offset, Outer | Listed):
        return offset.table(columns)
    return np.broadcast_to(none if offset is None else offset, shape)[:, columns]


def scaled_offset(offset: Offset | None, factor: float) -> Offset | None:
    """Times a number."""
    if offset is None:
        return None
    return offset.scaled(factor) if isinstance(offset, Outer | Listed) else factor * offset


def ends_of(offset: Offset) -> tuple[float, float]:
    """The smallest and the largest value."""
    return offset.ends() if isinstance(offset, Outer | Listed) else (np.min(offset), np.max(offset))


def shared_column(offset: Offset | None, n_features: int, none: float) -> Array | None:
    """Its values in every sample, (F,); None where samples differ, or are known at listed cells alone."""
    sides = sides_of(np.asarray(none) if offset is None else offset)
    if sides is None or not sides.is_shared:
        return None
    column = sides.of_samples[:, :1] * sides.of_features
    return np.array(np.broadcast_to(column, (n_features, 1))[:, 0], dtype=np.float64)


def sides_of(offset: Offset) -> Outer | None:
    """It as a product of one number per feature and one per sample, (F or 1, 1) and (1, N or 1); None if it is none.

    A table of which neither all columns nor all rows are the same is not taken apart.
    """
    if isinstance(offset, Outer | Listed):
        return offset if isinstance(offset, Outer) else None
    table, one = np.atleast_2d(np.asarray(offset, dtype=np.float64)), np.ones((1, 1))
    if np.all(table == table[:, :1]):
        return Outer(of_features=table[:, :1], of_samples=one)
    return Outer(of_features=one, of_samples=table[:1]) if np.all(table == table[:1]) else None

"""What is known of the mean beside W H: exposures, which multiply it cell by cell, and backgrounds, added to it.

The mean is ``exposure * (W @ H) + background``. Either is an array that broadcasts to (F, N); an :class:`Outer` product
of one number per feature and one per sample, which is never multiplied out for sparse data; or :class:`Listed`, known
at listed cells alone where all other cells are missing. What came with samples in blocks is :class:`OffsetsOfSamples`;
a background of all of them that is too large to be held is read again where it is asked for (:class:`InBlocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

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

    def of(self, samples: Array | slice) -> Outer:
        """Of these samples."""
        return Outer(of_features=self.of_features, of_samples=self.of_samples[:, samples])

    def total(self) -> float:
        """The sum over all cells."""
        return float(np.sum(self.of_features)) * float(np.sum(self.of_samples))

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

    def of(self, samples: Array | slice) -> Listed:
        """Of these samples, in their order."""
        chosen = np.arange(self.shape[1])[samples]
        places = sp.csc_array(self._places)[:, chosen]
        cols = np.repeat(np.arange(len(chosen), dtype=np.int32), np.diff(places.indptr))
        shape = self.shape[0], len(chosen)
        return replace(self, rows=places.indices, cols=cols, values=self.values[places.data - 1], shape=shape)

    def ends(self) -> tuple[float, float]:
        return np.min(self.values), np.max(self.values)


@dataclass(frozen=True, kw_only=True)
class InBlocks:
    """A background of samples in blocks, too large to be held: it is read with the block of a sample.

    Attributes
    ----------
    bounds : (blocks + 1,), block b holds the samples from bounds[b] to bounds[b + 1]
    n_features : F
    read : number of a block -> (its data, what came with its samples)
    span : the smallest and the largest value
    is_listed : of some block it is known at listed cells alone
    """

    bounds: Array
    n_features: int
    read: Callable[[int], tuple[Any, OffsetsOfSamples]]
    span: tuple[float, float]
    is_listed: bool

    @property
    def shape(self) -> Shape:
        return self.n_features, int(self.bounds[-1])

    def at(self, rows: Array, cols: Array) -> Array:
        numbers = np.searchsorted(self.bounds, cols, side="right") - 1
        found = np.empty(len(rows))
        for number in np.unique(numbers):
            own, first = numbers == number, int(self.bounds[number])
            shape = self.n_features, int(self.bounds[number + 1]) - first
            found[own] = offset_at(self.read(int(number))[1].background, rows[own], cols[own] - first, shape, 0.0)
        return found

    def ends(self) -> tuple[float, float]:
        return self.span


Offset = Array | Outer | Listed | InBlocks


class OffsetsOfSamples(NamedTuple):
    """What came with samples beside their cells.

    Attributes
    ----------
    exposure : (n,), what multiplies the means of each, or None
    background : what is added to them, which broadcasts to (F, n), or None
    """

    exposure: Array | None = None
    background: Offset | None = None

    def of(self, samples: Array | slice) -> OffsetsOfSamples:
        """Of these samples, in their order."""
        exposure = None if self.exposure is None else self.exposure[samples]
        return OffsetsOfSamples(exposure, None if self.background is None else offset_of(self.background, samples))

    def in_place(self, likelihood: Any) -> Any:
        """The likelihood with these in the place of none."""
        found: dict[str, Offset] = {} if self.exposure is None else {"exposure": self.exposure[None]}
        found |= {} if self.background is None else {"background": self.background}
        return replace(likelihood, **found) if found else likelihood


def offset_at(offset: Offset | None, rows: Array, cols: Array, shape: Shape, none: float) -> Array:
    """Its values at the given cells of an (F, N) matrix; ``none`` where there is no offset."""
    if offset is None:
        return np.full(len(rows), none)
    if isinstance(offset, Outer | Listed | InBlocks):
        return offset.at(rows, cols)
    return np.asarray(np.broadcast_to(offset, shape)[rows, cols], dtype=np.float64)


def offset_table(offset: Offset | None, shape: Shape, none: float, columns: slice = slice(None)) -> Array:
    """Its values in a block of samples, (F, columns): a view where it is an array; ``none`` where nothing is known."""
    assert not isinstance(offset, InBlocks)  # no table of all samples
    if isinstance(offset, Outer | Listed):
        return offset.table(columns)
    return np.broadcast_to(none if offset is None else offset, shape)[:, columns]


def scaled_offset(offset: Offset | None, factor: float) -> Offset | None:
    """Times a number."""
    if offset is None:
        return None
    assert not isinstance(offset, InBlocks)
    return offset.scaled(factor) if isinstance(offset, Outer | Listed) else factor * offset


def offset_of(offset: Offset, samples: Array | slice) -> Offset:
    """Of these samples, in their order."""
    if isinstance(offset, Outer | Listed):
        return offset.of(samples)
    assert not isinstance(offset, InBlocks)
    table = np.atleast_2d(offset)
    return table if table.shape[1] == 1 else table[:, samples]


def total_of(offset: Offset, shape: Shape) -> float:
    """The sum over all cells of an (F, N) matrix."""
    return offset.total() if isinstance(offset, Outer) else float(np.sum(offset_table(offset, shape, 0.0)))


def side_by_side(parts: Sequence[OffsetsOfSamples], sizes: Sequence[int]) -> OffsetsOfSamples | None:
    """What came with neighbouring samples, so many each, in one; None where that takes a table and none is there."""
    exposures = [own.exposure for own in parts if own.exposure is not None]
    exposure = np.concatenate(exposures) if exposures else None
    backgrounds = [own.background for own in parts if own.background is not None]
    if not backgrounds:
        return OffsetsOfSamples(exposure)
    background = _in_one(backgrounds, sizes)
    return None if background is None else OffsetsOfSamples(exposure, background)


def _in_one(parts: Sequence[Offset], sizes: Sequence[int]) -> Offset | None:
    if all(isinstance(part, Listed) for part in parts):
        return _in_one_list(cast(Sequence[Listed], parts), sizes)
    sides = [sides_of(part) for part in parts]
    if all(own is not None for own in sides):
        return of_sides(cast(Sequence[Outer], sides), sizes)
    tables = [part for part, own in zip(parts, sides, strict=True) if own is None and isinstance(part, np.ndarray)]
    if not tables:
        return None
    shapes = [(len(tables[0]), n) for n in sizes]
    return np.concatenate([offset_table(part, shape, 0.0) for part, shape in zip(parts, shapes, strict=True)], axis=1)


def _in_one_list(parts: Sequence[Listed], sizes: Sequence[int]) -> Listed:
    firsts = np.cumsum([0, *sizes[:-1]])
    return replace(
        parts[0],
        rows=np.concatenate([own.rows for own in parts]),
        cols=np.concatenate([own.cols + np.int32(first) for own, first in zip(parts, firsts, strict=True)]),
        values=np.concatenate([own.values for own in parts]),
        shape=(parts[0].shape[0], int(sum(sizes))),
    )


def of_sides(parts: Sequence[Outer], sizes: Sequence[int]) -> Array | Outer | None:
    """Products of neighbouring samples, so many each, as one; an array where a side is ones; None of different ones."""
    of_features = parts[0].of_features
    if not all(np.array_equal(own.of_features, of_features) for own in parts):
        return None
    rows = [np.broadcast_to(own.of_samples, (1, n)) for own, n in zip(parts, sizes, strict=True)]
    of_samples = np.concatenate(rows, axis=1)
    if len(of_features) == 1:
        return of_features * of_samples
    return of_features if np.all(of_samples == 1.0) else Outer(of_features=of_features, of_samples=of_samples)


def ends_of(offset: Offset) -> tuple[float, float]:
    """The smallest and the largest value."""
    return (np.min(offset), np.max(offset)) if isinstance(offset, np.ndarray) else offset.ends()


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
    if not isinstance(offset, np.ndarray):
        return offset if isinstance(offset, Outer) else None
    table, one = np.atleast_2d(np.asarray(offset, dtype=np.float64)), np.ones((1, 1))
    if np.all(table == table[:, :1]):
        return Outer(of_features=table[:, :1], of_samples=one)
    return Outer(of_features=one, of_samples=table[:1]) if np.all(table == table[:1]) else None

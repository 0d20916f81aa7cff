"""Parameters of X's own law that differ between cells: tied over rows or columns, one per cell, or of listed cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nmf_zoo.structure.multipliers import Multipliers
from nmf_zoo.structure.offsets import Listed, Shape
from nmf_zoo.structure.parameters import Array, Parameter

Places = tuple[slice | Array, slice | Array]  # an index of an (F, N) matrix


@dataclass(frozen=True, kw_only=True)
class KnownAtCells:
    """A parameter that is known at the listed cells of a matrix alone, of which all others are missing."""

    listed: Listed

    @property
    def shape(self) -> Shape:
        return self.listed.shape

    @property
    def value(self) -> Array:
        """(cells,), in the order of the list."""
        return self.listed.values

    def resolve(self, values: Mapping[str, Array]) -> Array:
        """(F, N), of which missing cells hold what the list has elsewhere."""
        return self.listed.table()


@dataclass(frozen=True, kw_only=True)
class Part:
    """A parameter that broadcasts to an (F, N) matrix, at some of its cells.

    Attributes
    ----------
    whole : the parameter
    size : (F, N)
    places : the cells, an index of the matrix
    """

    whole: CellParameter
    size: Shape
    places: Places

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_to(0.0, self.size)[self.places].shape

    def resolve(self, values: Mapping[str, Array]) -> Array:
        """The values at these cells."""
        rows, cols = self.places
        if isinstance(self.whole, KnownAtCells) and isinstance(rows, np.ndarray) and isinstance(cols, np.ndarray):
            return self.whole.listed.at(rows, cols)
        if isinstance(self.whole, Multipliers):
            return self.whole.at(values, rows, cols)
        return np.broadcast_to(self.whole.resolve(values), self.size)[self.places]


CellParameter = Parameter | KnownAtCells | Multipliers | Part


def is_shared(parameter: CellParameter) -> bool:
    """Whether all cells have the same one."""
    return int(np.prod(parameter.shape, dtype=int)) == 1 and not isinstance(
        parameter, KnownAtCells | Multipliers | Part
    )


def part_of(parameter: CellParameter, size: Shape, places: Places) -> CellParameter:
    """It at these cells of an (F, N) matrix: itself where all cells have the same one."""
    return parameter if is_shared(parameter) else Part(whole=parameter, size=size, places=places)

"""What every reader returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Matrix:
    """A matrix and the labels that came with it.

    Attributes
    ----------
    values : (rows, columns) array, or a SciPy sparse matrix; NaN is a missing cell
    rows, columns : labels, or None
    """

    values: Any
    rows: list[str] | None = None
    columns: list[str] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    def transposed(self) -> Matrix:
        return Matrix(self.values.T, self.columns, self.rows)

    def as_counts(self) -> Matrix:
        """Whole numbers as integers, where nothing is lost; anything else as it is."""
        data = getattr(self.values, "data", None) if hasattr(self.values, "tocsr") else self.values
        if data.dtype.kind in "iu" or not _are_whole(data):
            return self
        return Matrix(self.values.astype(np.int64), self.rows, self.columns)


def _are_whole(data: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(data)) and np.all(np.abs(data) < 2**53) and np.all(data == np.floor(data)))

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
    values : (rows, columns) array, or a SciPy sparse array; NaN is a missing cell
    rows, columns : labels, or None
    """

    values: Any
    rows: list[str] | None = None
    columns: list[str] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.values, np.ndarray)

    def transposed(self) -> Matrix:
        """Rows for columns."""
        return Matrix(self.values.T, self.columns, self.rows)

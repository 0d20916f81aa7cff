"""The observed cells of X: which they are, that each is a finite number >= 0, and whether all are integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from nmf_zoo import sparse
from nmf_zoo.errors import InputError
from nmf_zoo.models.matrices import check_cells, check_matrix_shape, raise_bad_cell, read_mask, read_table

Array = np.ndarray
Labels = dict[str, Array]
MAX_COUNT = 2**31 - 1  # PyMC keeps integer data as int32
MAX_INTEGER = 2**63  # of int64; only real-valued models accept larger numbers


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The observed cells.

    Attributes
    ----------
    values : (F, N) when every cell of a dense X was observed, else (cells,); int64 if all are integers, else float64
    cells : their rows and columns, (cells,) int64, row by row; None when every cell of a dense X was observed
    is_sparse : X was sparse: no (F, N) array may be built
    is_complete : unlisted cells are zeros; otherwise they are missing
    """

    values: Array
    cells: tuple[Array, Array] | None = None
    is_sparse: bool = False
    is_complete: bool = True

    @property
    def is_integer(self) -> bool:
        return self.values.dtype.kind == "i"


def read_dense(X: Any, mask: Any, observed: str | None, is_counts: bool) -> tuple[Observed, Labels, tuple[int, int]]:
    """The observed cells of a dense table: neither NaN, nor masked, nor False in ``mask``."""
    if observed is not None:
        raise InputError("observed", "'stored' with a dense X", "a sparse X", "use mask= or NaN for missing cells")
    table = read_table("X", X)
    values, labels = table.values, table.labels
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
    if table.missing is not None:
        missing |= table.missing
    if mask is not None:
        missing |= ~read_mask(mask, values.shape, labels, keeps_sparse=False)
    check_values(values, ~missing, labels, is_counts)
    if not missing.any():
        return Observed(values=as_counts(values)), labels, values.shape
    rows, cols = np.nonzero(~missing)
    if not rows.size:
        raise InputError("X", "only missing cells", "at least one observed cell", "use X=None to simulate")
    return Observed(values=as_counts(values[rows, cols]), cells=(rows, cols)), labels, values.shape


def check_values(values: Array, seen: Array, labels: Labels, is_counts: bool) -> None:
    """Observed cells are finite, not negative, and, as counts, not too large."""
    if values.dtype.kind == "f":
        check_cells("X", values, seen & np.isinf(values), labels, "infinite cell", "finite numbers")
    if values.dtype.kind in "fi":
        check_cells("X", values, seen & (values < 0), labels, "negative cell", "numbers >= 0")
    is_large = seen & (values > np.float64(MAX_COUNT))  # not in X's own type, which may be too narrow for it
    if is_counts and is_large.any() and is_whole(values[seen]):
        check_cells("X", values, is_large, labels, "count", f"counts up to 2^31 - 1 = {MAX_COUNT}")


def is_whole(values: Array) -> bool:
    return values.dtype.kind != "f" or bool(np.all(values == np.floor(values)))


def as_counts(values: Array) -> Array:
    """int64 when all values are integers that fit, else float64: real-valued data are never cast."""
    fits = is_whole(values) and float(values.max(initial=0)) < MAX_INTEGER
    return values.astype(np.int64 if fits else np.float64)


def read_listed(X: Any, mask: Any, observed: str | None, is_counts: bool) -> tuple[Observed, Labels]:
    """The listed cells of a sparse matrix; without mask and ``observed`` all others were observed and are zeros."""
    check_matrix_shape("X", X.shape)
    if observed is not None:
        sparse.require_listed("X", X)
    matrix = sparse.read_sparse("X", X)
    allowed = None if mask is None else read_mask(mask, X.shape)
    if allowed is not None and observed is None and allowed.sum() == X.shape[0] * X.shape[1]:
        allowed = None
    is_complete = allowed is None and observed is None
    if is_complete:
        matrix.eliminate_zeros()
    rows, cols = nonzero_cells(matrix if allowed is None or observed == "stored" else allowed)
    if allowed is not None and observed == "stored":
        keep = values_at(allowed, rows, cols)
        rows, cols = rows[keep], cols[keep]
    values = matrix.data if allowed is None else values_at(matrix, rows, cols)
    return check_listed(values, rows, cols, is_complete, is_counts), {}


def nonzero_cells(matrix: Any) -> tuple[Array, Array]:
    """Stored cells (of a sparse matrix) or True cells (of a dense mask), row by row."""
    if not scipy.sparse.issparse(matrix):
        rows, cols = np.nonzero(matrix)
        return rows, cols
    if matrix.dtype == bool:
        matrix.eliminate_zeros()
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rows, matrix.indices.astype(np.int64)


def check_listed(values: Array, rows: Array, cols: Array, is_complete: bool, is_counts: bool) -> Observed:
    """Listed cells are finite and not negative; NaN among them is a missing cell."""
    is_gap = np.isnan(values)
    if is_gap.any() and is_complete:
        got = f"{is_gap.sum()} NaN cells in a sparse X whose other cells are zeros"
        raise InputError(
            "X", got, "numbers", "use observed='stored' if only stored cells were observed, or X.toarray()"
        )
    if is_gap.any():
        values, rows, cols = values[~is_gap], rows[~is_gap], cols[~is_gap]
    if not is_complete and not values.size:
        raise InputError("X", "only missing cells", "at least one observed cell", "use X=None to simulate")
    limits = (
        (np.isinf(values), "infinite cell", "finite numbers"),
        (values < 0, "negative cell", "numbers >= 0"),
        ((values > MAX_COUNT) & is_whole(values) & is_counts, "count", f"counts up to 2^31 - 1 = {MAX_COUNT}"),
    )
    for is_bad, what, expected in limits:
        if is_bad.any():
            first = int(np.argmax(is_bad))
            raise_bad_cell("X", values[first], (rows[first], cols[first]), int(is_bad.sum()), {}, what, expected)
    return Observed(values=as_counts(values), cells=(rows, cols), is_sparse=True, is_complete=is_complete)


def values_at(matrix: Any, rows: Array, cols: Array) -> Array:
    """Values of a dense or sparse matrix at the given cells."""
    found = matrix[rows, cols]  # SciPy's classes differ: a matrix, an array, or a sparse vector
    return (found.toarray() if scipy.sparse.issparse(found) else np.asarray(found)).ravel()

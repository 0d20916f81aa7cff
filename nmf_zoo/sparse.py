"""Sparse matrices that come in: each is checked in full, in O(stored cells), before a compiled loop sees it.

SciPy's loops trust the indices of a matrix, and its constructors look at its first and last ones only: what was
damaged in a file, or by an assignment to ``.indices``, would read and write outside of its arrays. Nothing of ours
calls SciPy on a matrix from outside but through this module, and none that was given is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse

from nmf_zoo.errors import InputError

Array = np.ndarray
Parts = Mapping[str, Any]
LARGEST = 2**31 - 1  # rows or columns: cells are listed with indices of 32 bits
ANEW = "build it anew, e.g. scipy.sparse.coo_array((values, (rows, columns)), shape=(features, samples))"


def read_sparse(name: str, given: Any, layout: str = "csr", dtype: Any = np.float64) -> Any:
    """A copy of a SciPy sparse matrix of real numbers as "csr" or "csc", its cells in order and each once.

    Cells that repeat are added up as numbers of ``dtype``: small integers would overflow.
    """
    if given.dtype.kind not in "biuf":
        raise InputError(name, f"dtype {given.dtype}", "numbers")
    matrix = checked_sparse(name, given).astype(dtype).asformat(layout, copy=True)
    matrix.sum_duplicates()  # sorts them, too
    return matrix


def require_listed(name: str, given: Any) -> None:
    """Refuse blocks or diagonals with zeros where stored cells were observed: these may but fill them."""
    what = _filled_up(name, given)
    if what is not None:
        got = f"a sparse matrix in {what} ({given.format!r}) with zeros in them, with observed='stored'"
        do = f"list the cells that were observed: {ANEW}"
        raise InputError(name, got, "a format that stores cells one by one, such as 'csr'", do)


def _filled_up(name: str, given: Any) -> str | None:
    """What zeros fill up: "blocks", "diagonals", of which SciPy drops them, or None."""
    if given.format == "bsr":
        return "blocks" if np.any(given.data == 0) else None
    if given.format != "dia":
        return None
    diagonals = checked_sparse(name, given)
    columns = np.arange(min(diagonals.data.shape[1], given.shape[1]))
    rows = columns - diagonals.offsets[:, None]
    is_cell = (rows >= 0) & (rows < given.shape[0])
    return "diagonals" if np.any(diagonals.data[:, columns][is_cell] == 0) else None


def by_sample(name: str, given: Any) -> Any:
    """A SciPy sparse matrix as :func:`read_sparse` gives it as "csc", which shares what needs no change."""
    if given.format != "csc" or given.dtype.kind not in "biuf":
        return read_sparse(name, given, "csc")
    matrix = checked_sparse(name, given)
    if not matrix.has_canonical_format:
        return read_sparse(name, given, "csc")
    matrix.data = matrix.data.astype(np.float64, copy=False)  # SciPy's astype would copy the indices, too
    return matrix


def index_dtype(n_cells: int) -> Any:
    """Of the indptr of so many cells beside indices of 32 bits: SciPy copies indices that are not alike."""
    return np.int32 if n_cells <= LARGEST else np.int64


def checked_sparse(name: str, given: Any) -> Any:
    """The same matrix, refused where it isn't what its parts say; it may share arrays with the one that was given."""
    shape = _check_shape(name, given.shape)
    if given.format == "lil":
        return from_parts(name, "coo", shape, _parts_of_lists(name, given))
    if given.format == "dok":
        return from_parts(name, "coo", shape, _parts_of_keys(name, given))
    return from_parts(name, given.format, shape, {part: getattr(given, part) for part in LAYOUTS[given.format][1]})


def from_parts(name: str, layout: str, shape: Any, parts: Parts) -> Any:
    """The sparse array that SciPy's ``layout`` makes of these parts, which are refused where they don't fit."""
    if layout not in LAYOUTS:
        raise InputError(name, f"a sparse matrix in the format {layout!r}", f"one of {', '.join(LAYOUTS)}")
    assemble, needed = LAYOUTS[layout]
    missing = [part for part in needed if part not in parts]
    if missing:
        raise _refusal(name, f"no {missing[0]}", f"{', '.join(needed)} of the format {layout!r}")
    return assemble(name, _check_shape(name, shape), {part: np.asarray(parts[part]) for part in needed})


def _parts_of_lists(name: str, given: Any) -> Parts:
    lengths = [len(columns) for columns in given.rows]
    if len(lengths) != given.shape[0] or lengths != [len(values) for values in given.data]:
        raise _refusal(name, "lists of columns and of values that differ in length", "one of both for each row")
    columns, values = (list(chain.from_iterable(lists)) for lists in (given.rows, given.data))
    return {
        "data": np.asarray(values, dtype=given.dtype),
        "row": np.repeat(np.arange(len(lengths)), lengths),
        "col": np.asarray(columns) if columns else np.zeros(0, dtype=np.int64),
    }


def _parts_of_keys(name: str, given: Any) -> Parts:
    keys = np.asarray(list(given.keys())) if len(given.keys()) else np.zeros((0, 2), dtype=np.int64)
    if keys.ndim != 2 or keys.shape[1] != 2:
        raise _refusal(name, f"keys of shape {keys.shape}", "pairs (row, column)")
    return {"data": np.asarray(list(given.values()), dtype=given.dtype), "row": keys[:, 0], "col": keys[:, 1]}


# -- what parts must be ------------------------------------------------------------------------------------------


def _csr(name: str, shape: tuple[int, int], parts: Parts) -> Any:
    data, indices, indptr = _compressed(name, parts, *shape, "column")
    return scipy.sparse.csr_array((data, indices, indptr), shape=shape)


def _csc(name: str, shape: tuple[int, int], parts: Parts) -> Any:
    data, indices, indptr = _compressed(name, parts, *shape[::-1], "row")
    return scipy.sparse.csc_array((data, indices, indptr), shape=shape)


def _bsr(name: str, shape: tuple[int, int], parts: Parts) -> Any:
    block = np.shape(parts["data"])[1:]
    if len(block) != 2 or 0 in block or any(size % side for size, side in zip(shape, block, strict=True)):
        raise _refusal(name, f"blocks {block} in a matrix {shape}", "blocks that fill the matrix")
    n_major, n_minor = (size // side for size, side in zip(shape, block, strict=True))
    data, indices, indptr = _compressed(name, parts, n_major, n_minor, "block", n_axes=3)
    return scipy.sparse.bsr_array((data, indices, indptr), shape=shape)


def _compressed(
    name: str, parts: Parts, n_major: int, n_minor: int, what: str, n_axes: int = 1
) -> tuple[Array, Array, Array]:
    """data, indices and indptr of n_major lists of indices below n_minor; what is beyond the last list is dropped."""
    data, indices, indptr = parts["data"], parts["indices"], parts["indptr"]
    _require_integers(name, "indices", indices)
    _require_integers(name, "indptr", indptr)
    if len(indptr) != n_major + 1:
        raise _refusal(name, f"indptr of length {len(indptr)}", f"{n_major + 1}, for {n_major} lists of indices")
    if indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
        where = 0 if indptr[0] != 0 else int(np.argmax(indptr[1:] < indptr[:-1])) + 1
        raise _refusal(name, f"indptr {indptr[where]} at place {where}", "numbers that begin at 0 and never fall")
    stored = int(indptr[-1])
    if data.ndim != n_axes or len(data) != len(indices) or stored > len(indices):
        got = f"indptr that ends at {stored}, {len(indices)} indices and data of shape {data.shape}"
        raise _refusal(name, got, "as many of each")
    _require_inside(name, what, indices[:stored], n_minor)
    return data[:stored], indices[:stored], indptr


def _coo(name: str, shape: tuple[int, int], parts: Parts) -> Any:
    data, row, col = parts["data"], parts["row"], parts["col"]
    for what, index, size in (("row", row, shape[0]), ("column", col, shape[1])):
        _require_integers(name, f"{what} indices", index)
        if data.shape != index.shape:
            raise _refusal(name, f"data of shape {data.shape} and {len(index)} {what} indices", "as many of each")
        _require_inside(name, what, index, size)
    return scipy.sparse.coo_array((data, (row, col)), shape=shape)


def _dia(name: str, shape: tuple[int, int], parts: Parts) -> Any:
    data, offsets = parts["data"], parts["offsets"]
    _require_integers(name, "offsets", offsets)
    if data.ndim != 2 or len(data) != len(offsets) or len(np.unique(offsets)) < len(offsets):
        got = f"data of shape {data.shape} and the offsets {offsets[:5].tolist()}"
        raise _refusal(name, got, "one row of data for each diagonal, and each diagonal once")
    inside = (offsets < shape[1]) & (offsets > -shape[0])  # others have no cells
    return scipy.sparse.dia_array((data[inside], offsets[inside].astype(np.int64)), shape=shape)


COMPRESSED = ("data", "indices", "indptr")
LAYOUTS: dict[str, tuple[Callable[[str, tuple[int, int], Parts], Any], tuple[str, ...]]] = {
    "csr": (_csr, COMPRESSED),
    "csc": (_csc, COMPRESSED),
    "bsr": (_bsr, COMPRESSED),
    "coo": (_coo, ("data", "row", "col")),
    "dia": (_dia, ("data", "offsets")),
}


def _check_shape(name: str, shape: Any) -> tuple[int, int]:
    sides = np.asarray(shape)
    if sides.shape != (2,) or sides.dtype.kind not in "iu" or not np.all((sides >= 0) & (sides <= LARGEST)):
        got = " ".join(repr(sides.tolist()).split())[:60]
        raise _refusal(name, f"the shape {got}", f"two whole numbers from 0 to 2^31 - 1 = {LARGEST}")
    return int(sides[0]), int(sides[1])


def _require_integers(name: str, what: str, array: Array) -> None:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _refusal(name, f"{what} of type {array.dtype} and shape {array.shape}", "one list of integers")


def _require_inside(name: str, what: str, indices: Array, size: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        first = int(np.argmax((indices < 0) | (indices >= size)))
        raise _refusal(name, f"the {what} index {indices[first]} at place {first}", f"indices from 0 to {size - 1}")


def _refusal(name: str, got: str, expected: str) -> InputError:
    return InputError(name, f"a malformed sparse matrix: {got}", expected, ANEW)

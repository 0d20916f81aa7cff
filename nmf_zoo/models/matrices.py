"""Any table -> numbers, missing cells and labels; where a bad cell stands, in words."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import xarray as xr

from nmf_zoo.errors import InputError, shown
from nmf_zoo.labels import FORMER, OBS, are_counted, contradict, flat_labels, writable_labels
from nmf_zoo.sparse import read_sparse

Array = np.ndarray
ROWS, COLUMNS = "feature", OBS


@dataclass(frozen=True)
class Table:
    """A dense matrix as it was given.

    Attributes
    ----------
    values : (F, N), bool, int or float
    missing : (F, N) bool, or None when no cell is marked as missing (NaN cells are found later)
    labels : labels of the rows ("feature") and columns ("obs"), where there are some
    """

    values: Array
    missing: Array | None
    labels: dict[str, Array]


def read_table(name: str, given: Any) -> Table:
    """A NumPy array, masked array, nested list, DataFrame or DataArray as a Table."""
    given, labels = read_labels(given)
    missing = None
    if isinstance(given, np.ma.MaskedArray):
        given, missing = given.data, np.ma.getmaskarray(given)
    values = as_matrix(name, given)
    return Table(as_numbers(name, values, labels, missing), missing, labels)


def read_labels(given: Any) -> tuple[Any, dict[str, Array]]:
    """The cells and the labels of a DataFrame, Series (a row) or DataArray; anything else as it is, without labels."""
    is_table = not isinstance(given, xr.DataArray) or given.ndim == 2
    return read_along(given, (ROWS, COLUMNS)) if is_table else (given, {})


def read_along(given: Any, dims: tuple[str, ...]) -> tuple[Any, dict[str, Array]]:
    """What is known along these dims, and its labels: a Series, and a single axis, go along the last.

    Dims of a DataArray are known by name ("obs" also as "sample", as it was called before), else by position.
    """
    if isinstance(given, pd.Series):
        return given.to_numpy(), {dim: flat_labels(given.index) for dim in dims[-1:]}
    if isinstance(given, pd.DataFrame):
        axes = zip(dims, (given.index, given.columns), strict=False)
        return given.to_numpy(), {dim: flat_labels(index) for dim, index in axes}
    if not isinstance(given, xr.DataArray) or not 1 <= given.ndim <= len(dims):
        return given, {}
    theirs = [FORMER if dim == COLUMNS and COLUMNS not in given.dims else dim for dim in dims]
    if given.ndim == 2 and (given.dims[0] == theirs[1] or given.dims[1] == theirs[0]):
        given = given.transpose()
    is_column = given.ndim < len(dims) and given.dims[0] == theirs[0]
    own = zip(dims[:1] if is_column else dims[-given.ndim :], given.dims, strict=True)
    labels = {dim: flat_labels(given.indexes[name]) for dim, name in own if name in given.indexes}
    values = given.to_numpy()
    return values[:, None] if is_column else values, labels


def in_place(name: str, given: Any, dims: tuple[str, ...], coords: Mapping[str, Array]) -> Any:
    """What is known along these dims of a model, which has its labels in its order if it is labelled."""
    values, own = read_along(by_its_labels(name, given, dims, coords, "the model"), dims)
    found = {dim: writable_labels(dim, labels) for dim, labels in own.items() if len(labels) > 1}
    check_same_labels(name, found, coords, "the model")
    return values


def by_its_labels(name: str, given: Any, dims: tuple[str, ...], coords: Mapping[str, Array], whose: str = "X") -> Any:
    """A Series as a column where its labels are those of the first of two dims; anything else as it is.

    One that has labels of neither is refused where the last, along which it would go, has labels of its own.
    """
    if not isinstance(given, pd.Series) or len(dims) != 2 or len(given) < 2:
        return given
    own = flat_labels(given.index)
    if are_counted(own):
        return given
    has = [dim in coords and {*writable_labels(dim, own)} == {*coords[dim]} for dim in dims]
    if has == [True, False]:
        return given.to_frame()
    if not any(has) and dims[1] in coords and not are_counted(coords[dims[1]]):
        labelled = [repr(dim) for dim in dims if dim in coords and not are_counted(coords[dim])]
        got = f"a Series labelled {', '.join(map(str, own[:3]))}{', ...' * (len(own) > 3)}"
        expected = f"labels of {' or '.join(labelled)}, {whose}'s, in its order"
        raise InputError(name, got, expected, "reindex it, or give an array, which goes by place")
    return given


def check_same_labels(name: str, found: Mapping[str, Array], expected: Mapping[str, Array], whose: str = "X") -> None:
    """Rows and columns go by position, so labels that say otherwise are an error."""
    for dim in set(found) & set(expected):
        if contradict(found[dim], expected[dim]):
            got, theirs = f"labels of {dim!r} that differ from {whose}'s", f"{whose}'s, in its order"
            raise InputError(name, got, theirs, f"reindex it like {whose}")


def in_order_of_samples(name: str, given: Any, own: Array) -> Any:
    """A Series or DataFrame by the labels of its rows, where they are X's samples' (``own``) in any order.

    Rows that are numbered in order go by position, and so do all where X's samples are numbered.
    """
    index = flat_labels(given.index)
    if are_counted(index):
        return given
    if given.index.is_unique and len(index) == len(own) and set(index) == set(own):
        return given.iloc[pd.Index(index).get_indexer(own)]
    if isinstance(given.index, pd.RangeIndex):
        return given
    if not np.array_equal(own, np.arange(len(own))):
        check_same_labels(name, {COLUMNS: index}, {COLUMNS: own})
    return given


def as_matrix(name: str, given: Any) -> Array:
    """An array with two axes, both of positive length."""
    if isinstance(given, str | PathLike):
        raise InputError(name, f"the text {shown(str(given))}", "a matrix (feature, obs)", "read the file first")
    if hasattr(given, "shape") and not hasattr(given, "__array__"):
        do = "nz.tl.nmf takes it; or give its counts, samples in columns" if hasattr(given, "obsm") else ""
        raise InputError(name, f"an object of type {type(given).__name__}", "a matrix (feature, obs)", do)
    try:
        values = np.asarray(given)
    except ValueError as error:
        raise InputError(name, "rows of different lengths", "a matrix (feature, obs)") from error
    except TypeError as error:  # xarray's Dataset, of many arrays
        raise InputError(name, f"a {type(given).__name__}", "a matrix (feature, obs)") from error
    check_matrix_shape(name, values.shape)
    return values


def check_matrix_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        do = "reshape it, or use X[:, None] for a single sample" if len(shape) == 1 else "reshape it"
        raise InputError(name, f"{len(shape)} axes, shape {shape}", "2: (feature, obs)", do)
    if 0 in shape:
        raise InputError(name, f"shape {shape}", "at least one feature and one sample")


def as_numbers(name: str, values: Array, labels: dict[str, Array], missing: Array | None) -> Array:
    """The same values as bool, int or float; cells that are None or pandas' NA become NaN."""
    if values.dtype.kind in "biuf":
        return values
    if values.dtype.kind == "O":
        is_gap = pd.isna(values) if missing is None else pd.isna(values) | missing
        is_bad = np.reshape([not isinstance(v, numbers.Real | np.bool_) for v in values.flat], values.shape) & ~is_gap
        if not is_bad.any():
            return np.where(is_gap, np.nan, values).astype(np.float64)
    else:
        is_bad = np.ones(values.shape, dtype=bool)
    row, col = np.argwhere(is_bad)[0]
    cell = values[row, col].item() if isinstance(values[row, col], np.generic) else values[row, col]
    got = f"the non-numeric cell {cell!r} at {place(labels, row, col)}{others(is_bad.sum())}"
    raise InputError(name, got, "numbers", "drop or convert that column, or mark missing cells as NaN")


def check_cells(name: str, values: Array, is_bad: Array, labels: dict[str, Array], what: str, expected: str) -> None:
    """Refuse a matrix with bad cells; say how many and where the first stands."""
    if is_bad.any():
        row, col = divmod(int(np.argmax(is_bad)), is_bad.shape[1])
        raise_bad_cell(name, values[row, col], (row, col), int(is_bad.sum()), labels, what, expected)


def raise_bad_cell(
    name: str, value: Any, cell: Sequence[int], count: int, labels: dict[str, Array], what: str, expected: str
) -> None:
    got = f"the {what} {value} at {place(labels, *cell)}{others(count)}"
    raise InputError(name, got, expected, "mark cells that were not observed with NaN or mask=")


def place(labels: dict[str, Array], row: int, col: int) -> str:
    """``feature 'gene7', obs 3``: labels where there are some, else positions from 0."""
    found = (labels[dim][i] if dim in labels else i for dim, i in ((ROWS, row), (COLUMNS, col)))
    first, second = (repr(str(label)) if isinstance(label, str) else str(label) for label in found)
    return f"{ROWS} {first}, {COLUMNS} {second}"


def others(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def read_mask(
    given: Any, shape: tuple[int, int], labels: Mapping[str, Array] | None = None, *, keeps_sparse: bool = True
) -> Any:
    """``mask=``: bool, of the shape of X, True = observed, and labelled as X (``labels``) if it is labelled.

    A sparse one stays sparse where that is wanted.
    """
    is_sparse = scipy.sparse.issparse(given)
    if is_sparse:
        found = given
    else:
        found, own = read_labels(given)
        found = as_matrix("mask", found)
        check_same_labels("mask", own, labels or {})
    if found.dtype.kind != "b":
        raise InputError("mask", f"dtype {found.dtype}", "bool, True = observed", "use mask.astype(bool)")
    if found.shape != shape:
        raise InputError("mask", f"shape {found.shape}", f"{shape}, the shape of X")
    if not is_sparse:
        return found
    found = read_sparse("mask", found, dtype=bool)
    return found if keeps_sparse else found.toarray()


# -- arrays of known numbers -------------------------------------------------------------------------------------


def span(array: Array) -> str:
    """What is wrong with numbers, in words: how many are not finite, else their range."""
    n_odd = int(np.sum(~np.isfinite(array)))
    return (
        f"values that are NaN or infinite ({n_odd} of them)"
        if n_odd
        else f"values from {np.min(array)} to {np.max(array)}"
    )


def as_float_array(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(name, "rows of different lengths", "a number or an array") from error
    if array.dtype.kind not in "biuf":
        raise InputError(name, f"{type(value).__name__} {value!r}"[:80], "a number or an array of numbers")
    return array.astype(np.float64)


def check_broadcast(name: str, found: tuple[int | None, ...], shape: tuple[int, ...]) -> None:
    """``found`` broadcasts to ``shape`` by NumPy's rules; None is a length not known yet."""
    pairs = list(zip(found[::-1], shape[::-1], strict=False))
    if len(found) <= len(shape) and all(a in (1, None, b) for a, b in pairs):
        return
    fits_column = len(found) == 1 and len(shape) == 2 and found[0] == shape[0]
    do = f"use shape ({found[0]}, 1), e.g. value[:, None]" if fits_column else ""
    raise InputError(name, f"shape {found}", f"a shape that broadcasts to {shape}", do)

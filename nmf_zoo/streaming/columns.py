"""What ``Stream.update`` is given, as columns; everything is checked before the stream changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import xarray as xr

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.inference.shared.requirements import UNITS
from nmf_zoo.kernels.powers.frame_gibbs import Frames
from nmf_zoo.labels import writable_labels
from nmf_zoo.models.matrices import (
    COLUMNS,
    ROWS,
    check_cells,
    check_same_labels,
    flat_labels,
    raise_bad_cell,
    read_labels,
    read_mask,
    read_table,
    span,
)
from nmf_zoo.models.observed import MAX_COUNT
from nmf_zoo.models.offsets import check_numbers, is_pair, read_array
from nmf_zoo.runtime.stream_engine import Block, Columns, StreamEngine, columns_of
from nmf_zoo.sparse import read_sparse, require_listed
from nmf_zoo.structure import Array, Factorisation

Labels = dict[str, Array]


def read_block(
    x: Any,
    structure: Factorisation,
    number: int,
    engine: StreamEngine,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
) -> Block:
    """What the engine wants of one column or a block (feature, n), dense or sparse; ``number`` came before them."""
    block = _read_cells(x, structure, number, engine, mask, observed)
    if exposure is None:
        return block
    shape = structure.shape[0], block.n_columns
    return with_exposures(block, _read_exposures(exposure, x, shape, structure, engine))


def _read_exposures(
    given: Any, x: Any, shape: tuple[int, int], structure: Factorisation, engine: StreamEngine
) -> Array:
    """One for each column, (n,)."""
    if refusal := engine.takes_exposures(structure).reason:
        raise InputError("exposure", "exposures of columns", "None", refusal)
    expected, do = f"a number, or one per column, {shape[1]}", "declare exposures of features with the model"
    if is_pair(given):
        raise InputError("exposure", "a pair", expected, do)
    labels = {} if sp.issparse(x) else read_labels(_as_block(x))[1]
    array = check_numbers("exposure", read_array("exposure", given, shape, labels), positive=True)
    if array.ndim == 2 and len(array) > 1:
        raise InputError("exposure", f"shape {array.shape}", expected, do)
    if not UNITS[0] <= array.min() <= array.max() <= UNITS[1]:
        raise InputError("exposure", span(array), f"numbers from {UNITS[0]:g} to {UNITS[1]:g}", "change its unit")
    return np.broadcast_to(np.atleast_2d(array)[0], shape[1:])


def with_exposures(block: Block, exposure: Array) -> Block:
    """The columns with an exposure of their own each, (n,): powers are divided by it, which is all that it is to them.

    Raises
    ------
    InputError : a power over its exposure is no number
    """
    if isinstance(block, Columns):
        return block._replace(exposure=np.array(exposure, dtype=np.float64))
    with np.errstate(over="ignore"):
        power = block.power / exposure[:, None]
    if not np.all(np.isfinite(power)):
        raise InputError("exposure", f"{np.min(exposure):g}, by which x has infinite powers", "a larger one")
    return block._replace(power=power)


def _read_cells(
    x: Any, structure: Factorisation, number: int, engine: StreamEngine, mask: Any, observed: str | None
) -> Block:
    if observed not in (None, "stored"):
        raise InputError("observed", repr(observed), "None or 'stored'")
    if sp.issparse(x):
        columns = _read_listed(x, structure, number, engine.is_counts, mask, observed)
        return columns if engine.block is Columns else _spread(columns, structure.shape[0])
    if observed is not None:
        raise InputError("observed", "'stored' with a dense x", "a sparse x", "use mask= or NaN for missing cells")
    table = read_table("x", _as_block(x))
    _check_size(table.values.shape, structure)
    _check_labels(table.labels, structure)
    values = table.values.astype(np.float64)
    missing = np.isnan(values)
    if table.missing is not None:
        missing |= table.missing
    if mask is not None:
        mask = _as_block(mask) if np.ndim(mask) == 1 else mask
        missing |= ~read_mask(mask, values.shape, table.labels, keeps_sparse=False)
    values[missing] = 0.0
    known = _names(structure, number, values.shape[1])
    for is_bad, what, expected in _bad(values, engine.is_counts):
        check_cells("x", values, is_bad, known, what, expected)
    return _from_dense(values, missing, number, engine)


def labels_of_rows(x: Any) -> Array | None:
    """Labels of the features in new columns, where they have some."""
    return None if sp.issparse(x) else read_labels(_as_block(x))[1].get(ROWS)


def _as_block(x: Any) -> Any:
    """One column as a block of one."""
    if isinstance(x, pd.Series):
        return x.to_frame(0)
    if isinstance(x, xr.DataArray) and x.ndim == 1:
        frame = pd.Series(x.to_numpy(), index=x.indexes.get(x.dims[0]))
        return frame.to_frame(0)
    if isinstance(x, pd.DataFrame | xr.DataArray):
        return x
    try:
        array = x if isinstance(x, np.ma.MaskedArray) else np.asarray(x)
    except ValueError:
        return x  # rows of different lengths: said by who reads it
    if array.ndim == 0:
        got = " ".join(repr(x).split())[:60]
        raise InputError("x", got, "one column (features,) or a block (features, columns)")
    return array[:, None] if array.ndim == 1 else array


def _check_size(shape: tuple[int, ...], structure: Factorisation) -> None:
    n_features = structure.shape[0]
    if shape[0] == n_features:
        return
    do = "transpose it: features are rows" if n_features in shape[1:] else "give every feature, 0 where it has no count"
    raise InputError("x", number_of(shape[0], "feature"), f"{n_features}, as the model has", do)


def _check_labels(labels: Labels, structure: Factorisation) -> None:
    own = structure.coords.get(structure.axes[0])
    if own is not None and ROWS in labels:
        check_same_labels("x", {ROWS: labels[ROWS]}, {ROWS: flat_labels(pd.Index(own))}, "the model")


def _names(structure: Factorisation, number: int, n_columns: int) -> Labels:
    """What a message calls rows and columns: the model's features, and a column's place in the stream."""
    own = structure.coords.get(structure.axes[0])
    features = {} if own is None else {ROWS: own.astype(object)}
    return features | {COLUMNS: np.arange(number, number + n_columns)}


def _bad(values: Array, is_counts: bool) -> list[tuple[Array, str, str]]:
    """What observed cells must not be."""
    found = [
        (~np.isfinite(values), "infinite cell", "finite numbers"),
        (values < 0, "negative cell", "numbers >= 0"),
    ]
    if is_counts:
        found.append((values != np.floor(values), "non-integer cell", "counts: this engine allocates them"))
        found.append((values > MAX_COUNT, "count", f"counts up to 2^31 - 1 = {MAX_COUNT}"))
    return found


def _from_dense(values: Array, missing: Array, number: int, engine: StreamEngine) -> Block:
    """All that was observed of a block (F, n)."""
    seen = ~missing.T
    if engine.block is Frames:
        return _frames(values.T, seen, number)
    cols, rows = np.nonzero(seen)
    return _tidy(cols, rows, values.T[seen], np.zeros(values.shape[1], dtype=bool), number, len(values))


def _frames(power: Array, seen: Array, number: int) -> Frames:
    """Frames with the dtypes that kernels are compiled for."""
    mask = np.empty((0, 0), dtype=bool) if seen.all() else np.ascontiguousarray(seen)
    return Frames(np.ascontiguousarray(power, np.float64), mask, number)


def _spread(columns: Columns, n_features: int) -> Frames:
    """Listed cells as frames."""
    power = np.zeros((columns.n_columns, n_features))
    seen = np.repeat(columns.complete[:, None], n_features, axis=1)
    at = np.repeat(np.arange(columns.n_columns), np.diff(columns.indptr)), columns.rows
    power[at], seen[at] = columns.values, True
    return _frames(power, seen, columns.number)


def _tidy(cols: Array, rows: Array, values: Array, complete: Array, number: int, n_features: int) -> Columns:
    """Columns from cells in order. One with every feature listed is complete; complete ones list their non-zeros."""
    complete = complete | (np.bincount(cols, minlength=len(complete)) == n_features)
    listed = ~complete[cols] | (values != 0)
    lengths = np.bincount(cols[listed], minlength=len(complete))
    return columns_of(np.concatenate([[0], np.cumsum(lengths)]), rows[listed], values[listed], complete, number)


def _read_listed(
    x: Any, structure: Factorisation, number: int, is_counts: bool, mask: Any, observed: str | None
) -> Columns:
    if x.ndim != 2 or 0 in x.shape:
        do = "slice a column as x[:, [n]]" if x.ndim != 2 else ""
        raise InputError("x", f"a sparse array of shape {x.shape}", "(features, columns)", do)
    _check_size(x.shape, structure)
    if mask is not None:
        raise InputError(
            "mask", "a mask with a sparse x", "observed='stored', or a dense x with NaN", "use x.toarray()"
        )
    if observed is not None:
        require_listed("x", x)
    matrix = read_sparse("x", x, "csc")
    values, is_gap = matrix.data, np.isnan(matrix.data)
    if is_gap.any() and observed is None:
        got = f"{is_gap.sum()} NaN cells in a sparse x whose other cells are zeros"
        do = "use observed='stored' if only stored cells were observed, or x.toarray()"
        raise InputError("x", got, "numbers", do)
    for is_bad, what, expected in _bad(np.where(is_gap, 0.0, values), is_counts):
        if is_bad.any():
            first = int(np.argmax(is_bad))
            cell = int(matrix.indices[first]), int(np.searchsorted(matrix.indptr, first, side="right") - 1)
            names = _names(structure, number, x.shape[1])
            raise_bad_cell("x", values[first], cell, int(is_bad.sum()), names, what, expected)
    cols = np.repeat(np.arange(x.shape[1]), np.diff(matrix.indptr))[~is_gap]
    complete = np.full(x.shape[1], observed is None)
    return _tidy(cols, matrix.indices[~is_gap], values[~is_gap], complete, number, x.shape[0])


def block_of_data(structure: Factorisation, engine: StreamEngine) -> Block | None:
    """The data that a model was declared with as the first columns of its stream."""
    data = structure.data
    if data is None:
        return None
    if not hasattr(data, "rows"):
        missing = np.zeros(data.shape, dtype=bool) if data.mask is None else ~data.mask
        return _from_dense(data.values, missing, 0, engine)
    order = np.lexsort((data.rows, data.cols))
    complete = np.full(structure.shape[1], data.is_complete)
    columns = _tidy(data.cols[order], data.rows[order], data.values[order], complete, 0, structure.shape[0])
    return columns if engine.block is Columns else _spread(columns, structure.shape[0])


def labels_of_columns(x: Any, first: int, n_columns: int) -> Array:
    """Labels of the columns of a block that has some, else their numbers."""
    labels = {} if sp.issparse(x) or np.ndim(x) != 2 else read_labels(x)[1]
    own = labels.get(COLUMNS)
    return np.arange(first, first + n_columns) if own is None else writable_labels(COLUMNS, own)

"""What is known of the mean beside W H: ``exposure=`` and ``background=``, checked and declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy.sparse
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.errors import InputError
from nmf_zoo.labels import are_counted
from nmf_zoo.models.matrices import (
    COLUMNS,
    ROWS,
    as_float_array,
    by_its_labels,
    check_broadcast,
    check_same_labels,
    read_along,
    span,
)
from nmf_zoo.models.observed import Observed, values_at
from nmf_zoo.sparse import read_sparse

Array = np.ndarray


class OuterProduct(NamedTuple):
    """One number per feature, (F, 1), times one per sample, (1, N)."""

    of_features: Array
    of_samples: Array


class PerCell(NamedTuple):
    """Numbers of the listed cells alone, (cells,), in their order."""

    values: Array


Offset = Array | OuterProduct | PerCell


def check_offset(
    name: str, value: Any, shape: tuple[int, int], labels: Mapping[str, Array], seen: Observed | None, *, positive: bool
) -> Offset | None:
    """Exposure (> 0, ``positive``) or background (>= 0): an array that broadcasts to ``shape``, with the labels of X.

    A tuple is an outer product, whose shapes are (F, 1) and (1, N) or (N,); a sparse matrix belongs to a sparse X of
    which only listed cells were observed.
    """
    if value is None:
        return None
    if scipy.sparse.issparse(value):
        return PerCell(check_numbers(name, of_listed(name, value, shape, seen), positive))
    parts = value if is_pair(value) else (value,)
    if isinstance(value, tuple) and len(parts) == 1:
        refuse_ragged(name, value)
    arrays = [check_numbers(name, read_array(name, part, shape, labels), positive) for part in parts]
    return OuterProduct(*map(np.atleast_2d, arrays)) if len(arrays) > 1 else arrays[0]


def is_pair(value: Any) -> bool:
    """Two tables, of one column and of one row, which may have a single axis."""
    tables = value if isinstance(value, tuple) and len(value) == 2 else ()
    shapes = [shape_of(table) for table in tables]
    if len(shapes) != 2 or not shapes[1]:
        return False
    return len(shapes[0]) == 2 and shapes[0][1] == 1 and shapes[1][:-1] in ((), (1,))


def labels_of_offsets(*values: Any) -> dict[str, Array]:
    """Labels of features and samples along which these differ, for a model without data; 0, 1, 2, ... say nothing."""
    labels: dict[str, Array] = {}
    for value in values:
        for part in value if is_pair(value) else (value,):
            for dim, found in read_along(part, (ROWS, COLUMNS))[1].items():
                if len(found) > 1 and not are_counted(found):
                    labels.setdefault(dim, found)
    return labels


def refuse_ragged(name: str, value: tuple[Any, ...]) -> None:
    """Arrays in a tuple that are neither a pair nor the rows of a table."""
    shapes = [shape_of(part) for part in value]
    if len(set(shapes)) > 1 and () not in shapes:
        got, expected = f"a tuple of shapes {', '.join(map(str, shapes))}", "a pair, (features, 1) and (1, samples)"
        raise InputError(name, got, expected, "e.g. of_features[:, None]")


def shape_of(table: Any) -> tuple[int, ...]:
    """Of an array or nested lists; () where rows have different lengths."""
    try:
        return np.shape(table)
    except ValueError:
        return ()


def read_array(name: str, value: Any, shape: tuple[int, int], labels: Mapping[str, Array]) -> Array:
    dims = ROWS, COLUMNS
    value, own = read_along(by_its_labels(name, value, dims, labels), dims)
    array = as_float_array(name, value)
    check_broadcast(name, array.shape, shape)
    check_same_labels(name, {dim: found for dim, found in own.items() if len(found) > 1}, labels)
    return array


def of_listed(name: str, value: Any, shape: tuple[int, int], seen: Observed | None) -> Array:
    """The values of a sparse matrix at the listed cells; what it doesn't store there is 0."""
    if seen is None or not seen.is_sparse or seen.is_complete:
        expected = "one for a sparse X of which only stored cells were observed (observed='stored')"
        do = "give an array, or a tuple (one per feature, one per sample) of shapes (features, 1) and (1, samples)"
        raise InputError(name, "a sparse matrix", expected, do)
    if value.shape != shape:
        raise InputError(name, f"shape {value.shape}", f"{shape}, the shape of X")
    assert seen.cells is not None
    return values_at(read_sparse(name, value), *seen.cells).astype(np.float64)


def check_numbers(name: str, array: Array, positive: bool) -> Array:
    if not np.all(np.isfinite(array)) or np.any(array < 0) or (positive and np.any(array == 0)):
        raise InputError(name, span(array), f"finite numbers {'>' if positive else '>='} 0")
    return array


# -- PyMC statements ---------------------------------------------------------------------------------------------


def declare_offset(name: str, value: Offset) -> TensorVariable:
    """What broadcasts to (F, N)."""
    if isinstance(value, OuterProduct):
        of_features, of_samples = declare_sides(name, value)
        return of_features * of_samples
    assert isinstance(value, np.ndarray)  # of the listed cells alone: declare_at_cells
    return declare_known(name, value)


def declare_sides(name: str, value: OuterProduct) -> tuple[TensorVariable, TensorVariable]:
    """(F, 1) and (1, N)"""
    return declare_known(f"{name}_feature", value.of_features), declare_known(f"{name}_obs", value.of_samples)


def declare_known(name: str, value: Array) -> TensorVariable:
    """Known data; axes of length 1 are declared as such, since PyTensor refuses to broadcast any other."""
    return pm.Data(name, value, shape=tuple(1 if size == 1 else None for size in value.shape))


def declare_at_cells(name: str, value: Offset, cells: tuple[Array, Array], shape: tuple[int, int]) -> TensorVariable:
    """Its values at the listed cells, (cells,), whatever it was given as."""
    if isinstance(value, OuterProduct):
        values = value.of_features[cells[0], 0] * value.of_samples[0, cells[1]]
    else:
        values = value.values if isinstance(value, PerCell) else np.broadcast_to(value, shape)[cells]
    return pm.Data(name, values, dims="cell")

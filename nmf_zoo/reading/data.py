"""The data: a matrix, or listed cells; and missing cells that PyMC made a free variable."""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.scalar import Cast

from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import ModelGraph, is_elemwise, known_value, name_of, strip_names
from nmf_zoo.reading.likelihoods import Observation, read_observation, read_parameters
from nmf_zoo.reading.products import CellIndex, split_index
from nmf_zoo.reading.registry import parameters
from nmf_zoo.structure import (
    CellParameter,
    Cells,
    Data,
    Dense,
    Imputed,
    Known,
    Likelihood,
    Multipliers,
    Unknown,
    is_rising,
)

Array = np.ndarray
Listed = tuple[Array, Array]  # rows and columns of cells
DENSE_FRACTION = 0.1  # more listed cells than this part of all: a matrix with a mask is smaller and faster


def read_data(graph: ModelGraph, seen: Observation, shape: tuple[int, int]) -> tuple[Data | None, Listed | None]:
    """The observed data, None for a free X; and the cells in the model's order where it lists them."""
    name = seen.name
    if graph.is_free(seen.variable):
        if seen.cells is not None:
            raise UnreadableModel(
                name, "listed cells without data", "observed cells", "use pm.observe, or a whole matrix"
            )
        check_length(name, graph.shapes[name], shape)
        return None, None
    values = observed_values(graph, seen.variable)
    check_values(name, values, seen.likelihood)
    if seen.cells is None:
        check_length(name, values.shape, shape)
        return Dense(values=values), None
    rows, cols = cells_inside(name, seen.cells, shape)
    check_length(name, values.shape, rows.shape)
    if seen.is_complete is not None:
        cells = Cells(rows=rows, cols=cols, values=values, shape=shape, is_complete=seen.is_complete)
        return cells, (rows, cols)
    return incomplete_data(rows, cols, values, shape), (rows, cols)


def incomplete_data(rows: Array, cols: Array, values: Array, shape: tuple[int, int]) -> Data:
    """Unlisted cells are missing: a list of few cells, or a matrix with a mask (None when none is missing)."""
    if len(rows) <= DENSE_FRACTION * shape[0] * shape[1]:
        return Cells(rows=rows, cols=cols, values=values, shape=shape, is_complete=False)
    full, mask = np.zeros(shape), np.zeros(shape, dtype=bool)
    full[rows, cols], mask[rows, cols] = values, True
    return Dense(values=full, mask=None if mask.all() else mask)


def observed_values(graph: ModelGraph, variable: Variable) -> Array:
    """The observed values as float64, the model's own array if it is one.

    A cast of real data to integers (PyMC's, for counts) must lose nothing.
    """
    value = strip_names(graph.model.rvs_to_values[variable])
    if not ModelGraph.is_known(value):
        raise UnreadableModel(name_of(variable), "data that aren't known", "an array or pm.Data", "observe plain data")
    if not is_elemwise(value, Cast):
        return np.asarray(known_value(value), dtype=np.float64)
    original = known_value(value.owner.inputs[0])
    cast = np.array(known_value(value), dtype=np.float64)
    if np.any(cast != original):
        do = "use nmf_zoo.distributions.RealPoisson for real-valued data"
        raise UnreadableModel(name_of(variable), "non-integer data, which PyMC truncates", "integer counts", do)
    return cast


def check_values(name: str, values: Array, likelihood: type[Likelihood]) -> None:
    """Finite, and such as the likelihood can have."""
    if not np.all(np.isfinite(values)):
        raise UnreadableModel(
            name, "NaN or infinite data", "finite numbers", "list the observed cells, or mask the others"
        )
    refusal = likelihood.refusal_of(values)
    if refusal is not None:
        raise UnreadableModel(name, *refusal)


def check_length(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise UnreadableModel(
            name, f"data of shape {found}", f"{expected}, the shape of its mean", "check dims and factors"
        )


def cells_inside(name: str, cells: CellIndex, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Row and column indices, counted from the start, each cell at most once."""
    if len(cells.parts) == 1:
        check_length(name, cells.parts[0].shape, shape)
    rows, cols = cells.rows_and_cols()
    check_length(name, rows.shape, cols.shape)
    for index, size in ((rows, shape[0]), (cols, shape[1])):
        if index.size and (index.min() < -size or index.max() >= size):
            raise UnreadableModel(name, f"cell index {index.max()}", f"indices below {size}", "check the cell indices")
    rows, cols = _from_the_start(rows, shape[0]), _from_the_start(cols, shape[1])
    if has_repeats(rows, cols, shape[1]):
        raise UnreadableModel(name, "a cell listed twice", "each cell at most once", "add up repeated cells first")
    return rows, cols


def _from_the_start(index: Array, size: int) -> Array:
    """Non-negative int32 indices; the given array itself where it holds such."""
    counted = index % size if index.min(initial=0) < 0 else index
    return counted.astype(np.int32, copy=False)


def has_repeats(rows: Array, cols: Array, n_cols: int) -> bool:
    """Whether a cell is listed twice; lists in the order of either side, as most are, need no sorting."""
    if is_rising(rows, cols) or is_rising(cols, rows):
        return False
    flat = np.sort(rows.astype(np.int64) * n_cols + cols)
    return bool(np.any(flat[1:] == flat[:-1]))


def as_imputed(graph: ModelGraph, variable: Variable, seen: Observation, shape: tuple[int, int]) -> Imputed | None:
    """The free variable that holds the cells a masked array left out: the same likelihood, other cells of one mean."""
    if seen.cells is None or type(variable.owner.op) is not type(seen.variable.owner.op):
        return None
    pairs = zip(parameters(variable), parameters(seen.variable), strict=True)
    if not any(
        split_index(own)[1] is not None and split_index(own)[0] is split_index(of_seen)[0] for own, of_seen in pairs
    ):
        return None
    own = read_observation(variable)
    if own.cells is None or not has_same_parameters(graph, own, seen, shape):
        return None
    rows, cols = (index.astype(np.int64) for index in own.cells.rows_and_cols())
    return Imputed(name=name_of(variable), rows=rows, cols=cols)


def has_same_parameters(graph: ModelGraph, first: Observation, second: Observation, shape: tuple[int, int]) -> bool:
    """Two observations of cells of one matrix have the same parameters beside the mean."""
    own, other = (read_parameters(graph, seen, shape) for seen in (first, second))
    return all(is_same(own[role], other[role]) for role in own)


def is_same(first: CellParameter, second: CellParameter) -> bool:
    if isinstance(first, Multipliers) and isinstance(second, Multipliers):
        return first.variable.name == second.variable.name and np.array_equal(first.batch, second.batch)
    if isinstance(first, Known) and isinstance(second, Known):
        return np.array_equal(first.value, second.value)
    return isinstance(first, Unknown) and isinstance(second, Unknown) and first.name == second.name

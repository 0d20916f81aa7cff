"""Parameters of X's law beside its mean: known or free, one for all cells, per feature, per sample or per cell.

A free one may be written with axes of length one, repeated, or indexed by the cells that are listed
(``sigma[:, None]``, ``sigma[rows]``, ``sigma[rows, cols]``). What it is at each cell is found by putting the numbers of
its entries in its place: whatever the spelling, they say which cells share an entry.
"""

from __future__ import annotations

import numpy as np
import pytensor
from pytensor.graph.basic import Variable
from pytensor.tensor import subtensor
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle

from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import (
    INTERPRETED,
    ModelGraph,
    known_value,
    name_of,
    spell,
    strip,
)
from nmf_zoo.reading.hyperparameters import read_hyper_prior
from nmf_zoo.structure import CellParameter, Known, KnownAtCells, Listed, Unknown

Array = np.ndarray
Cells = tuple[Array, Array]  # rows and columns
Shape = tuple[int, int]
OF_VECTORS = getattr(subtensor, "AdvancedSubtensor1", subtensor.AdvancedSubtensor)  # a class of its own in PyTensor 2
# operations that change no number
REPEATS = (DimShuffle, Alloc, subtensor.Subtensor, subtensor.AdvancedSubtensor, OF_VECTORS)


def read_cell_parameter(
    graph: ModelGraph, whose: tuple[str, str], variable: Variable, shape: Shape, cells: Cells | None
) -> CellParameter:
    """What broadcasts to the (F, N) matrix, from what stands at it or at its listed cells; ``whose``: X's, role."""
    if ModelGraph.is_known(variable):
        return _read_known(whose, variable, shape, cells)
    found = _as_unknown(graph, source_of(variable), variable, shape, cells)
    if found is None:
        name, role = whose
        expected = "known values or one free variable: for all cells, one per feature, per sample or per cell"
        raise UnreadableModel(name, f"{role} = {spell(variable)}", expected, f"write {role} so, or use pm.sample")
    return found


# -- known -----------------------------------------------------------------------------------------------------------


def _read_known(whose: tuple[str, str], variable: Variable, shape: Shape, cells: Cells | None) -> CellParameter:
    name, role = whose
    value = np.asarray(known_value(variable), dtype=np.float64)
    if not (np.all(np.isfinite(value)) and np.all(value > 0)):
        found = f"{role} from {value.min()} to {value.max()}"
        raise UnreadableModel(name, found, "finite numbers > 0", f"check {role}")
    if value.size == 1:
        return Known(value=value.reshape(()))
    if cells is None:
        return Known(value=_as_table(whose, value, shape))
    whole = _whole_of(variable, value, shape, cells)
    if whole is not None:
        return Known(value=whole)
    if value.shape != cells[0].shape:
        expected = f"{len(cells[0])}, as many as there are listed cells, or one"
        raise UnreadableModel(name, f"{role} of shape {value.shape}", expected, "reshape it")
    rows, cols = (index.astype(np.int32) for index in cells)
    return KnownAtCells(listed=Listed(rows=rows, cols=cols, values=value, shape=shape, elsewhere=np.nan))


def _as_table(whose: tuple[str, str], value: Array, shape: Shape) -> Array:
    table = np.atleast_2d(value)
    if table.ndim > 2 or not all(a in (1, b) for a, b in zip(table.shape, shape, strict=True)):
        name, role = whose
        expected = f"a shape that broadcasts to {shape}"
        raise UnreadableModel(name, f"{role} of shape {value.shape}", expected, "reshape it")
    return table


def _whole_of(variable: Variable, value: Array, shape: Shape, cells: Cells) -> Array | None:
    """The array of the whole matrix that was indexed by the listed cells, where it was: missing cells have theirs."""
    inner = strip(variable)
    while inner.owner is not None and isinstance(inner.owner.op, REPEATS):
        inner = strip(inner.owner.inputs[0])
        whole = np.asarray(known_value(inner), dtype=np.float64)
        for table in (whole[:, None], whole[None, :]) if whole.ndim == 1 else (whole,):
            fits = table.ndim == 2 and all(a in (1, b) for a, b in zip(table.shape, shape, strict=True))
            if fits and np.array_equal(np.broadcast_to(table, shape)[cells], value) and _is_usable(table):
                return table
    return None


def _is_usable(table: Array) -> bool:
    return bool(np.all(np.isfinite(table)) and np.all(table > 0))


# -- unknown ---------------------------------------------------------------------------------------------------------


def source_of(variable: Variable) -> Variable:
    """The variable that this one repeats, turns or indexes."""
    variable = strip(variable)
    while variable.owner is not None and isinstance(variable.owner.op, REPEATS):
        variable = strip(variable.owner.inputs[0])
    return variable


def _as_unknown(
    graph: ModelGraph, source: Variable, variable: Variable, shape: Shape, cells: Cells | None
) -> Unknown | None:
    if not graph.is_free(source):
        return None
    own = graph.shapes[name_of(source)]
    tie = _tie(_entries(source, variable, own), own, shape, cells)
    if tie is None:
        return None
    return Unknown(name=name_of(source), variable_shape=own, shape=tie, prior=read_hyper_prior(source))


def _entries(source: Variable, variable: Variable, own: tuple[int, ...]) -> Array:
    """Which entry of the source stands in each place of the variable."""
    numbers = np.arange(np.prod(own, dtype=int), dtype=source.type.dtype).reshape(own)
    found = pytensor.function([source], variable, mode=INTERPRETED, on_unused_input="ignore")(numbers)
    return np.asarray(found).astype(np.int64)


def _tie(entries: Array, own: tuple[int, ...], shape: Shape, cells: Cells | None) -> tuple[int, ...] | None:
    """The shape in which the source's entries, in their order, broadcast to the matrix and give those seen."""
    size = int(np.prod(own, dtype=int))
    for tie in ((), (shape[0], 1), (1, shape[1]), shape):
        if int(np.prod(tie, dtype=int)) != size:
            continue
        table = np.broadcast_to(np.arange(size).reshape(tie), shape)
        expected = table if cells is None else table[cells]
        fits = entries.ndim <= expected.ndim and all(
            a in (1, b) for a, b in zip(entries.shape[::-1], expected.shape[::-1], strict=False)
        )
        if fits and np.array_equal(np.broadcast_to(entries, expected.shape), expected):
            return tie
    return None

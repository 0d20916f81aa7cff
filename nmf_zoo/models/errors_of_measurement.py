"""``sigma=``: the standard deviations of X's cells, known or not, one for all, per feature, per sample or per cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import scipy.sparse
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.labels import OBS
from nmf_zoo.models.hyperparameters import (
    Free,
    Hyperparameter,
    check_hyperparameter,
    is_symbolic,
    require_positive,
    variable_shape,
)
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.matrices import check_cells
from nmf_zoo.models.observed import values_at
from nmf_zoo.models.offsets import (
    Offset,
    OuterProduct,
    PerCell,
    check_offset,
    declare_at_cells,
    declare_offset,
    read_array,
)

X_DIMS = ("feature", OBS)


@dataclass(frozen=True)
class Errors:
    """Checked standard deviations, not yet part of a model.

    ``value`` : a number, a variable or a recipe (`Hyperparameter`); or known ones that differ between cells
    """

    value: Hyperparameter | Offset

    def declare(self, inputs: Inputs) -> TensorVariable:
        """What broadcasts to X as it is observed: the whole matrix, or its listed cells."""
        cells = None if inputs.observed is None else inputs.observed.cells
        if not isinstance(self.value, Hyperparameter):
            return declare_known(self.value, inputs, cells)
        sigma = self.value.declare()
        if cells is None or sigma.ndim == 0:
            return sigma
        shape = (1, *variable_shape("sigma", sigma))[-2:]
        return at_cells(sigma[None, :] if sigma.ndim == 1 else sigma, shape)


def declare_known(value: Offset, inputs: Inputs, cells: tuple[np.ndarray, np.ndarray] | None) -> TensorVariable:
    """Known ones, those of missing cells, too, where they are known; of a sparse X where it costs no whole table."""
    if cells is None:
        return declare_offset("sigma", value)
    is_tied = isinstance(value, np.ndarray) and 1 in value.shape
    if isinstance(value, PerCell) or (inputs.observed.is_sparse and not is_tied):
        return declare_at_cells("sigma", value, cells, inputs.shape)
    table = value.of_features * value.of_samples if isinstance(value, OuterProduct) else value
    return at_cells(declare_offset("sigma", table), table.shape)


def at_cells(sigma: TensorVariable, shape: tuple[int, ...]) -> TensorVariable:
    """Those of the listed cells, (cells,), of what has this shape and broadcasts to X."""
    places = [pm.modelcontext(None)[name] for name in ("cell_feature", "cell_obs")]
    index = tuple(place if size > 1 else 0 for place, size in zip(places, shape, strict=True))
    return sigma[index]


def check_errors(sigma: Any, inputs: Inputs) -> Errors:
    """Numbers > 0 that broadcast to X, labelled as X is if they are labelled; variables; or ``nz.free()``.

    Where cells are missing, theirs may be NaN. Of a sparse X a sparse matrix has those of the stored cells.
    """
    if isinstance(sigma, Free) or is_symbolic(sigma):
        return Errors(check_hyperparameter("sigma", sigma, X_DIMS, inputs))
    seen, labels = inputs.observed, inputs.coords
    if isinstance(sigma, tuple) or scipy.sparse.issparse(sigma):
        known = check_offset("sigma", sigma, inputs.shape, labels, seen, positive=True)
        assert known is not None
        return Errors(known)
    array = read_array("sigma", sigma, inputs.shape, labels)
    if array.ndim == 0 or array.size == 1:
        return Errors(check_hyperparameter("sigma", array.reshape(()), (), inputs))
    array = np.atleast_2d(array)
    if seen is None or seen.cells is None:
        return Errors(_positive(array, inputs))
    at_cells = values_at(np.broadcast_to(array, inputs.shape), *seen.cells)
    require_positive("sigma", at_cells)
    is_known = bool(np.all(np.isfinite(array)) and np.all(array > 0))
    return Errors(array if is_known else PerCell(at_cells))


def _positive(array: np.ndarray, inputs: Inputs) -> np.ndarray:
    """The same array; where it has a number for each cell, the first bad one is named by its place."""
    if array.shape == inputs.shape:
        is_bad = ~(np.isfinite(array) & (array > 0))
        check_cells("sigma", array, is_bad, inputs.coords, "value", "finite numbers > 0")
    require_positive("sigma", array)
    return array

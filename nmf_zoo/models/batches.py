"""Samples in batches: ``batch=`` of a declaration, which gives each feature a multiplier in each batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.labels import writable_labels
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.matrices import COLUMNS, in_order_of_samples
from nmf_zoo.options import names_checked

BATCH, OTHERS = "batch", "other_batch"  # dims: of all batches, and of those beside a reference


@names_checked
@dataclass(frozen=True, kw_only=True)
class Batches:
    """Batches of samples, and the prior of what multiplies the mean of each feature in each: Gamma(shape, shape).

    The prior mean of a multiplier is 1, its coefficient of variation 1 / sqrt(shape).

    Attributes
    ----------
    labels : (obs,), the batch of each sample: texts or numbers; a Series may be in any order, labelled as X is
    shape : of the prior; larger where batches are alike
    reference : a batch whose multipliers are 1, and all others relative to it; None for none. With one M has the dim
        "other_batch", and the reference is the last label of "batch"

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> batches = nz.Batches(labels=["a", "a", "b"], shape=20.0, reference="a")
    >>> model = nz.gamma_nmf([[1, 0, 4], [2, 3, 0]], rank=1, batch=batches)
    >>> model.coords["batch"], model.coords["other_batch"]
    (('b', 'a'), ('b',))
    """

    labels: Any
    shape: float = 5.0
    reference: Any = None

    def __post_init__(self):
        if not (isinstance(self.shape, int | float | np.number) and 0 < self.shape < np.inf):
            raise InputError("shape", repr(self.shape), "a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class CheckedBatches:
    """Checked batches; ``batch`` (obs,) counts the labels of the dim from 0, samples of a reference have their number.

    Attributes
    ----------
    batch : (N,) int64
    n_batches : without the reference
    shape : of the prior
    """

    batch: np.ndarray
    n_batches: int
    shape: float

    def declare(self) -> tuple[TensorVariable, TensorVariable]:
        """M (feature, batch), with a column of ones for a reference; and the column that each sample has."""
        prior = np.float64(self.shape)
        batch = pm.Data("batch_of_obs", self.batch, dims=COLUMNS)
        if not np.any(self.batch == self.n_batches):
            return pm.Gamma("M", prior, prior, dims=("feature", BATCH)), batch
        M = pm.Gamma("M", prior, prior, dims=("feature", OTHERS))
        return pt.concatenate([M, pt.ones((M.shape[0], 1))], axis=1), batch


def check_batches(given: Any, inputs: Inputs) -> tuple[CheckedBatches | None, Inputs]:
    """``batch=``, and the inputs with the labels of batches."""
    if given is None:
        return None, inputs
    recipe = given if isinstance(given, Batches) else Batches(labels=given)
    labels = read_batch_labels(recipe.labels, inputs.coords[COLUMNS])
    batch, names = pd.factorize(labels)
    if np.any(batch < 0):
        raise InputError(
            "batch", f"{number_of(np.sum(batch < 0), 'sample')} without a label", "a label for each sample"
        )
    names = np.asarray(names)
    if recipe.reference is not None:
        at = np.flatnonzero(names == recipe.reference)
        if not at.size:
            raise InputError("reference", repr(recipe.reference), f"one of the batches {names.tolist()}")
        if len(names) == 1:
            raise InputError("reference", repr(recipe.reference), "a batch beside others", "leave batch= out")
        order = np.append(np.delete(np.arange(len(names)), at), at)
        batch, names = np.argsort(order)[batch], names[order]
    coords = {**inputs.coords, BATCH: writable_labels(BATCH, names)}
    if recipe.reference is not None:
        coords[OTHERS] = coords[BATCH][:-1]
    n_batches = len(coords.get(OTHERS, coords[BATCH]))
    checked = CheckedBatches(batch=batch.astype(np.int64), n_batches=n_batches, shape=float(recipe.shape))
    return checked, replace(inputs, coords=coords)


def read_batch_labels(given: Any, own: np.ndarray) -> np.ndarray:
    """(N,), in the order of X's samples, whose labels are ``own``."""
    if isinstance(given, xr.DataArray):
        given = given.to_series() if given.ndim == 1 and given.dims[0] in given.coords else given.to_numpy()
    if isinstance(given, pd.Series):
        given = in_order_of_samples("batch", given, own)
    labels = np.asarray(given)
    if labels.shape != own.shape:
        raise InputError("batch", f"labels of shape {labels.shape}", f"({len(own)},), one for each sample of X")
    return labels.astype(object) if labels.dtype.kind in "UT" else labels

"""Covariates of samples: ``design=`` of a declaration, on which the prior scale of each row of H depends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.errors import InputError
from nmf_zoo.labels import writable_labels
from nmf_zoo.models.hierarchies import ARD
from nmf_zoo.models.hyperparameters import Free, is_symbolic, require_positive
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.known import RIGHT, activations_dims
from nmf_zoo.models.matrices import COLUMNS, as_float_array, check_broadcast, flat_labels, in_order_of_samples

Array = np.ndarray
COVARIATE = "covariate"
LEAST = 1e-4  # singular value of standardised columns, next to the largest, below which they say the same
HEAVY = 0.1  # of the largest weight in what is constant: columns that are named
MOST = 50.0  # logarithm of what slopes of three standard deviations multiply a mean by


@dataclass(frozen=True, kw_only=True)
class CheckedDesign:
    """Checked covariates.

    Attributes
    ----------
    values : (N, J)
    sigma : standard deviation of the slopes' normal prior, which broadcasts to (K, J)
    dims : of the slopes
    """

    values: Array
    sigma: Array
    dims: tuple[str, str]

    def declare(self) -> TensorVariable:
        """(component, obs): what the prior scale of H is multiplied by."""
        design = pm.Data("design", self.values, dims=(COLUMNS, COVARIATE))
        slopes = pm.Normal("slopes", np.float64(0.0), self.sigma, dims=self.dims)
        return pm.math.exp(slopes @ design.T)


def check_design(design: Any, slopes: Any, inputs: Inputs) -> tuple[CheckedDesign | None, Inputs]:
    """``design=`` and ``slopes=``, and the inputs with the labels of covariates."""
    if design is None:
        if slopes is not None:
            raise InputError("slopes", "a prior", "covariates that have slopes", "give design= as well")
        return None, inputs
    table = read_design(design, inputs.coords[COLUMNS])
    values, names = table.to_numpy(np.float64, na_value=np.nan), flat_labels(table.columns)
    dims = activations_dims(inputs)[0], COVARIATE
    sigma = check_slopes(slopes, (len(inputs.coords[dims[0]]), len(names)))
    check_columns(values, sigma, [str(name) for name in names])
    coords = {**inputs.coords, COVARIATE: writable_labels(COVARIATE, names)}
    return CheckedDesign(values=values, sigma=sigma, dims=dims), replace(inputs, coords=coords)


def check_beside_covariates(told_h: Any, hierarchy: Any, inputs: Inputs) -> None:
    """H has gamma cells that are not all known, and none that are believed."""
    if told_h is not None and RIGHT.new not in inputs.coords:
        raise InputError("design", "covariates", "None: all of H is known", "leave it out")
    if told_h is not None and told_h.strength is not None:
        raise InputError("design", "covariates", "None beside components of H that are believed", "fix them")
    if isinstance(hierarchy, ARD) and hierarchy.is_half_normal:
        raise InputError("design", "covariates", "None beside half-normal cells", 'use nz.ARD(cells="exponential")')


def read_design(given: Any, samples: Array) -> pd.DataFrame:
    """Numbers, samples in the order of X's, whose labels are given; covariates in columns."""
    n_samples = len(samples)
    table = in_order_of_samples("design", as_frame(given), samples)
    if len(table) != n_samples or not table.shape[1]:
        do = "transpose it?" if n_samples == table.shape[1] else ""
        raise InputError("design", f"shape {table.shape}", f"({n_samples}, covariates), a row for each sample of X", do)
    words = [str(name) for name, kind in table.dtypes.items() if kind.kind not in "biuf"]
    if words:
        do = "make columns of 0 and 1 of it: pd.get_dummies(..., drop_first=True)"
        raise InputError("design", f"the column {words[0]!r} of {table[words[0]].dtype}", "numbers", do)
    return table


def as_frame(given: Any) -> pd.DataFrame:
    """A table, or a single covariate as one of one column."""
    if isinstance(given, xr.DataArray):
        given = given.transpose(COLUMNS, ...) if COLUMNS in given.dims else given
        given = given.to_pandas() if given.ndim in (1, 2) else given.to_numpy()
    if isinstance(given, pd.Series):
        return given.to_frame(0 if given.name is None else given.name)
    if isinstance(given, pd.DataFrame):
        return given
    array = as_float_array("design", given)
    if array.ndim not in (1, 2):
        raise InputError("design", f"shape {array.shape}", "(samples, covariates)", "reshape it")
    return pd.DataFrame(array)


def check_slopes(sigma: Any, shape: tuple[int, int]) -> Array:
    """Standard deviations of the slopes' prior, (component, covariate), 1 unless given."""
    if is_symbolic(sigma) or isinstance(sigma, Free):
        raise InputError("slopes", "an unknown", "known standard deviations of the slopes", "give numbers > 0")
    array = as_float_array("slopes", 1.0 if sigma is None else sigma)
    check_broadcast("slopes", array.shape, shape)
    require_positive("slopes", array)
    return array


def check_columns(values: Array, sigma: Array, names: list[str]) -> None:
    """Finite, none of them constant or made of the others, and on a scale that slopes of this prior are for."""
    if not np.all(np.isfinite(values)):
        row, column = np.argwhere(~np.isfinite(values))[0]
        got = f"{values[row, column]} in the column {names[column]!r}, sample {row}"
        raise InputError("design", got, "finite numbers", "leave the sample out, or fill in what is missing")
    spread = np.std(values, axis=0)
    constant = np.flatnonzero(spread <= 1e-12 * np.max(np.abs(values), axis=0))
    if constant.size:
        do = "leave it out: what all samples have in common is in mean_h"
        raise InputError("design", f"the constant column {names[constant[0]]!r}", "ones that differ", do)
    reach = 3.0 * np.max(np.atleast_2d(sigma), axis=0) * np.max(np.abs(values), axis=0)
    if np.max(reach) > MOST:
        far = int(np.argmax(reach))
        got = f"values up to {np.max(np.abs(values[:, far])):g} in the column {names[far]!r}"
        do = "standardise it: (x - x.mean()) / x.std(), or give smaller slopes="
        raise InputError("design", got, "values on the scale of 1, as slopes have", do)
    standard = (values - values.mean(axis=0)) / spread
    sizes, directions = np.linalg.eigh(standard.T @ standard)
    if sizes[0] < LEAST**2 * sizes[-1]:
        weights = np.abs(directions[:, 0])
        same = [repr(name) for name, weight in zip(names, weights, strict=True) if weight > HEAVY * weights.max()]
        do = "leave one of them out (also where columns of 0 and 1 sum to 1)"
        raise InputError("design", f"columns of which one follows from others: {', '.join(same)}", "others", do)

"""How X is observed given W and H: the PyMC statements that the declarations share."""

from __future__ import annotations

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.distributions import RealPoisson, SparsePoisson
from nmf_zoo.models.inputs import Inputs


def declare_counts(W: TensorVariable, H: TensorVariable, inputs: Inputs) -> TensorVariable:
    """X ~ Poisson(exposure * (W @ H) + background) at the observed cells."""
    seen = inputs.observed
    if seen is None:
        return pm.Poisson("X", mu=declare_mean(W, H, inputs), dims=("feature", "obs"))
    if seen.is_sparse and seen.cells is not None:
        rows, cols = declare_cells(seen.cells)
        return SparsePoisson("X", W, H, rows, cols, complete=seen.is_complete, observed=seen.values, dims="cell")
    poisson = pm.Poisson if seen.is_integer else RealPoisson
    return poisson(
        "X", mu=at_observed(declare_mean(W, H, inputs), inputs), observed=seen.values, dims=data_dims(inputs)
    )


def declare_normal(W: TensorVariable, H: TensorVariable, sigma: TensorVariable, inputs: Inputs) -> TensorVariable:
    """X ~ Normal(exposure * (W @ H) + background, sigma) at the observed cells."""
    mean = at_observed(declare_mean(W, H, inputs), inputs)
    values = None if inputs.observed is None else inputs.observed.values.astype(np.float64)
    return pm.Normal("X", mu=mean, sigma=sigma, observed=values, dims=data_dims(inputs))


def declare_powers(W: TensorVariable, H: TensorVariable, inputs: Inputs) -> TensorVariable:
    """X ~ Exponential with mean exposure * (W @ H) + background at the observed cells."""
    mean = at_observed(declare_mean(W, H, inputs), inputs)
    values = None if inputs.observed is None else inputs.observed.values.astype(np.float64)
    return pm.Exponential("X", scale=mean, observed=values, dims=data_dims(inputs))


def declare_mean(W: TensorVariable, H: TensorVariable, inputs: Inputs) -> TensorVariable:
    """exposure * (W @ H) + background, each only if given."""
    mean = W @ H
    if inputs.exposure is not None:
        mean = declare_offset("exposure", inputs.exposure) * mean
    if inputs.background is not None:
        mean = mean + declare_offset("background", inputs.background)
    return mean


def declare_offset(name: str, value: np.ndarray) -> TensorVariable:
    """Known data; axes of length 1 are declared as such, since PyTensor refuses to broadcast any other."""
    return pm.Data(name, value, shape=tuple(1 if size == 1 else None for size in value.shape))


def at_observed(mean: TensorVariable, inputs: Inputs) -> TensorVariable:
    """The mean at the observed cells: all of it, or the listed ones."""
    if inputs.observed is None or inputs.observed.cells is None:
        return mean
    return mean[declare_cells(inputs.observed.cells)]


def declare_cells(cells: tuple[np.ndarray, np.ndarray]) -> tuple[TensorVariable, TensorVariable]:
    """Rows and columns of the observed cells, along the dim "cell", which is numbered: PyMC keeps labels as objects."""
    rows, cols = (np.asarray(index, dtype=np.int32) for index in cells)
    pm.modelcontext(None).add_coord("cell", length=len(rows))
    return pm.Data("cell_feature", rows, dims="cell"), pm.Data("cell_obs", cols, dims="cell")


def data_dims(inputs: Inputs) -> tuple[str, ...]:
    return ("feature", "obs") if inputs.observed is None or inputs.observed.cells is None else ("cell",)

"""How X is observed given W and H: the PyMC statements that the declarations share."""

from __future__ import annotations

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.distributions import (
    RealPoisson,
    SparseBatchedPoisson,
    SparseNegativeBinomial,
    SparsePoisson,
    cell_rates,
)
from nmf_zoo.errors import InputError
from nmf_zoo.models.batches import CheckedBatches
from nmf_zoo.models.errors_of_measurement import Errors, at_cells
from nmf_zoo.models.hyperparameters import variable_shape
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.offsets import Offset, OuterProduct, PerCell, declare_at_cells, declare_offset, declare_sides


def declare_counts(
    W: TensorVariable, H: TensorVariable, inputs: Inputs, batches: CheckedBatches | None = None
) -> TensorVariable:
    """X ~ Poisson(exposure * (W @ H) + background) at the observed cells, times multipliers of batches."""
    if batches is not None:
        return declare_batched(W, H, batches, inputs)
    seen = inputs.observed
    if seen is None:
        return pm.Poisson("X", mu=declare_mean(W, H, inputs), dims=("feature", "obs"))
    is_per_cell = isinstance(inputs.exposure, PerCell) or isinstance(inputs.background, PerCell)
    if seen.is_sparse and seen.cells is not None and not is_per_cell:
        given, offsets = declare_listed(W, H, seen.cells, inputs)
        known = {"complete": seen.is_complete, "observed": seen.values}
        return SparsePoisson("X", *given, **offsets, **known, dims="cell")
    poisson = pm.Poisson if seen.is_integer and not seen.is_sparse else RealPoisson
    return poisson("X", mu=declare_observed_mean(W, H, inputs), observed=seen.values, dims=data_dims(inputs))


def declare_batched(W: TensorVariable, H: TensorVariable, batches: CheckedBatches, inputs: Inputs) -> TensorVariable:
    """X ~ Poisson(M[:, batch] * (exposure * (W @ H) + background)) at the observed cells."""
    seen, (M, batch) = inputs.observed, batches.declare()
    if seen is not None and seen.is_sparse and seen.cells is not None:
        for name, own in {"exposure": inputs.exposure, "background": inputs.background}.items():
            if isinstance(own, PerCell):
                expected = "an array, or a tuple (one per feature, one per sample), beside batch="
                raise InputError(name, "a sparse matrix", expected)
        given, offsets = declare_listed(W, H, seen.cells, inputs)
        known = {"complete": seen.is_complete, "observed": seen.values}
        return SparseBatchedPoisson("X", *given, multipliers=M, batch=batch, **offsets, **known, dims="cell")
    mean = declare_mean(W, H, inputs) * M[:, batch]
    if seen is None:
        return pm.Poisson("X", mu=mean, dims=("feature", "obs"))
    mean = mean if seen.cells is None else mean[declare_cells(seen.cells)]
    poisson = pm.Poisson if seen.is_integer else RealPoisson
    return poisson("X", mu=mean, observed=seen.values, dims=data_dims(inputs))


def declare_sparse_exposure(W: TensorVariable, exposure: Offset | None) -> tuple[TensorVariable, TensorVariable | None]:
    """W, times what multiplies its rows beside another number per sample; and the rest of the exposure."""
    if isinstance(exposure, OuterProduct):
        of_features, of_samples = declare_sides("exposure", exposure)
        return of_features * W, of_samples
    return W, None if exposure is None else declare_offset("exposure", exposure)


def declare_normal(W: TensorVariable, H: TensorVariable, sigma: Errors, inputs: Inputs) -> TensorVariable:
    """X ~ Normal(exposure * (W @ H) + background, sigma) at the observed cells."""
    mean = declare_observed_mean(W, H, inputs)
    values = None if inputs.observed is None else inputs.observed.values.astype(np.float64)
    return pm.Normal("X", mu=mean, sigma=sigma.declare(inputs), observed=values, dims=data_dims(inputs))


def declare_listed(
    W: TensorVariable, H: TensorVariable, cells: tuple[np.ndarray, np.ndarray], inputs: Inputs
) -> tuple[tuple[TensorVariable, ...], dict[str, TensorVariable | None]]:
    """What a distribution of listed cells takes: (W, H, rows, cols), and by name its exposure and background."""
    W, exposure = declare_sparse_exposure(W, inputs.exposure)
    background = None if inputs.background is None else declare_offset("background", inputs.background)
    return (W, H, *declare_cells(cells)), {"exposure": exposure, "background": background}


def declare_overdispersed(
    W: TensorVariable, H: TensorVariable, alpha: TensorVariable, inputs: Inputs
) -> TensorVariable:
    """X ~ NegativeBinomial(exposure * (W @ H) + background, alpha) at the observed cells."""
    seen = inputs.observed
    if seen is not None and seen.is_sparse and seen.is_complete and seen.cells is not None:
        given, offsets = declare_listed(W, H, seen.cells, inputs)
        own = as_sides(alpha, variable_shape("alpha", alpha))
        return SparseNegativeBinomial("X", *given, alpha=own, **offsets, observed=seen.values, dims="cell")
    mean = declare_observed_mean(W, H, inputs)
    if seen is None or seen.cells is None:
        return pm.NegativeBinomial(
            "X", mu=mean, alpha=alpha, observed=None if seen is None else seen.values, dims=data_dims(inputs)
        )
    alpha = at_cells(alpha, variable_shape("alpha", alpha)) if alpha.ndim == 2 else alpha
    return pm.NegativeBinomial("X", mu=mean, alpha=alpha, observed=seen.values, dims=data_dims(inputs))


def as_sides(table: TensorVariable, shape: tuple[int, ...]) -> TensorVariable:
    """The same (1 or F, 1 or N) with axes of length 1 that are known as such; a number as it is."""
    if len(shape) != 2 or 1 not in shape:
        return table
    return table[:, 0][:, None] if shape[1] == 1 else table[0][None, :]


def declare_powers(W: TensorVariable, H: TensorVariable, inputs: Inputs) -> TensorVariable:
    """X ~ Exponential with mean exposure * (W @ H) + background at the observed cells."""
    mean = declare_observed_mean(W, H, inputs)
    values = None if inputs.observed is None else inputs.observed.values.astype(np.float64)
    return pm.Exponential("X", scale=mean, observed=values, dims=data_dims(inputs))


def declare_observed_mean(W: TensorVariable, H: TensorVariable, inputs: Inputs) -> TensorVariable:
    """The mean at the observed cells: all of it, or the listed ones; of sparse data without the rest."""
    seen = inputs.observed
    if seen is None or seen.cells is None:
        return declare_mean(W, H, inputs)
    if not seen.is_sparse:
        return declare_mean(W, H, inputs)[declare_cells(seen.cells)]
    mean = cell_rates(W, H, *declare_cells(seen.cells))
    if inputs.exposure is not None:
        mean = declare_at_cells("exposure", inputs.exposure, seen.cells, inputs.shape) * mean
    if inputs.background is not None:
        mean = mean + declare_at_cells("background", inputs.background, seen.cells, inputs.shape)
    return mean


def declare_mean(W: TensorVariable, H: TensorVariable, inputs: Inputs) -> TensorVariable:
    """exposure * (W @ H) + background, each only if given."""
    mean = W @ H
    if isinstance(inputs.exposure, OuterProduct):
        of_features, of_samples = declare_sides("exposure", inputs.exposure)
        mean = of_features * mean * of_samples
    elif inputs.exposure is not None:
        mean = declare_offset("exposure", inputs.exposure) * mean
    if inputs.background is not None:
        mean = mean + declare_offset("background", inputs.background)
    return mean


def declare_cells(cells: tuple[np.ndarray, np.ndarray]) -> tuple[TensorVariable, TensorVariable]:
    """Rows and columns of the observed cells, along the dim "cell", which is numbered: PyMC keeps labels as objects."""
    rows, cols = (np.asarray(index, dtype=np.int32) for index in cells)
    pm.modelcontext(None).add_coord("cell", length=len(rows))
    return pm.Data("cell_feature", rows, dims="cell"), pm.Data("cell_obs", cols, dims="cell")


def data_dims(inputs: Inputs) -> tuple[str, ...]:
    return ("feature", "obs") if inputs.observed is None or inputs.observed.cells is None else ("cell",)

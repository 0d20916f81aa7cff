"""The pointwise log-likelihood, as ``az.loo`` takes it; PyMC sees one block where the data are sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pymc as pm
import scipy.sparse as sp
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError
from nmf_zoo.inference.shared.layout import background_of_samples, nonzero_cells, weigh
from nmf_zoo.labels import hint_of
from nmf_zoo.reading import read
from nmf_zoo.results.posterior import (
    LEADING,
    Draw,
    Posterior,
    axes_of,
    cell_coords,
    column_parts,
    grid_cells,
    labelled_grid,
    mean_at,
    open_posterior,
    require_answer,
)
from nmf_zoo.structure import Array, Cells, Dense, Factorisation


def log_likelihood(idata: Any, model: pm.Model, *, per: Literal["obs", "cell"] = "obs") -> Result:
    """Add the pointwise log-likelihood of the data, for ``az.loo``. Zeros of sparse data are counted in.

    Parameters
    ----------
    idata, model : as in :func:`predict`
    per : "obs": the sum over each column's observed cells, in O(non-zeros * K) per draw; columns that have none
        are left out. "cell": each observed cell

    Returns
    -------
    A new InferenceData or DataTree: ``idata`` with the group ``log_likelihood``. Its variable has the name of X and the
    dims (chain, draw, obs); per cell (chain, draw, feature, obs), or (chain, draw, cell) when some are missing.

    Notes
    -----
    A column's log-likelihood is conditional on its own H, which no other column informs: leaving a whole column out by
    importance sampling is hard, and the Pareto k of ``az.loo`` will say so. Cells are easier.
    """
    structure = read(model)
    if per not in ("obs", "cell"):
        raise InputError("per", repr(per), "'obs' or 'cell'", hint_of(per))
    if structure.data is None:
        raise InputError("model", f"nothing observed in {structure.likelihood.name}", "a model with data")
    posterior = open_posterior(idata, structure)
    array = _per_column(posterior) if per == "obs" else _per_cell(posterior)
    return _compat.with_groups(idata, {"log_likelihood": array.to_dataset(name=structure.likelihood.name)})


def finest(structure: Factorisation) -> Literal["obs", "cell"]:
    """How fine a log-likelihood takes no more memory per draw than the data."""
    return "obs" if isinstance(structure.data, Cells) and structure.data.is_complete else "cell"


def _per_column(posterior: Posterior) -> xr.DataArray:
    structure, obs = posterior.structure, axes_of(posterior.structure)[1]
    require_answer(posterior, structure.shape[1], "thin the draws first: idata.sel(draw=slice(None, None, 10))")
    out = np.empty((*posterior.lead, structure.shape[1]))
    of_columns = _sparse_columns(structure) if structure.likelihood.has_free_zeros else _dense_columns(structure)
    for draw in posterior:
        out[draw.at] = of_columns(draw)
    seen = _has_data(structure)
    coords = posterior.coords | {obs.dim: obs.labels[seen]}
    return xr.DataArray(out[..., seen], dims=(*LEADING, obs.dim), coords=coords)


def _sparse_columns(structure: Factorisation) -> Callable[[Draw], Array]:
    """Draw -> sum over non-zero cells of log p + mean, minus the sum of the mean over observed cells, (N,)."""
    rows, cols, x = nonzero_cells(structure)
    weights, n_samples, likelihood = weigh(structure), structure.shape[1], structure.likelihood
    constant = -np.bincount(cols, likelihood.log_constant(x), n_samples) - background_of_samples(structure)

    def of_columns(draw: Draw) -> Array:
        mean = mean_at(structure, draw, rows, cols)
        total = np.sum(weights.over_features(draw.W) * draw.H.T, axis=1)
        return np.bincount(cols, likelihood.nonzero_part(x, mean), n_samples) - total + constant

    return of_columns


def _dense_columns(structure: Factorisation) -> Callable[[Draw], Array]:
    """The same of a likelihood that sees every observed cell."""
    rows, cols, x = structure.observed_cells()

    def of_columns(draw: Draw) -> Array:
        cell = structure.likelihood.log_density(x, mean_at(structure, draw, rows, cols), draw.values)
        return np.bincount(cols, cell, structure.shape[1])

    return of_columns


def _has_data(structure: Factorisation) -> Array:
    """(N,) True for the columns that have an observed cell."""
    if structure.data.is_complete:
        return np.ones(structure.shape[1], dtype=bool)
    if isinstance(structure.data, Dense):
        return np.any(np.asarray(structure.data.mask), axis=0)
    return np.asarray(np.bincount(structure.data.cols, minlength=structure.shape[1]) > 0)


def _per_cell(posterior: Posterior) -> xr.DataArray:
    structure, data = posterior.structure, posterior.structure.data
    n_cells = structure.shape[0] * structure.shape[1] if data.is_complete else data.observed_values.size
    require_answer(posterior, n_cells, "use per='obs'")
    if not data.is_complete:
        return _at_listed_cells(posterior)
    out = np.empty((*posterior.lead, *structure.shape))
    x = sp.csc_array((data.values, (data.rows, data.cols)), structure.shape) if isinstance(data, Cells) else data.values
    rows, cols = (np.arange(size) for size in structure.shape)
    for part in column_parts(*structure.shape):
        block = x[:, part].toarray() if sp.issparse(x) else x[:, part]
        constants = structure.likelihood.log_constant(block)
        for draw in posterior:
            mean = mean_at(structure, draw, *grid_cells(rows, cols[part])).reshape(block.shape)
            out[draw.at][:, part] = structure.likelihood.log_density(block, mean, draw.values, constants)
    return labelled_grid(out, posterior, rows, cols)


def _at_listed_cells(posterior: Posterior) -> xr.DataArray:
    """The observed cells, in the model's own order where it lists them."""
    structure = posterior.structure
    rows, cols, x = structure.observed_cells()
    if structure.cells is not None and isinstance(structure.data, Dense):
        rows, cols = structure.cells
        x = structure.data.values[rows, cols]
    out, constants = np.empty((*posterior.lead, len(rows))), structure.likelihood.log_constant(x)
    for draw in posterior:
        mean = mean_at(structure, draw, rows, cols)
        out[draw.at] = structure.likelihood.log_density(x, mean, draw.values, constants)
    coords = posterior.coords | cell_coords(structure, "cell", rows, cols)
    return xr.DataArray(out, dims=(*LEADING, "cell"), coords=coords)

"""The pointwise log-likelihood, as ``az.loo`` takes it; PyMC sees one block where the data are sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pymc as pm
import scipy.sparse as sp
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, warn_caller
from nmf_zoo.inference.shared.layout import background_of_samples, nonzero_cells, weigh
from nmf_zoo.inference.shared.multiplied import totals_of_samples
from nmf_zoo.labels import hint_of
from nmf_zoo.options import names_checked
from nmf_zoo.prediction.pareto import FEWEST, largest_k, pareto_k
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

MOST_JUDGED = 2000  # columns, evenly among all, of which Pareto's k is computed


@names_checked
def log_likelihood(idata: Any, model: pm.Model, *, per: Literal["obs", "cell"] = "obs") -> Result:
    """Add the pointwise log-likelihood of the data, for ``az.loo``. Zeros of sparse data are counted in.

    Parameters
    ----------
    idata, model : as in :func:`predict`
    per : "obs": the sum over each column's observed cells, in O(non-zeros * K) per draw; columns that have none
        are left out. "cell": each observed cell, as ``pm.compute_log_likelihood`` has them

    Returns
    -------
    A new InferenceData or DataTree: ``idata`` with the group ``log_likelihood``. Its variable has the name of X and the
    dims (chain, draw, obs); per cell (chain, draw, feature, obs), or (chain, draw, cell) when some are missing.

    Warns
    -----
    NmfZooWarning : per "obs", where Pareto's k says that ``az.loo`` of whole columns can't be trusted: in at least 100
        draws, k is above min(1 - 1 / log10(draws), 0.7) for some of them. The message says for how many

    Notes
    -----
    The two are answers to different questions. "cell": how well is a cell foretold by all others, those of its own
    column among them? "obs": how well is a whole column foretold? A column's log-likelihood is conditional on its own
    H, which no other column informs. Draws of H that have seen the column say next to nothing of what H would be
    without it, so that k is bad for most columns with many counts. Then leave cells out, or hold data out and fit
    again: ``nz.select_rank(method="holdout")``, as also where ``az.loo`` says that k is bad for cells: those with few
    others in their row or column. Models are compared by ``az.compare`` as long as all have the same
    kind of values: cells with cells, whether of this function or of ``pm.compute_log_likelihood`` (of sparse data
    PyMC has one value for the whole table, and no cells).

    References
    ----------
    A. Vehtari, A. Gelman, J. Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation
    and WAIC, Statistics and Computing 27.
    """
    found = add_log_likelihood(idata, model, per)
    if per == "obs":
        _warn_of_tails(next(iter(_compat.group(found, "log_likelihood").data_vars.values())))
    return found


def add_log_likelihood(idata: Any, model: pm.Model, per: Literal["obs", "cell"]) -> Any:
    """The same without a word on whether it can be used."""
    structure = read(model)
    if per not in ("obs", "cell"):
        raise InputError("per", repr(per), "'obs' or 'cell'", hint_of(per))
    if structure.data is None:
        raise InputError("model", f"nothing observed in {structure.likelihood.name}", "a model with data")
    posterior = open_posterior(idata, structure)
    array = _per_column(posterior) if per == "obs" else _per_cell(posterior)
    return _compat.with_groups(idata, {"log_likelihood": array.to_dataset(name=structure.likelihood.name)})


def _warn_of_tails(array: xr.DataArray) -> None:
    """Say for how many columns importance sampling without them fails."""
    values = array.to_numpy().reshape(-1, array.shape[-1])
    n_draws, n_columns = values.shape
    if n_draws < FEWEST:
        return
    judged = np.unique(np.linspace(0, n_columns - 1, min(n_columns, MOST_JUDGED)).astype(np.int64))
    values = values[:, judged]
    values = values[:, np.all(np.isfinite(values), axis=0)]
    is_bad = pareto_k(values) > largest_k(n_draws)
    if is_bad.any():
        message = (
            f"log_likelihood: Pareto's k is above {largest_k(n_draws):.2f} for {is_bad.sum()} of {len(is_bad)} "
            "samples, so that az.loo of whole samples is not to be trusted: each has an H of its own. Take per='cell', "
            "or held-out data, nz.select_rank(method='holdout')"
        )
        warn_caller(message)


def finest(structure: Factorisation) -> Literal["obs", "cell"]:
    """How fine a log-likelihood takes no more memory per draw than the data."""
    return "obs" if isinstance(structure.data, Cells) and structure.data.is_complete else "cell"


def _per_column(posterior: Posterior) -> xr.DataArray:
    structure, obs = posterior.structure, axes_of(posterior.structure)[1]
    require_answer(posterior, structure.shape[1], "thin the draws first: idata.sel(draw=slice(None, None, 10))")
    out = np.empty((*posterior.lead, structure.shape[1]))
    if finest(structure) == "obs" and not structure.likelihood.has_free_zeros:
        for part, draw, cells in _complete_cells(posterior):
            out[draw.at][part] = cells.sum(axis=0)
    else:
        of_columns = _of_columns(structure)
        for draw in posterior:
            out[draw.at] = of_columns(draw)
    seen = _has_data(structure)
    coords = posterior.coords | {obs.dim: obs.labels[seen]}
    return xr.DataArray(out[..., seen], dims=(*LEADING, obs.dim), coords=coords)


def _of_columns(structure: Factorisation) -> Callable[[Draw], Array]:
    """Draw -> log p of each column, (N,)."""
    if structure.likelihood.of_batches is not None:
        return _batched_columns(structure)
    return _sparse_columns(structure) if structure.likelihood.has_free_zeros else _dense_columns(structure)


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


def _batched_columns(structure: Factorisation) -> Callable[[Draw], Array]:
    """The same of a likelihood with multipliers of batches."""
    rows, cols, x = nonzero_cells(structure)
    totals, law = totals_of_samples(structure), structure.likelihood_at(rows, cols)
    n_samples = structure.shape[1]
    constant = -np.bincount(cols, law.log_constant(x), n_samples)

    def of_columns(draw: Draw) -> Array:
        mean = law.expected(mean_at(structure, draw, rows, cols), draw.values)
        listed = np.bincount(cols, law.nonzero_part(x, mean), n_samples)
        return listed - totals(draw.W, draw.H, draw.values) + constant

    return of_columns


def _dense_columns(structure: Factorisation) -> Callable[[Draw], Array]:
    """The same of a likelihood that sees every observed cell, all of which are listed."""
    rows, cols, x = structure.observed_cells()
    law = structure.likelihood_at(rows, cols)

    def of_columns(draw: Draw) -> Array:
        cell = law.log_density(x, mean_at(structure, draw, rows, cols), draw.values)
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
    for part, draw, cells in _complete_cells(posterior):
        out[draw.at][:, part] = cells
    return labelled_grid(out, posterior, *map(np.arange, structure.shape))


def _complete_cells(posterior: Posterior) -> Iterator[tuple[slice, Draw, Array]]:
    """(columns, draw, log p of all their cells, zeros of sparse data among them), columns part by part."""
    structure, data = posterior.structure, posterior.structure.data
    x = sp.csc_array((data.values, (data.rows, data.cols)), structure.shape) if isinstance(data, Cells) else data.values
    rows, cols = (np.arange(size) for size in structure.shape)
    for part in column_parts(*structure.shape):
        block = x[:, part].toarray() if sp.issparse(x) else x[:, part]
        law, constants = structure.likelihood_at(slice(None), part), structure.likelihood.log_constant(block)
        for draw in posterior:
            mean = mean_at(structure, draw, *grid_cells(rows, cols[part])).reshape(block.shape)
            yield part, draw, law.log_density(block, mean, draw.values, constants)


def _at_listed_cells(posterior: Posterior) -> xr.DataArray:
    """The observed cells, in the model's own order where it lists them."""
    structure = posterior.structure
    rows, cols, x = structure.observed_cells()
    if structure.cells is not None and isinstance(structure.data, Dense):
        rows, cols = structure.cells
        x = structure.data.values[rows, cols]
    law = structure.likelihood_at(rows, cols)
    out, constants = np.empty((*posterior.lead, len(rows))), law.log_constant(x)
    for draw in posterior:
        mean = mean_at(structure, draw, rows, cols)
        out[draw.at] = law.log_density(x, mean, draw.values, constants)
    coords = posterior.coords | cell_coords(structure, "cell", rows, cols)
    return xr.DataArray(out, dims=(*LEADING, "cell"), coords=coords)

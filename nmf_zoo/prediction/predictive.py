"""What a posterior says about X: predictive draws of its cells, missing or not, block by block from W H."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.options import names_checked
from nmf_zoo.reading import read
from nmf_zoo.results.block_store import as_fitted, require_offsets
from nmf_zoo.results.posterior import (
    LEADING,
    Draw,
    Posterior,
    axes_of,
    cell_coords,
    cells_of,
    column_parts,
    grid_cells,
    labelled_grid,
    mean_at,
    open_posterior,
    positions_of,
    require_answer,
)
from nmf_zoo.runtime.arguments import check_counts, entropy_of
from nmf_zoo.structure import Array, Dense, Factorisation, slices


@names_checked
def predict(
    idata: Any,
    model: pm.Model,
    *,
    features: Any = None,
    samples: Any = None,
    cells: tuple[Any, Any] | None = None,
    n_draws: int | None = None,
    random_seed: Any = None,
) -> xr.DataArray:
    """Posterior predictive draws of X: one draw of each cell for each draw of the posterior.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    model : the model it came from; of a fit over ``data=`` as it was declared, without data
    features, samples : labels of the rows and columns to predict; default all
    cells : (rows, cols), positions from 0 of the cells to predict, instead of ``features`` and ``samples``
    n_draws : draws to use of each chain, evenly spaced; default all
    random_seed : as in :func:`~nmf_zoo.sample`. A cell's draws do not depend on which other cells are
        asked for, nor on which other chains are there: those of ``idata.sel(chain=[2])`` are that chain's of the whole

    Returns
    -------
    DataArray (chain, draw, feature, obs), or (chain, draw, cell) with the cells' labels. Counts for a Poisson
    likelihood, also where the data were real-valued: 64-bit integers, so that means above 2^62 are refused; of others,
    means above 1.8e308.
    """
    structure = require_offsets(as_fitted(read(model), idata), idata)
    if cells is not None:
        if features is not None or samples is not None:
            raise InputError("cells", "cells with features or samples", "one way to choose", "drop one of them")
        return _predict_cells(idata, structure, *cells_of(structure, cells), "cell", n_draws, random_seed)
    posterior = open_posterior(idata, structure, n_draws)
    rows, cols = _grid(structure, features, samples)
    out = _empty(structure, posterior, (len(rows), len(cols)))
    key = seed_key(entropy_of(random_seed))
    for part in column_parts(len(rows), len(cols)):
        _predict_grid(out[..., part], posterior, rows, cols[part], key)
    return labelled_grid(out, posterior, rows, cols)


@names_checked
def predict_blocks(
    idata: Any,
    model: pm.Model,
    *,
    width: int = 100,
    features: Any = None,
    samples: Any = None,
    n_draws: int | None = None,
    random_seed: Any = None,
) -> Iterator[xr.DataArray]:
    """The same draws as :func:`predict`, ``width`` samples at a time: for an X whose draws do not fit into memory.

    Of an H that lies on disk (``store=``) the samples of a block are read with it.

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[1, 0, 4], [2, 3, 0]], rank=1)
    >>> idata = nz.sample(10, tune=10, chains=1, random_seed=1, quiet=True, model=model)
    >>> [block.sizes["obs"] for block in nz.predict_blocks(idata, model, width=2, random_seed=1)]
    [2, 1]
    """
    check_counts(width=(width, 1))
    structure = require_offsets(as_fitted(read(model), idata), idata)
    posterior = open_posterior(idata, structure, n_draws)
    rows, cols = _grid(structure, features, samples)
    key = seed_key(entropy_of(random_seed))

    def blocks() -> Iterator[xr.DataArray]:
        for part in (cols[piece] for piece in slices(len(cols), width)):
            out = _empty(structure, posterior, (len(rows), len(part)))
            _predict_grid(out, posterior, rows, part, key)
            yield labelled_grid(out, posterior, rows, part)

    return blocks()


@names_checked
def impute(idata: Any, model: pm.Model, *, n_draws: int | None = None, random_seed: Any = None) -> xr.DataArray:
    """Posterior predictive draws of the missing cells.

    Parameters
    ----------
    idata, model, n_draws, random_seed : as in :func:`predict`

    Returns
    -------
    DataArray (chain, draw, missing) with the feature and sample label of each missing cell, row by row
    """
    structure = read(model)
    rows, cols = _missing_cells(structure, open_posterior(idata, structure, n_draws))
    return _predict_cells(idata, structure, rows, cols, "missing", n_draws, random_seed)


def _missing_cells(structure: Factorisation, posterior: Posterior) -> tuple[Array, Array]:
    data, n_cells = structure.data, structure.shape[0] * structure.shape[1]
    complete = data is None or data.is_complete
    if complete:
        got = "no data" if data is None else "no missing cells"
        raise InputError("model", got, "a model with some missing cells", "nz.predict draws any cell")
    require_answer(posterior, n_cells - data.observed_values.size, "use nz.predict(cells=...) for a part of them")
    seen = data.mask if isinstance(data, Dense) else None
    if seen is None:
        seen = np.zeros(structure.shape, dtype=bool)
        seen[data.rows, data.cols] = True
    rows, cols = np.nonzero(~seen)
    return rows, cols


def _grid(structure: Factorisation, features: Any, samples: Any) -> tuple[Array, Array]:
    feature, obs = axes_of(structure)
    return positions_of(feature, "features", features), positions_of(obs, "samples", samples)


def _predict_grid(out: Array, posterior: Posterior, rows: Array, cols: Array, key: np.uint64) -> None:
    """Fill out (chain, draw, rows, cols)."""
    cells, some = grid_cells(rows, cols), posterior.of_samples(cols)
    in_H = cells[1] if some.cols is None else grid_cells(rows, np.arange(len(cols)))[1]
    for draw in some:
        out[draw.at] = _draw_cells(posterior.structure, draw, *cells, key, in_H).reshape(len(rows), len(cols))


def _predict_cells(idata, structure, rows, cols, dim, n_draws, random_seed) -> xr.DataArray:
    posterior = open_posterior(idata, structure, n_draws)
    out = _empty(structure, posterior, (len(rows),))
    key = seed_key(entropy_of(random_seed))
    samples, in_H = np.unique(cols, return_inverse=True)
    some = posterior.of_samples(samples)
    for draw in some:
        out[draw.at] = _draw_cells(structure, draw, rows, cols, key, None if some.cols is None else in_H)
    coords = posterior.coords | cell_coords(structure, dim, rows, cols)
    return xr.DataArray(out, dims=(*LEADING, dim), coords=coords, name=structure.likelihood.name)


def _draw_cells(
    structure: Factorisation, draw: Draw, rows: Array, cols: Array, key: np.uint64, in_H: Array | None = None
) -> Array:
    mean, stream = mean_at(structure, draw, rows, cols, in_H), child(key, *draw.place)
    law = structure.likelihood_at(rows, cols)
    law.require_drawable(mean)
    if not np.all(np.isfinite(mean)):
        do = "raise the shapes of the priors, whose tails are too heavy, or ask for other cells"
        raise InputError(structure.likelihood.name, "a mean beyond all numbers", "means that float64 holds", do)
    out: Array = np.empty(len(mean), dtype=structure.likelihood.dtype)
    law.draw_cells(out, mean, draw.values, rows, cols, stream)
    return out


def _empty(structure: Factorisation, posterior: Posterior, shape: tuple[int, ...]) -> Array:
    do = "choose features=, samples= or cells=, lower n_draws, or go through nz.predict_blocks"
    require_answer(posterior, int(np.prod(shape)), do)
    return np.empty((*posterior.lead, *shape), dtype=structure.likelihood.dtype)

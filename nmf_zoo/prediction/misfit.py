"""Whether the data lie where the model expects them: the share of cells inside their 90 % predictive intervals.

A model that is right has ``expected`` of them inside: 90 % of a continuous law, more of counts, whose intervals end at
whole numbers. Both shares are of the same cells. Half of the predictive draws make the intervals and the other half
say what is expected inside, so that a cell that the model drew is inside as often as they are (posterior predictive
checks: Gelman, Meng and Stern 1996). Data that the parameters were learnt from lie inside more often than new ones, so
that fewer than expected is a finding, and more is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.results.groups import COVERAGE
from nmf_zoo.results.posterior import INTERVAL, open_posterior
from nmf_zoo.runtime.arguments import needed_shapes
from nmf_zoo.structure import Array, Cells, Factorisation, slices

MOST_CELLS = 1000  # that are looked at, drawn at random
REPLICATES = 50  # predictive draws of a cell that make its interval, and as many that say what is expected in it
STREAM = 0xC07E  # of the run's key
LISTED = 1 << 20  # cells of sparse data that are looked through at once


def coverage_attribute(posterior: xr.Dataset | None, structure: Factorisation, key: np.uint64) -> dict[str, str]:
    """The attribute of a result that tells it, as JSON: shares inside and expected, cells, and what to try.

    None where draws of an unknown are missing, and of means that nothing can be drawn from.

    Parameters
    ----------
    posterior : (chain, draw, ...) draws that all count alike
    key : of the run: cells and predictive draws depend on it alone
    """
    if posterior is None or structure.data is None or not set(needed_shapes(structure)) <= set(posterior.data_vars):
        return {}
    rng = generator_of(child(key, STREAM))
    rows, cols, x = _some_cells(structure, rng)
    try:
        drawn = np.stack(list(_replicates(posterior, structure, rows, cols, rng)))
    except InputError:
        return {}
    low, high = np.quantile(drawn[::2], INTERVAL, axis=0)
    inside, expected = (float(np.mean((low <= values) & (values <= high))) for values in (x, drawn[1::2]))
    said = {"inside": round(inside, 4), "expected": round(expected, 4), "cells": len(x)}
    return {COVERAGE: json.dumps(said | {"try": structure.likelihood.more_spread})}


def _some_cells(structure: Factorisation, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """(rows, cols, values) of observed cells, zeros of sparse counts among them."""
    if not structure.data.is_complete:
        rows, cols, values = structure.observed_cells()
        few = _some(len(values), rng)
        return rows[few].astype(np.int64), cols[few].astype(np.int64), values[few]
    flat = _some(structure.shape[0] * structure.shape[1], rng)
    rows, cols = np.unravel_index(flat, structure.shape)
    return rows, cols, _values_at(structure, flat, rows, cols)


def _some(n: int, rng: np.random.Generator) -> Array:
    return np.sort(rng.choice(n, min(MOST_CELLS, n), replace=False, shuffle=False))


def _values_at(structure: Factorisation, flat: Array, rows: Array, cols: Array) -> Array:
    """Of complete data; ``flat`` counts cells row by row."""
    data = structure.data
    if not isinstance(data, Cells):
        return data.values[rows, cols]
    out = np.zeros(len(flat))
    for part in slices(len(data.values), LISTED):
        listed = data.rows[part].astype(np.int64) * structure.shape[1] + data.cols[part]
        at = np.minimum(np.searchsorted(flat, listed), len(flat) - 1)
        hit = flat[at] == listed
        out[at[hit]] = data.values[part][hit]
    return out


def _replicates(
    posterior: xr.Dataset, structure: Factorisation, rows: Array, cols: Array, rng: np.random.Generator
) -> Iterator[Array]:
    """Predictive draws of the cells, from draws that are spaced evenly; of fewer draws several from each."""
    whole, wanted = _compat.inference_data({"posterior": posterior}, {}), 2 * REPLICATES
    of_chain = min(posterior.sizes["draw"], -(-wanted // posterior.sizes["chain"]))
    law = structure.likelihood_at(rows, cols)
    exposure, background = structure.exposure_at(rows, cols), structure.background_at(rows, cols)
    draws = open_posterior(whole, structure, of_chain)
    n_draws, n_done = draws.lead[0] * draws.lead[1], 0
    for number, draw in enumerate(draws, start=1):
        with np.errstate(over="ignore", invalid="ignore"):
            mean = exposure * np.einsum("ck,kc->c", draw.W[rows], draw.H[:, cols]) + background
        law.require_drawable(mean)
        if not np.all(np.isfinite(mean)):
            raise InputError(law.name, "a mean beyond all numbers", "means that float64 holds")
        while n_done < number * wanted // n_draws:
            yield law.draw(mean, draw.values, rng)
            n_done += 1

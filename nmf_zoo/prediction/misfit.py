"""Whether the data lie where the model expects them: the share of cells inside their 90 % predictive intervals.

A model that is right has ``expected`` of them inside: 90 % of a continuous law, more of counts, whose intervals end at
whole numbers. Both shares are of the same cells. Of a point both come from the law of each cell; of several draws half
of the predictive ones make the intervals and the other half say what is expected inside, so that a cell that the model
drew is inside as often as they are (posterior predictive checks: Gelman, Meng and Stern 1996). Data that the parameters
were learnt from lie inside more often than new ones, so that fewer than expected is a finding, and more is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.inference.shared.sample_blocks import structure_of_block
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.results.groups import COVERAGE
from nmf_zoo.results.posterior import INTERVAL, open_posterior
from nmf_zoo.runtime.arguments import needed_shapes
from nmf_zoo.structure import Array, Blocked, Cells, Factorisation, Likelihood, slices

MOST_CELLS = 1000  # that are looked at, drawn at random
REPLICATES = 50  # predictive draws of a cell that make its interval, and as many that say what is expected in it
STREAM = 0xC07E  # of the run's key
LISTED = 1 << 20  # cells of sparse data that are looked through at once


Products = Iterator[tuple[Array, Mapping[str, Array]]]  # of each draw W H, or means, at some cells; values by name


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
    cells = _observed_at(structure, _some(_n_observed(structure), rng))
    whole, wanted = _compat.inference_data({"posterior": posterior}, {}), 2 * REPLICATES
    of_chain = min(posterior.sizes["draw"], -(-wanted // posterior.sizes["chain"]))
    draws = open_posterior(whole, structure, of_chain)
    products = ((_product(draw.W[cells[0]], draw.H[:, cells[1]]), draw.values) for draw in draws)
    return _told(structure, cells, products, draws.lead[0] * draws.lead[1], rng)


def coverage_of_blocks(
    structure: Factorisation,
    products: Callable[[Array, Array, np.random.Generator], Products],
    n_draws: int,
    key: np.uint64,
) -> dict[str, str]:
    """The same of data in blocks, of which those are read that have some of the cells.

    Parameters
    ----------
    products : (rows, cols, generator) -> of ``n_draws`` draws W H at these cells, and no values
    key : as of :func:`coverage_attribute`, whose cells these are where none is missing
    """
    rng = generator_of(child(key, STREAM))
    cells = _observed_in_blocks(structure, rng)
    return _told(structure, cells, products(*cells[:2], rng), n_draws, rng)


def _told(
    structure: Factorisation,
    cells: tuple[Array, Array, Array],
    products: Products,
    n_draws: int,
    rng: np.random.Generator,
) -> dict[str, str]:
    rows, cols, x = cells
    law = structure.likelihood_at(rows, cols)
    try:
        low, high, expected = _intervals(law, _means(structure, law, rows, cols, products), n_draws, rng)
    except InputError:
        return {}
    inside = float(np.mean((low <= x) & (x <= high)))
    said = {"inside": round(inside, 4), "expected": round(expected, 4), "cells": len(x)}
    return {COVERAGE: json.dumps(said | {"try": structure.likelihood.more_spread})}


def _some(n: int, rng: np.random.Generator) -> Array:
    return np.sort(rng.choice(n, min(MOST_CELLS, n), replace=False, shuffle=False))


def _n_observed(structure: Factorisation) -> int:
    data = structure.data
    return structure.shape[0] * structure.shape[1] if data.is_complete else data.observed_values.size


def _observed_at(structure: Factorisation, places: Array) -> tuple[Array, Array, Array]:
    """(rows, cols, values) of observed cells, zeros of sparse counts among them; of complete data row by row."""
    if not structure.data.is_complete:
        rows, cols, values = structure.observed_cells()
        return rows[places].astype(np.int64), cols[places].astype(np.int64), values[places]
    rows, cols = np.unravel_index(places, structure.shape)
    return rows, cols, _values_at(structure, places, rows, cols)


def _observed_in_blocks(structure: Factorisation, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """The same of some cells of data in blocks: whole tables row by row, others block by block."""
    data = cast(Blocked, structure.data)
    ends = np.cumsum(data.observed)
    places = _some(int(ends[-1]), rng)
    if data.is_complete:
        rows, cols = np.unravel_index(places, structure.shape)
        numbers = np.searchsorted(data.bounds, cols, side="right") - 1
        places = rows * np.diff(data.bounds)[numbers] + cols - data.bounds[numbers]
    else:
        numbers = np.searchsorted(ends, places, side="right")
        places = places - (ends - data.observed)[numbers]
    found = np.empty((3, len(places)))
    for number in np.unique(numbers):
        own = numbers == number
        at, cols, values = _observed_at(structure_of_block(structure, int(number)), places[own])
        found[:, own] = at, cols + data.bounds[number], values
    return found[0].astype(np.int64), found[1].astype(np.int64), found[2]


def _values_at(structure: Factorisation, flat: Array, rows: Array, cols: Array) -> Array:
    """Of complete data; ``flat`` counts cells row by row."""
    data = structure.data
    if not isinstance(data, Cells):
        return data.values[rows, cols]
    out, in_rows, in_cols = np.zeros(len(flat)), *(np.zeros(size, dtype=bool) for size in structure.shape)
    in_rows[rows], in_cols[cols] = True, True
    for part in slices(len(data.values), LISTED):
        near = np.flatnonzero(in_rows[data.rows[part]] & in_cols[data.cols[part]])  # few, in whatever order
        listed = data.rows[part][near].astype(np.int64) * structure.shape[1] + data.cols[part][near]
        at = np.minimum(np.searchsorted(flat, listed), len(flat) - 1)
        hit = flat[at] == listed
        out[at[hit]] = data.values[part][near[hit]]
    return out


def _product(rows_of_W: Array, columns_of_H: Array) -> Array:
    """W H at cells, (cells,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.einsum("ck,kc->c", rows_of_W, columns_of_H)


def _means(structure: Factorisation, law: Likelihood, rows: Array, cols: Array, products: Products) -> Products:
    """Of each draw the means of the cells, which data can be drawn at, and the values by name."""
    exposure, background = structure.exposure_at(rows, cols), structure.background_at(rows, cols)
    for product, values in products:
        with np.errstate(over="ignore", invalid="ignore"):
            mean = exposure * product + background
        law.require_drawable(mean)
        if not np.all(np.isfinite(mean)):
            raise InputError(law.name, "a mean beyond all numbers", "means that float64 holds")
        yield mean, values


def _intervals(law: Likelihood, means: Products, n_draws: int, rng: np.random.Generator) -> tuple[Array, Array, float]:
    """(low, high) of the cells, and the share of them that is expected inside."""
    if n_draws == 1:
        (point,) = means
        exact = law.interval(INTERVAL, *point)
        if exact is not None:
            return exact[0], exact[1], float(np.mean(exact[2]))
        means = iter([point])
    drawn = np.stack(list(_replicates(law, means, n_draws, rng)))
    low, high = np.quantile(drawn[::2], INTERVAL, axis=0)
    return low, high, float(np.mean((low <= drawn[1::2]) & (drawn[1::2] <= high)))


def _replicates(law: Likelihood, means: Products, n_draws: int, rng: np.random.Generator) -> Iterator[Array]:
    """Predictive draws of the cells, from draws that are spaced evenly; of fewer draws several from each."""
    n_done = 0
    for number, (mean, values) in enumerate(means, start=1):
        while n_done < number * 2 * REPLICATES // n_draws:
            yield law.draw(mean, values, rng)
            n_done += 1

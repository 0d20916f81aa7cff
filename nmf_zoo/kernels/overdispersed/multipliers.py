"""Multipliers and sources of negative binomial counts, cell by cell: what one factor's conditional needs of them.

Given the factors a cell of mean m = e w . h + b has the multiplier g ~ Gamma(alpha + x, alpha + m), and its count is
shared out among the components and the background as Poisson counts are. Both are used and forgotten: for a factor's
row only sums over the other side are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.random.counts import allocate
from nmf_zoo.kernels.random.draws import draw_gamma
from nmf_zoo.kernels.random.keyed_rng import fold


class CellsOfRows(NamedTuple):
    """The observed cells, row by row of the side whose factor is drawn.

    Attributes
    ----------
    indptr : (rows + 1,); indices : (listed,) columns, rising in each row; values : (listed,)
    is_complete : (1,) bool: the cells that are not listed are zeros; otherwise they are missing
    exposure, background : (listed,) of each listed cell where cells are missing, else empty
    exposure_of_rows, exposure_of_columns : (rows,) and (columns,), of which a cell's exposure is the product otherwise
    background_of_rows, background_of_columns : alike
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    is_complete: np.ndarray
    exposure: np.ndarray
    background: np.ndarray
    exposure_of_rows: np.ndarray
    exposure_of_columns: np.ndarray
    background_of_rows: np.ndarray
    background_of_columns: np.ndarray


class RowSums(NamedTuple):
    """Of a factor's rows, (rows, K): counts by component, and the sums of multiplier * exposure * other factor."""

    counts: np.ndarray
    weight: np.ndarray


@kernel
def draw_sums(out, cells, factors, alphas, first, last, key):
    """Overwrite rows first..last of ``out`` (RowSums); ``factors`` are (rows, K) and (columns, K).

    alpha of a cell is the product of ``alphas``, (rows,) and (columns,). A cell draws from streams of its own.
    Returns the number of counts that lie where the mean is 0 or not finite.
    """
    own, other = factors
    n_columns, rank = other.shape
    weights, cumulative, shares = np.empty(rank + 1), np.empty(rank + 1), np.empty(rank + 1, np.int64)
    failures = 0
    for i in range(first, last):
        out.counts[i] = 0.0
        out.weight[i] = 0.0
        row_key, place, end = fold(key, i), cells.indptr[i], cells.indptr[i + 1]
        n_cells = n_columns if cells.is_complete[0] else end - place
        for step in range(n_cells):
            x = 0.0
            if cells.is_complete[0]:
                j = step
                exposure = cells.exposure_of_rows[i] * cells.exposure_of_columns[j]
                background = cells.background_of_rows[i] * cells.background_of_columns[j]
                if place < end and cells.indices[place] == j:
                    x = cells.values[place]
                    place += 1
            else:
                j, x = cells.indices[place], cells.values[place]
                exposure, background = cells.exposure[place], cells.background[place]
                place += 1
            mean = 0.0
            for k in range(rank):
                weights[k] = own[i, k] * other[j, k]
                mean += weights[k]
            alpha, cell_key = alphas[0][i] * alphas[1][j], fold(row_key, j)
            multiplier = draw_gamma(alpha + x, fold(cell_key, 0)) / (alpha + exposure * mean + background)
            for k in range(rank):
                out.weight[i, k] += multiplier * exposure * other[j, k]
            if x > 0.0:
                weights[rank] = background / exposure
                if not allocate(np.int64(x), weights, cumulative, shares, fold(cell_key, 1)):
                    failures += 1
                for k in range(rank):
                    out.counts[i, k] += shares[k]
    return failures

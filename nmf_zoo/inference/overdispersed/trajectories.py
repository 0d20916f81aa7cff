"""Trajectories of rows of negative binomial counts: where they run, and what their kernels need of a problem."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.counts.gibbs import Gibbs, all_free
from nmf_zoo.inference.counts.sweeps import (
    block_width,
    blocks_of,
    has_masses,
    make_side_workspace,
    make_tuning,
)
from nmf_zoo.inference.shared.factor_view import PriorCells
from nmf_zoo.inference.shared.layout import Layout, compress
from nmf_zoo.kernels.hmc.adaptation import CountSide, Schedule, SideWorkspace, Tuning
from nmf_zoo.kernels.overdispersed.rows import DispersedRows, run_hmc
from nmf_zoo.structure import Array, Cells, Factorisation

MOST_CELLS = 1 << 18  # of the table: a trajectory visits all of them at each of its steps, those of zeros, too
NOT_DRAWN = np.empty((0, 0))

Sides = tuple[CountSide, CountSide]


class CellTable(NamedTuple):
    """The data as (F, N) arrays; x and exposure are 0 where a cell is missing."""

    x: Array
    exposure: Array
    background: Array

    @property
    def turned(self) -> CellTable:
        """By samples."""
        return CellTable(self.x.T, self.exposure.T, self.background.T)


def make_sides(structure: Factorisation, options: Gibbs) -> Sides | None:
    """W's and H's where trajectories run, else None; priors and alpha are those of :func:`given`."""
    if options.trajectories == "never" or not all_free(structure) or np.prod(structure.shape) > MOST_CELLS:
        return None
    return make_cell_sides(structure, read_table(structure))


def make_cell_sides(structure: Factorisation, table: CellTable) -> Sides:
    """W's and H's of a table of cells."""
    layout = compress(structure, with_offset=False)
    return _make_side(table, layout, structure.rank), _make_side(table.turned, layout, structure.rank)


def read_table(structure: Factorisation) -> CellTable:
    """Of dense or listed data."""
    data, shape = structure.data, structure.shape
    if isinstance(data, Cells):
        at = data.rows, data.cols
        x = _spread(data.values, at, shape)
        if not data.is_complete:
            listed = structure.exposure_at(*at), structure.background_at(*at)
            return CellTable(x, *(_spread(own, at, shape) for own in listed))
        return CellTable(x, structure.exposure_table(), structure.background_table())
    exposure, mask = structure.exposure_table(), data.mask
    return CellTable(
        data.values, exposure if mask is None else np.where(mask, exposure, 0.0), structure.background_table()
    )


def _spread(values: Array, at: tuple[Array, Array], shape: tuple[int, int]) -> Array:
    table = np.zeros(shape)
    table[at] = values
    return table


def _make_side(table: CellTable, layout: Layout, rank: int) -> CountSide:
    """Of a table (rows, cells)."""
    n_rows, n_cells = table.x.shape
    width, offset = block_width(n_rows, n_cells), np.zeros(table.x.shape)
    np.divide(table.background, table.exposure, where=table.exposure > 0.0, out=offset)
    x, exposure, offset = (blocks_of(own, width, 0.0) for own in (table.x, table.exposure, offset))
    data = DispersedRows(x, offset, layout, exposure, np.ones((len(x), width)), np.ones(n_cells))
    return CountSide(data, np.ones((len(x), rank, width)), n_rows)


def tuning_of(structure: Factorisation, sides: Sides) -> Tuning:
    """At the start of a chain."""
    of_W, of_H = (side.prior_rate.shape for side in sides)
    return make_tuning(of_W, of_H, has_masses(structure))


def given(sides: Sides, priors: PriorCells, alpha: Array) -> Sides:
    """The sides under these priors and inverse dispersions, (1 or F, 1 or N)."""
    of_features, of_samples = (alpha, np.ones((1, 1))) if alpha.shape[1] == 1 else (np.ones((1, 1)), alpha.T)
    return (
        _side_given(sides[0], priors.rate_w, of_features, of_samples),
        _side_given(sides[1], priors.rate_h, of_samples, of_features),
    )


def _side_given(side: CountSide, rate: Array, alpha_of_rows: Array, alpha_of_cells: Array) -> CountSide:
    (blocks, n_cells, width), n_rows = side.data.grid.shape, side.n_rows
    of_rows = blocks_of(np.broadcast_to(alpha_of_rows, (n_rows, 1)), width, 1.0).reshape(blocks, width)
    of_cells = np.array(np.broadcast_to(alpha_of_cells[:, 0], n_cells))
    data = side.data._replace(alpha_of_rows=of_rows, alpha_of_cells=of_cells)
    return side._replace(data=data, prior_rate=blocks_of(rate, width, 1.0))


def make_workspaces(sides: Sides, priors: PriorCells) -> tuple[SideWorkspace, SideWorkspace]:
    """Rows and scratch of either side."""
    return make_side_workspace(sides[0], priors.shape_w), make_side_workspace(sides[1], priors.shape_h)


def run_trajectories(
    sides: Sides,
    workspaces: tuple[SideWorkspace, SideWorkspace],
    factors: tuple[Array, Array],
    priors: PriorCells,
    draws: tuple[bool, bool],
    tuning: Tuning,
    what: Schedule,
    key: np.uint64,
) -> tuple[float, float]:
    """What a sweep's schedule says of the rows of W (F, K) and Ht (N, K), in place: mean acceptance of both."""
    if not (what.runs_hmc or what.measures):
        return np.nan, np.nan
    own = zip((priors.rate_w, priors.rate_h), draws, strict=True)
    rates = tuple(np.array(rate, order="C") if is_drawn else NOT_DRAWN for rate, is_drawn in own)  # never read-only
    return run_hmc(sides, factors, rates, tuning, workspaces, what, key)

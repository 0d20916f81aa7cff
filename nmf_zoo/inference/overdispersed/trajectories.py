"""Trajectories of rows of negative binomial counts: where they run, and what their kernels need of a problem."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.counts.gibbs import Gibbs, all_free
from nmf_zoo.inference.counts.sweeps import (
    NO_GRID,
    block_width,
    blocks_of,
    has_masses,
    make_side_workspace,
    make_tuning,
    trajectories_pay,
)
from nmf_zoo.inference.shared.factor_view import PriorCells
from nmf_zoo.inference.shared.layout import Layout, compress
from nmf_zoo.inference.shared.start import start_hyperparameters
from nmf_zoo.kernels.hmc.adaptation import CountSide, Schedule, SideWorkspace, Tuning
from nmf_zoo.kernels.overdispersed.rows import DispersedRows, run_hmc
from nmf_zoo.structure import Array, Cells, Factorisation

MOST_CELLS = 1 << 18  # of the table: a trajectory visits all of them at each of its steps, those of zeros, too
NOT_DRAWN = np.empty((0, 0))

Sides = tuple[CountSide, CountSide]


class Table(NamedTuple):
    """The data as (F, N) arrays; x and exposure are 0 where a cell is missing, background is None for none."""

    x: Array
    exposure: Array
    background: Array | None


def make_sides(structure: Factorisation, options: Gibbs) -> Sides | None:
    """W's and H's where trajectories run, else None; priors and alpha are those of :func:`given`."""
    if options.trajectories == "never" or not all_free(structure) or np.prod(structure.shape) > MOST_CELLS:
        return None
    layout = compress(structure, with_offset=False)
    if options.trajectories == "auto" and not trajectories_pay(structure, layout, start_hyperparameters(structure, {})):
        return None
    table = read_table(structure)
    turned = Table(*(None if own is None else own.T for own in table))
    return _make_side(table, layout, structure.rank), _make_side(turned, layout, structure.rank)


def read_table(structure: Factorisation) -> Table:
    """Of dense or listed data."""
    likelihood, data = structure.likelihood, structure.data
    has_background = likelihood.background is not None
    if isinstance(data, Cells) and not data.is_complete:
        at = data.rows, data.cols
        background = structure.background_at(*at) if has_background else None
        listed = data.values, structure.exposure_at(*at), background
        return Table(*(None if own is None else _spread(own, at, structure.shape) for own in listed))
    background = structure.background_table() if has_background else None
    if isinstance(data, Cells):
        return Table(_spread(data.values, (data.rows, data.cols), data.shape), structure.exposure_table(), background)
    exposure = structure.exposure_table()
    return Table(data.values, exposure if data.mask is None else np.where(data.mask, exposure, 0.0), background)


def _spread(values: Array, at: tuple[Array, Array], shape: tuple[int, int]) -> Array:
    table = np.zeros(shape)
    table[at] = values
    return table


def _make_side(table: Table, layout: Layout, rank: int) -> CountSide:
    """Of a table (rows, cells)."""
    n_rows, n_cells = table.x.shape
    width, offset = block_width(n_rows, n_cells), NO_GRID
    x, exposure = (blocks_of(own, width, 0.0) for own in (table.x, table.exposure))
    if table.background is not None:
        is_seen = table.exposure > 0.0
        ratio = np.divide(table.background, table.exposure, where=is_seen, out=np.zeros(table.x.shape))
        offset = blocks_of(ratio, width, 0.0)
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
    rates = tuple(np.ascontiguousarray(rate) if is_drawn else NOT_DRAWN for rate, is_drawn in own)
    return run_hmc(sides, factors, rates, tuning, workspaces, what, key)

"""Trajectories of rows and compiled sweeps of composite Gibbs: what their kernels need of a problem, and scratch.

Trajectories run on any problem unless they are refused. One with known hyperparameters whose frames lie in one chunk
sweeps without Python in between; others do the same step by step, blocks of rows spread over threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.counts import sweeps as of_counts
from nmf_zoo.inference.counts.sweeps import NO_GRID, block_width, blocks_of
from nmf_zoo.inference.powers.spectra import NOWHERE, Spectra
from nmf_zoo.kernels.hmc import power_rows
from nmf_zoo.kernels.hmc.adaptation import Schedule, SideTuning, Tuning
from nmf_zoo.kernels.hmc.power_rows import LOUD, PowerRows, RowPowers
from nmf_zoo.kernels.powers import composite
from nmf_zoo.kernels.powers.composite import PowerFactors
from nmf_zoo.kernels.powers.sweeps import (
    PowerSide,
    PowerSideWorkspace,
    PowerSweeps,
    PowerSweepWorkspace,
    end_trajectories,
    run_blocks,
    set_rows,
)
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array

MOST_MASSES = 1 << 22  # numbers; fewer than the data's cells are always allowed


class ByComponent(NamedTuple):
    """Shape and scale of the priors' cells, components as rows: W's (K, F), H's (K, N)."""

    shape_w: Array
    scale_w: Array
    shape_h: Array
    scale_h: Array


# -- what sweeps read ----------------------------------------------------------------------------------------------


def make_sides(spectra: Spectra) -> tuple[PowerSide, PowerSide]:
    """W's and H's."""
    return _make_side(*(table.T for table in spectra)), _make_side(*spectra)


def _make_side(power: Array, seen: Array, background: Array) -> PowerSide:
    """Tables (rows, cells)."""
    width = block_width(*power.shape)
    offset = np.zeros_like(power) if seen.size or background.size else NOWHERE
    if background.size:
        offset += background
    if seen.size:
        offset[~seen] = LOUD
    blocks = blocks_of(offset, width, 1.0) if offset.size else NO_GRID
    return PowerSide(RowPowers(blocks_of(power, width, 1.0), blocks), len(power))


def log_normalisers(priors: ByComponent) -> float:
    """What the inverse gammas' log-densities have beside the part that depends on the factors."""
    total = 0.0
    for shape, scale in (priors[:2], priors[2:]):
        proper = scale > 0
        total += float(np.sum(shape[proper] * np.log(scale[proper]) - gammaln(shape[proper])))
    return total


# -- what a chain owns ---------------------------------------------------------------------------------------------


def make_tuning(sides: tuple[PowerSide, PowerSide], rank: int) -> Tuning:
    """At the start of a chain."""
    rows = sides[0].n_rows + sides[1].n_rows
    masses = rows * rank * rank <= max(4 * sides[0].n_rows * sides[1].n_rows, MOST_MASSES)
    of_W, of_H = ((grid.shape[0], rank, grid.shape[2]) for grid in (side.data.grid for side in sides))
    return of_counts.make_tuning(of_W, of_H, masses, scales=False)


def make_workspace(sweeps: PowerSweeps, factors: PowerFactors) -> PowerSweepWorkspace:
    """Scratch of one chain."""
    rank, n_frequencies = factors.Wt.shape
    return PowerSweepWorkspace(
        composite.make_workspace(rank, n_frequencies),
        np.empty((n_frequencies, rank)),
        np.empty((rank, len(factors.Ht))),
        np.empty(rank),
        make_side_workspaces(sweeps.sides, sweeps.priors),
    )


def make_side_workspaces(
    sides: tuple[PowerSide, PowerSide], priors: ByComponent
) -> tuple[PowerSideWorkspace, PowerSideWorkspace]:
    """Rows and scratch of either side."""
    return _make_side_workspace(sides[0], *priors[:2]), _make_side_workspace(sides[1], *priors[2:])


def _make_side_workspace(side: PowerSide, shape: Array, scale: Array) -> PowerSideWorkspace:
    """``shape`` and ``scale``: (K, rows)."""
    (blocks, n_cells, width), rank = side.data.grid.shape, len(shape)
    values, chance = np.ones((blocks, rank, width)), np.zeros((blocks, width))
    rows = PowerRows(values, blocks_of(shape.T, width, 1.0), blocks_of(scale.T, width, 1.0), chance)
    return PowerSideWorkspace(rows, power_rows.make_workspace(n_cells, rank, width))


# -- step by step --------------------------------------------------------------------------------------------------


def run_in_threads(
    sides: tuple[PowerSide, PowerSide],
    workspaces: tuple[PowerSideWorkspace, PowerSideWorkspace],
    workers: Workers,
    draws: tuple[bool, bool],
    factors: PowerFactors,
    tuning: Tuning,
    what: Schedule,
    key: np.uint64,
) -> tuple[float, float]:
    """What a sweep of :mod:`nmf_zoo.kernels.powers.sweeps` does, blocks of rows side by side."""
    chance_W, chance_H = np.nan, np.nan
    if not (what.runs_hmc or what.measures):
        return chance_W, chance_H
    W = np.ascontiguousarray(factors.Wt.T)
    if draws[1]:
        chance_H = _run_side(workers, sides[1], workspaces[1], (factors.Ht, W), tuning.H, what, child(key, 1))
    if draws[0]:
        chance_W = _run_side(workers, sides[0], workspaces[0], (W, factors.Ht), tuning.W, what, child(key, 0))
        factors.Wt[:] = W.T
    return chance_W, chance_H


def _run_side(
    workers: Workers,
    side: PowerSide,
    workspace: PowerSideWorkspace,
    arrays: tuple[Array, Array],
    tuning: SideTuning,
    what: Schedule,
    key: np.uint64,
) -> float:
    """``arrays``: the factor, which moves, and the other one."""
    blocks, n_cells, width = side.data.grid.shape
    factor, other = arrays
    set_rows(workspace.rows.values, factor)

    def run_block(block: int) -> Any:
        own = workspace._replace(block=power_rows.make_workspace(n_cells, other.shape[1], width))
        run_blocks(side.data, other, tuning, own, (block, block + 1), what, key)

    workers.map(run_block, range(blocks))
    return end_trajectories(side, factor, workspace.rows, what.runs_hmc)

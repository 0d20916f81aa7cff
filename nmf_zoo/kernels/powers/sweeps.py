"""Whole blocks of sweeps over powers in one call, for data of one chunk: a small problem pays no Python per sweep.

A sweep is composite Gibbs (:mod:`nmf_zoo.kernels.powers.composite`) in the first of the warm-up and rarely after it,
and trajectories and exchanges of the rows of H given W, then of W given H (:mod:`nmf_zoo.kernels.hmc.power_rows`),
adapted as those of counts are (:mod:`nmf_zoo.kernels.hmc.adaptation`). The kernels and the keys are those that
:func:`nmf_zoo.inference.powers.gibbs.step` and ``draw`` use one by one: the draws are the same, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel, spliced
from nmf_zoo.kernels.hmc.adaptation import (
    SweepPlan,
    begin_sweep,
    end_sweep,
    from_blocks,
    mean_chance,
    to_blocks,
    turn,
)
from nmf_zoo.kernels.hmc.power_rows import (
    PowerRows,
    PowerRowWorkspace,
    PowerStride,
    RowPowers,
    add_curvature,
    exchange_components,
    move_rows,
)
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.numerics.cells import rates_at_cells
from nmf_zoo.kernels.powers.composite import (
    apply_scales,
    draw_frames,
    draw_scales,
    draw_weights,
    log_likelihood,
    move_inverse_shears,
)
from nmf_zoo.kernels.random.keyed_rng import fold

# children of a sweep's stream
POWERS, WEIGHTS, SCALES, SHEARS, HYPERPARAMETERS, TRAJECTORIES, ORBIT = range(7)
EXCHANGES = 3  # child of a block's, beside those of power_rows.move_rows
ORBIT_EVERY = 10  # sweeps: a shear costs as much as they do, and trajectories move along the orbit themselves
PAIRS = 2  # exchanges of a sweep, at the most one less than components


class PowerSide(NamedTuple):
    """The data as the rows of a factor see them; the last block is filled up with idle rows."""

    data: RowPowers
    n_rows: int


class PowerSideWorkspace(NamedTuple):
    """A side's rows, and scratch for one block of them."""

    rows: PowerRows
    block: PowerRowWorkspace


class PowerSweeps(NamedTuple):
    """What every sweep reads.

    Attributes
    ----------
    spectra : :class:`nmf_zoo.inference.powers.spectra.Spectra`
    given : :class:`nmf_zoo.kernels.powers.composite.Given`
    priors : shape and scale of W's prior, (K, F) each, and of H's, (K, N); -1 and 0 where there is none
    followed : rows and columns of the cells of W H that are reported
    sides : W's and H's
    """

    plan: SweepPlan
    spectra: Any
    given: Any
    priors: Any
    followed: tuple[np.ndarray, np.ndarray]
    sides: tuple[PowerSide, PowerSide]


class PowerSweepWorkspace(NamedTuple):
    """Scratch of a sweep: the composite sweep's, W (F, K), H (K, N), scales (K,), and of both sides."""

    chunk: Any
    W: np.ndarray
    H: np.ndarray
    scales: np.ndarray
    sides: tuple[PowerSideWorkspace, PowerSideWorkspace]


@kernel
def run_sweeps(sweeps, factors, tuning, workspace, kept, block, keys):
    """Sweeps first, ..., stop - 1 of ``block`` (first, stop, base, thin, tuning), each with its key.

    ``kept`` has room for the sweeps that ``block`` keeps. Returns what the last sweep says of itself.
    """
    first, stop, base, thin, is_tuning = block
    info = 0.0, np.nan, np.nan, 0.0, 0.0
    row = np.int64(0)  # a plain 0 would be a type of its own, and `keep` compiled twice
    for number in range(first, stop):
        info = _sweep(sweeps, factors, tuning, workspace, is_tuning, keys[number - first])
        if thin > 0 and (number - base) % thin == 0:
            keep(sweeps, factors, workspace, kept, row)
            for i in range(len(info)):
                kept.infos[row, i] = info[i]
            row += 1
    return info


@spliced  # its one caller would compile all of it again
def _sweep(sweeps, factors, tuning, workspace, is_tuning, key):
    """One sweep: (size of the scale move, acceptance of W's and of H's trajectories, steps of W's and of H's)."""
    scale_move, chance_W, chance_H, length_W, length_H = 0.0, np.nan, np.nan, 0.0, 0.0
    if not sweeps.plan.runs_hmc:
        scale_move = draw_by_components(sweeps, factors, workspace, key)
    else:
        what, own = begin_sweep(tuning, is_tuning, ORBIT_EVERY), fold(key, TRAJECTORIES)
        if what.allocates:
            scale_move = draw_by_components(sweeps, factors, workspace, key)
        length_W, length_H = np.float64(tuning.W.length[0]), np.float64(tuning.H.length[0])
        if what.runs_hmc or what.measures:
            turn(workspace.W, factors.Wt)
            if sweeps.plan.draws_H:
                chance_H = run_hmc(
                    sweeps.sides[1], factors.Ht, workspace.W, tuning.H, workspace.sides[1], what, fold(own, 1)
                )
            if sweeps.plan.draws_W:
                chance_W = run_hmc(
                    sweeps.sides[0], workspace.W, factors.Ht, tuning.W, workspace.sides[0], what, fold(own, 0)
                )
                turn(factors.Wt, workspace.W)
        if what.moves:
            scale_move = _move_along_orbit(sweeps, factors, workspace, fold(key, ORBIT))
        end_sweep(tuning, sweeps.sides, workspace.sides, is_tuning)
    return scale_move, chance_W, chance_H, length_W, length_H


@kernel
def draw_by_components(sweeps, factors, workspace, key):
    """Composite Gibbs with its moves; returns the size of the scale's move."""
    plan, n_frames = sweeps.plan, factors.Ht.shape[0]
    draws = plan.draws_W, plan.draws_H
    draw_frames(sweeps.spectra, factors, sweeps.given, draws, (0, n_frames), workspace.chunk, fold(key, POWERS))
    if plan.draws_W:
        draw_weights(factors.Wt, workspace.chunk.of_weights, sweeps.given, fold(key, WEIGHTS))
    return _move_along_orbit(sweeps, factors, workspace, key)


@kernel
def _move_along_orbit(sweeps, factors, workspace, key):
    """Scale and shear; returns the size of the scale's move."""
    plan, priors, scale_move = sweeps.plan, sweeps.priors, 0.0
    if plan.scales:
        draw_scales(workspace.scales, factors, sweeps.given, fold(key, SCALES))
        scale_move = apply_scales(factors, workspace.scales)
    if plan.shears:
        turn(workspace.H, factors.Ht)
        of_W, of_H = (priors.shape_w, priors.scale_w), (priors.shape_h, priors.scale_h)
        move_inverse_shears(factors.Wt, workspace.H, of_W[0], of_W[1], of_H[0], of_H[1], fold(key, SHEARS))
        turn(factors.Ht, workspace.H)
    return scale_move


@kernel
def run_hmc(side, factor, other, tuning, workspace, what, key):
    """Move and measure the rows of one factor given the other, or only either: mean acceptance, nan without moves."""
    set_rows(workspace.rows.values, factor)
    run_blocks(side.data, other, tuning, workspace, (0, workspace.rows.values.shape[0]), what, key)
    return end_trajectories(side, factor, workspace.rows, what.runs_hmc)


@kernel
def run_blocks(data, other, tuning, workspace, blocks, what, key):
    """Move and measure the rows of blocks[0], ..., blocks[1] - 1, or only either: see ``what``."""
    stride, pairs = PowerStride(tuning.root, tuning.step, tuning.length), min(PAIRS, other.shape[1] - 1)
    for block in range(blocks[0], blocks[1]):
        own = fold(key, block)
        if what.runs_hmc:
            move_rows(data, other, workspace.rows, stride, workspace.block, block, own)
            exchange_components(data, other, workspace.rows, workspace.block, block, pairs, fold(own, EXCHANGES))
        if what.measures and tuning.curvature.size > 0:
            add_curvature(data, other, workspace.rows, workspace.block, block, tuning.curvature[block])


@kernel
def set_rows(values, factor):
    """From (rows, K) to (blocks, K, width); idle rows are 1, so that nothing hangs on where they have wandered."""
    values[-1] = 1.0
    to_blocks(values, factor)


@kernel
def end_trajectories(side, factor, rows, has_run):
    """Take over what was moved; returns the mean acceptance."""
    if not has_run:
        return np.nan
    from_blocks(factor, rows.values)
    return mean_chance(rows.chance, side.n_rows)


@kernel
def keep(sweeps, factors, workspace, kept, row):
    """Store a draw and what is reported of it; ``lp`` but for constants."""
    W, Ht, priors = kept.W[row], kept.Ht[row], sweeps.priors
    turn(W, factors.Wt)
    copy_table(Ht, factors.Ht)
    rates_at_cells(kept.mean[row], W, Ht, sweeps.followed[0], sweeps.followed[1])
    kept.lp[row] = log_likelihood(sweeps.spectra, factors, (0, Ht.shape[0]), workspace.chunk)
    kept.lp[row] += _log_prior(W, priors.shape_w, priors.scale_w) + _log_prior(Ht, priors.shape_h, priors.scale_h)


@kernel
def _log_prior(factor, shape, scale):
    """-sum ((shape + 1) log v + scale / v) of a factor (rows, K)."""
    total = 0.0
    for k in range(shape.shape[0]):
        for i in range(shape.shape[1]):
            total -= (shape[k, i] + 1.0) * math.log(factor[i, k]) + scale[k, i] / factor[i, k]
    return total

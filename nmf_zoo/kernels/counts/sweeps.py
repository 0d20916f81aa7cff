"""Whole blocks of Gibbs sweeps in one call, for data of one chunk: a small problem pays no Python per sweep.

The kernels are those that :func:`nmf_zoo.inference.counts.gibbs.step` and ``draw`` call one by one, and so are the
keys: the draws are the same, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.compile.apart import call_at
from nmf_zoo.kernels.counts.gibbs import allocate_cell_by_cell, draw_scales, move_shears
from nmf_zoo.kernels.counts.joint import WeightArrays, log_joint, weigh_features, weigh_samples
from nmf_zoo.kernels.hmc.adaptation import (
    CountSide,
    SideWorkspace,
    SweepPlan,
    begin_sweep,
    end_sweep,
    from_blocks,
    measure_side,
    move_side,
    to_blocks,
    turn,
)
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.numerics.cells import rates_at_cells
from nmf_zoo.kernels.random.draws import TINY, draw_factor
from nmf_zoo.kernels.random.keyed_rng import fold

# children of a sweep's stream
SOURCES, WEIGHTS, ACTIVATIONS, SCALES, SHEARS, HYPERPARAMETERS, TRAJECTORIES, ORBIT = range(8)
ORBIT_EVERY = 4  # sweeps with trajectories, which move along the orbit themselves if slowly


class CountSweeps(NamedTuple):
    """What every sweep reads.

    Attributes
    ----------
    priors, by_component : the priors' cells, full arrays, with rows and with components first
    sides : W's and H's, for trajectories
    """

    plan: SweepPlan
    layout: Any
    weights: WeightArrays
    priors: Any
    by_component: Any
    followed: tuple[np.ndarray, np.ndarray]
    sides: tuple[CountSide, CountSide]


class CountFactors(NamedTuple):
    """The chain's state: W, of_features (F, K); Ht, of_samples (N, K)."""

    W: np.ndarray
    Ht: np.ndarray
    of_features: np.ndarray
    of_samples: np.ndarray


class SweepWorkspace(NamedTuple):
    """Scratch of a sweep, each array written before it is read.

    Attributes
    ----------
    sources : scratch of ``allocate_cell_by_cell``
    shape_w, rate_w : (F, K); shape_h, rate_h : (N, K)
    W : (K, F); H : (K, N)
    scale : (3, K)
    means : (non-zeros,)
    sides : scratch of W's and H's trajectories
    """

    sources: Any
    shape_w: np.ndarray
    rate_w: np.ndarray
    shape_h: np.ndarray
    rate_h: np.ndarray
    W: np.ndarray
    H: np.ndarray
    scale: np.ndarray
    means: np.ndarray
    sides: tuple[SideWorkspace, SideWorkspace]


@kernel
def run_sweeps(sweeps, factors, tuning, workspace, kept, block, hmc, key):
    """Sweeps first, ..., stop - 1 of ``block`` (first, stop, base, thin, tuning); returns an allocation's failures.

    ``key`` is the stream of the steps. ``kept`` has room for the sweeps that ``block`` keeps. A failure ends the block.
    ``hmc`` is the address of :func:`run_hmc`, half of all code, for a plan that runs trajectories.
    """
    first, stop, base, thin, is_tuning = block
    row = 0
    for number in range(first, stop):
        failures, info = _sweep(sweeps, factors, tuning, workspace, is_tuning, hmc, fold(key, number))
        if failures > 0:
            return failures
        if thin > 0 and (number - base) % thin == 0:
            keep(sweeps, factors, workspace, kept, row)
            for i in range(len(info)):
                kept.infos[row, i] = info[i]
            row += 1
    return 0


@kernel
def _sweep(sweeps, factors, tuning, workspace, is_tuning, hmc, key):
    """One sweep: (failures of the allocation, (size of the scale move, acceptance and steps of W and of H))."""
    failures, scale_move, chances = 0, 0.0, (np.nan, np.nan)
    if not sweeps.plan.runs_hmc:
        failures, scale_move = _draw_by_sources(sweeps, factors, workspace, key)
        return failures, (scale_move, np.nan, np.nan, 0.0, 0.0)
    what = begin_sweep(tuning, is_tuning, ORBIT_EVERY)
    if what.allocates:
        failures, scale_move = _draw_by_sources(sweeps, factors, workspace, key)
        if failures > 0:
            return failures, (scale_move, np.nan, np.nan, 0.0, 0.0)
    lengths = np.float64(tuning.W.length[0]), np.float64(tuning.H.length[0])
    chances = call_at(hmc, (sweeps, factors, tuning, workspace, what, fold(key, TRAJECTORIES)))
    if what.moves:
        scale_move = _move_along_orbit(sweeps, factors, workspace, fold(key, ORBIT))
    end_sweep(tuning, sweeps.sides, workspace.sides, is_tuning)
    return failures, (scale_move, chances[0], chances[1], lengths[0], lengths[1])


@kernel
def run_hmc(sweeps, factors, tuning, workspace, what, key):
    """Trajectories of H's rows given W, then of W's given H, if this sweep has them: mean acceptance of W and H."""
    chance_W, chance_H = np.nan, np.nan
    if not (what.runs_hmc or what.measures):
        return chance_W, chance_H
    W, Ht, plan = factors.W, factors.Ht, sweeps.plan
    if plan.draws_H:
        weigh_features(workspace.rate_h, sweeps.weights, W)
        _add(workspace.rate_h, sweeps.priors.rate_h, workspace.rate_h)
        arrays = Ht, workspace.rate_h, W
        chance_H = run_side(sweeps.sides[1], arrays, tuning.H, workspace.sides[1], what, fold(key, 1))
    if plan.draws_W:
        weigh_samples(workspace.rate_w, sweeps.weights, Ht)
        _add(workspace.rate_w, sweeps.priors.rate_w, workspace.rate_w)
        arrays = W, workspace.rate_w, Ht
        chance_W = run_side(sweeps.sides[0], arrays, tuning.W, workspace.sides[0], what, fold(key, 0))
    return chance_W, chance_H


@kernel
def run_side(side, arrays, tuning, workspace, what, key):
    """``arrays``: the factor, its rates, the other factor; ``what``: the sweep's Schedule."""
    factor, rate, other = arrays
    chance = np.nan
    to_blocks(workspace.rows.values, factor)
    to_blocks(workspace.rows.rate, rate)
    if what.runs_hmc:
        chance = move_side(side, other, tuning, workspace, key)
        from_blocks(factor, workspace.rows.values)
    if what.measures:
        measure_side(side, other, tuning, workspace)
    return chance


@kernel
def _draw_by_sources(sweeps, factors, workspace, key):
    """Plain Gibbs with its moves: (failures of the allocation, size of the scale move)."""
    plan, priors, W, Ht = sweeps.plan, sweeps.priors, factors.W, factors.Ht
    failures = _allocate(sweeps.layout, factors, workspace.sources, fold(key, SOURCES))
    if failures > 0:
        return failures, 0.0
    if plan.draws_W:
        weigh_samples(workspace.rate_w, sweeps.weights, Ht)
        _add(workspace.rate_w, priors.rate_w, workspace.rate_w)
        _add(workspace.shape_w, priors.shape_w, factors.of_features)
        draw_factor(W, workspace.shape_w, workspace.rate_w, 0, W.shape[0], fold(key, WEIGHTS))
    if plan.draws_H:
        weigh_features(workspace.rate_h, sweeps.weights, W)
        _add(workspace.rate_h, priors.rate_h, workspace.rate_h)
        _add(workspace.shape_h, priors.shape_h, factors.of_samples)
        draw_factor(Ht, workspace.shape_h, workspace.rate_h, 0, Ht.shape[0], fold(key, ACTIVATIONS))
    return 0, _move_along_orbit(sweeps, factors, workspace, key)


@kernel
def _move_along_orbit(sweeps, factors, workspace, key):
    """Scale and shear; returns the size of the scale move."""
    plan, priors, W, Ht, scale_move = sweeps.plan, sweeps.priors, factors.W, factors.Ht, 0.0
    if plan.scales:
        set_rates_of_components(workspace.scale[1], priors.rate_w, W)
        set_rates_of_components(workspace.scale[2], priors.rate_h, Ht)
        draw_scales(workspace.scale[0], priors.tilt, workspace.scale[1], workspace.scale[2], fold(key, SCALES))
        scale_move = apply_scales(W, Ht, workspace.scale[0])
    if plan.shears:
        turn(workspace.W, W)
        turn(workspace.H, Ht)
        turned = sweeps.by_component
        move_shears(workspace.W, workspace.H, turned[0], turned[1], turned[2], turned[3], fold(key, SHEARS))
        turn(W, workspace.W)
        turn(Ht, workspace.H)
    return scale_move


@kernel
def _allocate(layout, factors, scratch, key):
    """Sources of all counts; sums of whole numbers are the same in any order."""
    major, minor = (factors.W, factors.Ht) if layout.by_features else (factors.Ht, factors.W)
    of_features, of_samples = factors.of_features, factors.of_samples
    of_major, of_minor = (of_features, of_samples) if layout.by_features else (of_samples, of_features)
    of_minor[:] = 0.0
    failures = 0
    for chunk in range(layout.chunks.size - 1):
        failures += allocate_cell_by_cell(layout, major, minor, chunk, of_major, of_minor, scratch, key)
    return failures


@kernel
def _add(out, left, right):
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = left[i, k] + right[i, k]


@kernel
def set_rates_of_components(out, rate, factor):
    """Overwrite out (K,): twice the sum of rate * factor over the rows, as the scale's law has it."""
    out[:] = 0.0
    for i in range(factor.shape[0]):
        for k in range(out.size):
            out[k] += 2.0 * rate[i, k] * factor[i, k]


@kernel
def apply_scales(W, Ht, scale):
    """w_k -> c_k w_k, h_k -> h_k / c_k, never 0; returns the root mean square of log c."""
    for k in range(scale.size):
        for f in range(W.shape[0]):
            W[f, k] = max(W[f, k] * scale[k], TINY)
        for n in range(Ht.shape[0]):
            Ht[n, k] = max(Ht[n, k] / scale[k], TINY)
    total = 0.0
    for k in range(scale.size):
        total += math.log(scale[k]) ** 2
    return math.sqrt(total / scale.size)


@kernel
def keep(sweeps, factors, workspace, kept, row):
    """Store a draw and what is reported of it."""
    W, Ht = factors.W, factors.Ht
    copy_table(kept.W[row], W)
    copy_table(kept.Ht[row], Ht)
    rows, cols = sweeps.followed
    rates_at_cells(kept.mean[row], W, Ht, rows, cols)
    kept.lp[row] = log_joint(sweeps.layout, sweeps.weights, sweeps.priors, W, Ht, (workspace.means, workspace.rate_w))

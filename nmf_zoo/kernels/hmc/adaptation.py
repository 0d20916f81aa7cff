"""How trajectories of rows adapt in the warm-up: scales, masses, steps and the number of steps.

The first PLAIN sweeps are plain Gibbs. Windows of doubling length follow, and what a window has measured is put to use
at its end: until the third the scales of the coordinates, from the third on the masses, where there is room for them.
Every BURST sweeps each row's step follows its acceptance. The first sweep after the warm-up freezes it all. Nothing
depends on the clock.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.hmc.poisson_rows import (
    FactorRows,
    RowWorkspace,
    Stride,
    add_plain_curvature,
    gradient_of_counts,
    measure_rows,
    move_rows,
)
from nmf_zoo.kernels.numerics.arrays import copy_row, flat, smallest
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import fold

PLAIN, LEAST, BURST = 50, 100, 10  # sweeps: of plain Gibbs, without which it stays plain, between changes of the steps
LAST_SCALE = 2  # the window whose end sets the scales for the last time and the masses for the first
EVERY, MEASURED = 20, 4  # one sweep in so many allocates as a guard where a factor is nearly 0; is measured in warm-up
TARGET, GAIN, LEAST_GAIN, FIRST_STEP = 0.9, 1.5, 0.3, 0.5  # acceptance; change of log step per acceptance amiss
PATH, PLAIN_PATH, SHORTEST, LONGEST = 3.0, 4.0, 3, 32  # length * step with masses and without; least and most length
RIDGE = 0.25  # least square of a mass's pivot: averages of few sweeps may be anything

N_INFOS = 5  # size of the scale move; acceptance probability and steps of the trajectories of W and H

SWEEPS, IS_FROZEN, IS_READY, WINDOW, INDEX, SEEN, CHANGES, IN_BURST = range(8)  # entries of Tuning.pace


class SideTuning(NamedTuple):
    """What the trajectories of one factor's rows have learnt, and the sums it comes from.

    Attributes
    ----------
    scale, root, step, length : of a :class:`nmf_zoo.kernels.hmc.poisson_rows.Stride`; scale and width have size 0
        where coordinates have no scale
    curvature : as ``root``, a sum over the window
    width : as ``scale``, a sum over the window of what the scale should be
    chance : as ``step``, a sum over the burst
    """

    scale: np.ndarray
    root: np.ndarray
    step: np.ndarray
    length: np.ndarray
    curvature: np.ndarray
    width: np.ndarray
    chance: np.ndarray


class Tuning(NamedTuple):
    """Both factors' tuning, and the counters named in this file."""

    W: SideTuning
    H: SideTuning
    pace: np.ndarray


class CountSide(NamedTuple):
    """The data as the rows of a factor see them, and the prior's rates; blocks are filled up with idle rows.

    ``data``: RowCounts, or what counts of another law have in their place
    """

    data: Any
    prior_rate: np.ndarray
    n_rows: int


class SideWorkspace(NamedTuple):
    """Scratch for one side."""

    rows: FactorRows
    block: RowWorkspace


class SweepPlan(NamedTuple):
    """What a sweep does: which factors are drawn, which moves follow, and whether trajectories run."""

    draws_W: bool
    draws_H: bool
    scales: bool
    shears: bool
    runs_hmc: bool


class Kept(NamedTuple):
    """Where the kept sweeps go, along the first axis; ``infos``: what each says of itself, as ``N_INFOS`` numbers."""

    W: np.ndarray
    Ht: np.ndarray
    mean: np.ndarray
    lp: np.ndarray
    infos: np.ndarray


class Schedule(NamedTuple):
    """What a sweep does.

    Attributes
    ----------
    allocates : draws sources and factors as plain Gibbs does
    runs_hmc : moves rows along trajectories
    measures : takes note of the curvature
    moves : along the orbit, after the trajectories
    """

    allocates: bool
    runs_hmc: bool
    measures: bool
    moves: bool


@kernel
def begin_sweep(tuning, is_tuning, orbit_every):
    """What this sweep does; the first one after the warm-up freezes what was learnt, or stays plain for good.

    ``orbit_every`` : sweeps with trajectories, which move along the orbit themselves if slowly.
    """
    pace = tuning.pace
    if not is_tuning and pace[IS_FROZEN] == 0.0:
        pace[IS_FROZEN] = 1.0
        pace[IS_READY] = 1.0 if pace[SWEEPS] >= LEAST else 0.0
        _bound_steps(tuning.W)
        _bound_steps(tuning.H)
    sweeps, runs_hmc = pace[SWEEPS], pace[IS_READY] > 0.0
    measures = is_tuning and _is_measured(pace)
    return Schedule(
        not runs_hmc or sweeps % EVERY == 0.0,
        runs_hmc,
        measures,
        runs_hmc and sweeps % orbit_every == 0.0,
    )


@kernel
def _is_measured(pace):
    """Whether a sweep of the warm-up takes note of the curvature."""
    return pace[SWEEPS] >= PLAIN // 2 and pace[SWEEPS] % MEASURED == 0.0


@kernel
def turn(out, array):
    """Transpose."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = array[k, i]


@kernel
def to_blocks(table, factor):
    """From (rows, K) to (blocks, K, width); idle rows stay as they are."""
    width, n_rows = table.shape[2], factor.shape[0]
    for block in range(table.shape[0]):
        for b in range(min(width, n_rows - block * width)):
            for k in range(factor.shape[1]):
                table[block, k, b] = factor[block * width + b, k]


@kernel
def from_blocks(factor, table):
    """From (blocks, K, width) to (rows, K), never 0."""
    width, n_rows = table.shape[2], factor.shape[0]
    for block in range(table.shape[0]):
        for b in range(min(width, n_rows - block * width)):
            for k in range(factor.shape[1]):
                factor[block * width + b, k] = max(table[block, k, b], TINY)


@kernel
def move_side(side, other, tuning, workspace, key):
    """One trajectory for every row in ``workspace.rows``; returns the mean acceptance probability."""
    stride = Stride(tuning.scale, tuning.root, tuning.step, tuning.length)
    for block in range(workspace.rows.values.shape[0]):
        move_rows(side.data, other, workspace.rows, stride, workspace.block, block, fold(key, block))
    return mean_chance(workspace.rows.chance, side.n_rows)


@kernel
def mean_chance(chance, n_rows):
    """The mean over the rows that are not idle."""
    total, chances = 0.0, flat(chance)
    for i in range(n_rows):
        total += chances[i]
    return total / n_rows


@kernel
def measure_side(side, other, tuning, workspace):
    """Take note of the curvature where the rows are."""
    stride = Stride(tuning.scale, tuning.root, tuning.step, tuning.length)
    for block in range(workspace.rows.values.shape[0]):
        plain = workspace.block.momentum
        plain[:] = 0.0
        if tuning.curvature.size > 0:
            sums = tuning.curvature[block], plain
            measure_rows(side.data, other, workspace.rows, stride, workspace.block, block, sums)
        else:
            gradient_of_counts(
                side.data, other, block, workspace.rows.values[block], workspace.block.means, workspace.block.gradient
            )
            add_plain_curvature(side.data, other, block, workspace.block.means, plain)
        _add_widths(tuning.width[block], plain, side.prior_rate[block], workspace.rows, block)
    _forget_idle(tuning, side.n_rows)


@kernel
def _forget_idle(tuning, n_rows):
    """The last block is filled up with rows that are nobody's: where they have wandered must not be in the state."""
    blocks, rank, width = tuning.width.shape
    for b in range(n_rows - (blocks - 1) * width, width):
        for k in range(rank):
            tuning.width[blocks - 1, k, b] = 0.0
            if tuning.curvature.size > 0:
                for j in range(rank):
                    tuning.curvature[blocks - 1, k, j, b] = 0.0


@kernel
def _add_widths(out, curvature, prior_rate, rows, block):
    """Add 1 / sqrt of the curvature and the prior's at its mean; of the whole conditional's where both are 0.

    Where a few counts hold a mean near 0, the curvature x / mean^2 has no variance, but 1 / sqrt of it is bounded.
    """
    shape, rate = rows.shape[block], rows.rate[block]
    for k in range(out.shape[0]):
        for b in range(out.shape[1]):
            total = curvature[k, b] + prior_rate[k, b] ** 2 / shape[k, b]
            out[k, b] += 1.0 / math.sqrt(total if total > 0.0 else rate[k, b] ** 2 / shape[k, b])


@kernel
def end_sweep(tuning, sides, workspaces, is_tuning):
    """Count the sweep, and in the warm-up adapt; ``sides`` and ``workspaces`` are those of W and H."""
    pace = tuning.pace
    if is_tuning and _is_measured(pace):
        pace[SEEN] += 1.0
    pace[SWEEPS] += 1.0
    if not is_tuning:
        return
    if pace[IS_READY] > 0.0:
        _end_burst(tuning, sides, workspaces)
    if pace[SWEEPS] == pace[WINDOW]:
        _end_window(tuning.W, sides[0].n_rows, pace)
        _end_window(tuning.H, sides[1].n_rows, pace)
        pace[WINDOW] *= 2.0
        pace[INDEX] += 1.0
        pace[SEEN], pace[CHANGES], pace[IN_BURST], pace[IS_READY] = 0.0, 0.0, 0.0, 1.0


@kernel
def _bound_steps(tuning):
    """No row goes further than the path."""
    longest, steps = _path(tuning) / tuning.length[0], flat(tuning.step)
    for i in range(steps.size):
        steps[i] = min(steps[i], longest)


@kernel
def _path(tuning):
    return PATH if tuning.root.shape[1] > 0 else PLAIN_PATH


@kernel
def _end_burst(tuning, sides, workspaces):
    pace = tuning.pace
    _add(tuning.W.chance, workspaces[0].rows.chance)
    _add(tuning.H.chance, workspaces[1].rows.chance)
    pace[IN_BURST] += 1.0
    if pace[IN_BURST] == BURST:
        pace[CHANGES] += 1.0
        gain = max(GAIN / math.sqrt(pace[CHANGES]), LEAST_GAIN)
        _adapt_steps(tuning.W, sides[0].n_rows, gain)
        _adapt_steps(tuning.H, sides[1].n_rows, gain)
        pace[IN_BURST] = 0.0


@kernel
def _add(out, more):
    for i in range(out.size):
        flat(out)[i] += flat(more)[i]


@kernel
def _adapt_steps(tuning, n_rows, gain):
    """Every row's step by its acceptance in the burst, and a length that suits three rows in four."""
    step, chance, path = flat(tuning.step), flat(tuning.chance), _path(tuning)
    for i in range(n_rows):
        step[i] = min(step[i] * math.exp(gain * (chance[i] / BURST - TARGET)), path / SHORTEST)
    copy_row(chance, step[:n_rows])  # the burst's chances are spent
    quarter = smallest(chance[:n_rows], n_rows // 4)
    tuning.length[0] = int(min(max(math.ceil(path / quarter), SHORTEST), LONGEST))
    tuning.chance[:] = 0.0


@kernel
def _end_window(tuning, n_rows, pace):
    """Scales and masses from the window's sums; masses at once where coordinates have no scale."""
    seen, index = pace[SEEN], pace[INDEX]
    rank, (blocks, width) = tuning.scale.shape[1], tuning.step.shape
    first = LAST_SCALE if tuning.scale.size > 0 else 0
    for block in range(blocks):
        for b in range(width):
            if block * width + b >= n_rows:
                continue
            for k in range(rank):
                before = tuning.scale[block, k, b]
                if index <= LAST_SCALE:
                    tuning.scale[block, k, b] = tuning.width[block, k, b] / seen
                if tuning.curvature.size > 0 and index == LAST_SCALE:  # as if measured in the new coordinates
                    _rescale(tuning.curvature[block], k, b, tuning.scale[block, k, b] / before)
            if tuning.curvature.size > 0 and index >= first:
                _set_root(tuning.root[block], tuning.curvature[block], b, seen)
    if index == first:
        tuning.step[:] = FIRST_STEP
    tuning.curvature[:] = 0.0
    tuning.width[:] = 0.0
    tuning.chance[:] = 0.0


@kernel
def _rescale(curvature, k, b, factor):
    for j in range(curvature.shape[0]):
        curvature[max(j, k), min(j, k), b] *= factor
    curvature[k, k, b] *= factor


@kernel
def _set_root(root, curvature, b, seen):
    """Lower triangular root with root root^T = M^-1, M the mean curvature: M = U U^T, root = U^-T."""
    rank = root.shape[0]
    U = np.zeros((rank, rank))
    for j in range(rank - 1, -1, -1):
        for i in range(j, -1, -1):
            total = curvature[j, i, b] / seen
            for k in range(j + 1, rank):
                total -= U[i, k] * U[j, k]
            U[i, j] = math.sqrt(max(total, RIDGE)) if i == j else total / U[j, j]
    for j in range(rank):
        for i in range(j, rank):
            total = 1.0 if i == j else 0.0
            for k in range(j, i):
                total -= U[k, i] * root[k, j, b]
            root[i, j, b] = total / U[i, i]

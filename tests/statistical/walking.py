"""Trajectories for the statistical tests: steps of theirs alone, with given tuning, towards what may be wrong."""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.counts.sweeps import blocks_of, make_workspace
from nmf_zoo.kernels.counts.sweeps import run_hmc
from nmf_zoo.kernels.hmc import adaptation
from nmf_zoo.kernels.random.keyed_rng import child

SCALE, STEP, LENGTH = 0.8, 0.7, 4


def refresh(problem):
    """Bring new counts of the layout into the grids, for simulators that exchange the data in place."""
    layout, x = problem.layout, np.zeros(problem.structure.shape)
    major = np.repeat(np.arange(len(layout.indptr) - 1), np.diff(layout.indptr))
    x[layout.sides(major, layout.indices)] = layout.values
    for side, table in zip(problem.sweeps.sides, (x, x.T), strict=True):
        side.data.grid[:] = blocks_of(table, side.data.grid.shape[2], 0.0)


def settle(state, scale=SCALE, step=STEP):
    """Give the tuning these numbers, as if the warm-up had found and frozen them."""
    state.tuning.pace[[adaptation.IS_READY, adaptation.IS_FROZEN]] = 1.0
    for side in (state.tuning.W, state.tuning.H):
        side.scale[:], side.step[:], side.length[:] = scale, step, LENGTH


def walk_alone(wrong=lambda sweeps: sweeps, **options):
    """A step that is one trajectory for each row of both factors; ``wrong`` may plant an error in what it reads.

    For one problem, whose workspace it keeps.
    """
    workspace = None

    def step(problem, state, key):
        nonlocal workspace
        refresh(problem)
        settle(state, **options)
        sweeps, factors = wrong(problem.sweeps), gibbs._factors(state)
        what = adaptation.begin_sweep(state.tuning, False, gibbs.ORBIT_EVERY)
        workspace = workspace or make_workspace(sweeps, factors)
        run_hmc(sweeps, factors, state.tuning, workspace, what, child(key, gibbs.TRAJECTORIES))
        return state, None

    return step


def allocate_and_walk(problem, state, key):
    """Plain Gibbs and trajectories in each step."""
    gibbs._draw_by_sources(problem, state, key)
    return walk_alone()(problem, state, key)

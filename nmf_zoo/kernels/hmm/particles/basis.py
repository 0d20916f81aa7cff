"""Particles of binary chains: a component is off or on, and stays so with probability p or q."""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.rows import add_chance, add_gathered, add_row, gather, mean_of
from nmf_zoo.kernels.random.keyed_rng import fold, uniform


@in_lanes
def draw_first(new, law, key):
    """Overwrite the cloud with draws of the first time."""
    for k in range(new.h.shape[0]):
        stream, chance = fold(key, k), law.initial[0, k]
        for i in range(new.h.shape[1]):
            on = 1.0 if uniform(stream, np.uint64(i)) < chance else 0.0
            new.h[k, i], new.aux[k, i] = on, on


@kernel
def move(new, old, ancestors, law, key):
    """Overwrite particle i of ``new`` with a draw of the step from particle ancestors[i] of ``old``."""
    for k in range(new.h.shape[0]):
        gather(new.h[k], old.h[k], ancestors)
        move_row(new.h[k], new.aux[k], law.parameters[0, k], law.parameters[1, k], fold(key, k))


@in_lanes
def move_row(h, aux, p, q, key):
    """A step of one component, in place."""
    for i in range(h.size):
        chance = q if h[i] > 0.5 else 1.0 - p
        on = 1.0 if uniform(key, np.uint64(i)) < chance else 0.0
        h[i], aux[i] = on, on


@kernel
def log_step(law, new, i, old, j):
    """log P of the step from particle j of ``old`` to particle i of ``new``."""
    total = 0.0
    for k in range(new.h.shape[0]):
        stay = law.parameters[1, k] if old.h[k, j] > 0.5 else law.parameters[0, k]
        total += math.log(stay if new.h[k, i] == old.h[k, j] else 1.0 - stay)
    return total


@kernel
def log_first(law, new, i):
    """log P of particle i at the first time."""
    total = 0.0
    for k in range(new.h.shape[0]):
        on = law.initial[0, k]
        total += math.log(on if new.h[k, i] > 0.5 else 1.0 - on)
    return total


# -- what smoothing sums ---------------------------------------------------------------------------------------------

N_PAIRS, N_FIRSTS = 4, 1  # of a step: 0 -> 0, 0 -> 1, 1 -> 0, 1 -> 1; of the first time: h


@kernel
def add_first(rows, cloud, k, gain):
    """Add component k's statistics of the first time to rows (1, N)."""
    add_row(rows[0], cloud.h[k], gain)


@kernel
def add_step(rows, new, old, k, origins, share, workspace):
    """Which of its four steps, to rows (4, N), the mean over the particles origins[:, i] (M, N) that i may come from.

    (Rows one by one, here and in the other laws: such loops run in SIMD lanes.)
    """
    was, now = workspace[0], new.h[k]
    was[:] = 0.0
    for m in range(origins.shape[0]):
        add_gathered(was, old.h[k], origins[m], 1.0 / origins.shape[0])
    add_chance(rows[0], was, now, share, (1.0, -1.0), (1.0, -1.0))
    add_chance(rows[1], was, now, share, (1.0, -1.0), (0.0, 1.0))
    add_chance(rows[2], was, now, share, (0.0, 1.0), (1.0, -1.0))
    add_chance(rows[3], was, now, share, (0.0, 1.0), (0.0, 1.0))


@kernel
def expect_step(column, new, i, old, k, shares, gain):
    """The same to column (4,) of particle i of ``new``, which comes from those of ``old`` by their shares (N,)."""
    was, now = mean_of(old.h[k], shares), new.h[k, i]
    column[0] += gain * (1.0 - was) * (1.0 - now)
    column[1] += gain * (1.0 - was) * now
    column[2] += gain * was * (1.0 - now)
    column[3] += gain * was * now


# -- densities of many steps -----------------------------------------------------------------------------------------


@kernel
def prepare_steps(ready, old, k, law):
    """Overwrite ready (2, N) with what steps of component k from the particles of ``old`` need."""
    p, q = law.parameters[0, k], law.parameters[1, k]
    logs = math.log(p), math.log(1.0 - p), math.log(1.0 - q), math.log(q)
    prepare_switches(ready[0], ready[1], old.h[k], logs)


@in_lanes
def prepare_switches(to_off, to_on, old, logs):
    """``logs``: of the probabilities of 0 -> 0, 0 -> 1, 1 -> 0, 1 -> 1."""
    for j in range(old.size):
        to_off[j] = logs[2] if old[j] > 0.5 else logs[0]
        to_on[j] = logs[3] if old[j] > 0.5 else logs[1]


@kernel
def add_steps_to(out, ready, new, i, old, k, law):
    """out += log f of the steps from all particles of ``old`` to particle i of ``new``."""
    add_log(out, ready[1] if new.h[k, i] > 0.5 else ready[0])


@in_lanes
def add_log(out, row):
    """out += row"""
    for j in range(out.size):
        out[j] += row[j]


@kernel
def add_steps_between(out, ready, new, old, k, origins, law):
    """out += log f of the steps from particle origins[i] of ``old`` to particle i of ``new``."""
    add_switch_from(out, ready[0], ready[1], new.h[k], origins)


@in_lanes
def add_switch_from(out, to_off, to_on, new, origins):
    """out += the log probability of the switch, of binary particles."""
    for i in range(out.size):
        j = origins[i]
        off, on = to_off[j], to_on[j]
        out[i] += on if new[i] > 0.5 else off

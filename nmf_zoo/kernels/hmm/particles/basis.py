"""Particles of binary chains: a component is off or on, and stays so with probability p or q."""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.rows import gather
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

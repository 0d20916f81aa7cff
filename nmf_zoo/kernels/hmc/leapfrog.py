"""Hamiltonian trajectories of rows of a factor, one in each SIMD lane: whatever the rows' density is.

The mass of a row is the inverse of root root^T, a K x K matrix, fixed: a trajectory is

    p += step/2 root^T gradient;  u += step root p;  p += step/2 root^T gradient

``length`` times, with p standard normal and the step jittered by up to 30%, so that no path length resonates. A path
between a quarter and half a turn over-relaxes, which speeds up alternating between the factors (Adler 1981). A density
is a class of targets, and a kernel in `SLOPES` that overwrites values and gradient at the coordinates u.

Duane et al. (1987); Neal (2011), MCMC using Hamiltonian dynamics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, in_lanes, kernel
from nmf_zoo.kernels.numerics.arrays import flat
from nmf_zoo.kernels.numerics.special import fast_exp
from nmf_zoo.kernels.random.draws import normal_from
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

MOMENTUM, JITTER, TEST = range(3)  # children of a block's stream
SHORTEST, LONGEST = 0.7, 1.3  # step of a trajectory, of the row's own
ZERO = np.uint64(0)

SLOPES: dict[type, Callable[[Any, Any], None]] = {}  # by the class of target


@chosen_by("target", SLOPES)
def set_slope(target, workspace):
    """Overwrite ``workspace.v`` and ``workspace.gradient`` (K, width) with values and gradient at ``workspace.u``."""


@kernel
def set_off(workspace, step, key):
    """Momenta and jittered steps, and no gain yet."""
    workspace.gain[:] = 0.0
    draw_momenta(flat(workspace.momentum), fold(key, MOMENTUM))
    jitter_steps(workspace.step, step, fold(key, JITTER))


@kernel
def leap(target, workspace, root, length):
    """``length`` leapfrog steps of all rows, from where ``workspace`` has their coordinates, momenta and gradient."""
    kick(workspace.momentum, root, workspace.gradient, workspace.step, 0.5)
    for number in range(1, length + 1):
        drift(workspace.u, root, workspace.momentum, workspace.step)
        set_slope(target, workspace)
        kick(workspace.momentum, root, workspace.gradient, workspace.step, 1.0 if number < length else 0.5)


@kernel
def draw_momenta(out, key):
    """Overwrite a one-dimensional out with standard normals, words of the key one after the other."""
    word = ZERO
    for i in range(out.size):
        out[i], word = normal_from(key, word)


@in_lanes
def jitter_steps(out, step, key):
    for b in range(step.size):
        out[b] = step[b] * (SHORTEST + (LONGEST - SHORTEST) * uniform(key, b))


@in_lanes
def kick(momentum, root, gradient, step, part):
    """momentum += part * step root^T gradient"""
    rank, width = momentum.shape
    if root.shape[1] == 0:
        for k in range(rank):
            for b in range(width):
                momentum[k, b] += part * step[b] * gradient[k, b]
    for k in range(root.shape[1]):
        for j in range(k, rank):
            for b in range(width):
                momentum[k, b] += part * step[b] * root[j, k, b] * gradient[j, b]


@in_lanes
def drift(u, root, momentum, step):
    """u += step root momentum"""
    rank, width = momentum.shape
    if root.shape[1] == 0:
        for k in range(rank):
            for b in range(width):
                u[k, b] += step[b] * momentum[k, b]
    for k in range(root.shape[1]):
        for j in range(k + 1):
            for b in range(width):
                u[k, b] += step[b] * root[k, j, b] * momentum[j, b]


@in_lanes
def decide(values, v, gain, chance, key):
    """Metropolis: rows whose test fails stay where they are. A gain that is no number fails."""
    for b in range(gain.size):
        chance[b] = fast_exp(min(gain[b], 0.0)) if gain[b] == gain[b] else 0.0
        gain[b] = chance[b] - uniform(key, b)
    for k in range(values.shape[0]):
        for b in range(gain.size):
            values[k, b] = v[k, b] if gain[b] > 0.0 else values[k, b]

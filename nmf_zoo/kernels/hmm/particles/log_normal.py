"""Particles of chains whose logarithm is an autoregression of order one. Densities are those of log h."""

from __future__ import annotations

import math

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.particles.rows import draw_normals, gather
from nmf_zoo.kernels.numerics.special import fast_exp
from nmf_zoo.kernels.random.keyed_rng import fold

HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


@kernel
def draw_first(new, law, key):
    """Overwrite the cloud with draws of the first time."""
    for k in range(new.h.shape[0]):
        draw_normals(new.h[k], fold(key, k))
        new.aux[k] = law.initial[0, k]
        move_row(new.aux[k], new.h[k], 0.0, 1.0, law.initial[1, k])
    set_activations(new)


@kernel
def move(new, old, ancestors, law, key):
    """Overwrite particle i of ``new`` with a draw of the step from particle ancestors[i] of ``old``."""
    for k in range(new.h.shape[0]):
        mean, persistence, scale = law.parameters[0, k], law.parameters[1, k], law.parameters[2, k]
        draw_normals(new.h[k], fold(key, k))
        gather(new.aux[k], old.aux[k], ancestors)
        move_row(new.aux[k], new.h[k], mean - persistence * mean, persistence, scale)
    set_activations(new)


@in_lanes
def move_row(z, normals, back, persistence, scale):
    """A step of the logarithms of one component, in place."""
    for i in range(z.size):
        z[i] = back + persistence * z[i] + scale * normals[i]


@in_lanes
def set_activations(cloud):
    """h = e^(log h), which stays within e^+-700."""
    for k in range(cloud.h.shape[0]):
        for i in range(cloud.h.shape[1]):
            cloud.h[k, i] = fast_exp(cloud.aux[k, i])


@kernel
def log_step(law, new, i, old, j):
    """Log-density of log h in the step from particle j of ``old`` to particle i of ``new``."""
    total = 0.0
    for k in range(new.h.shape[0]):
        mean, persistence, scale = law.parameters[0, k], law.parameters[1, k], law.parameters[2, k]
        z = (new.aux[k, i] - mean - persistence * (old.aux[k, j] - mean)) / scale
        total -= 0.5 * z * z + math.log(scale) + HALF_LOG_2_PI
    return total


@kernel
def log_first(law, new, i):
    """Log-density of log h of particle i at the first time."""
    total = 0.0
    for k in range(new.h.shape[0]):
        z = (new.aux[k, i] - law.initial[0, k]) / law.initial[1, k]
        total -= 0.5 * z * z + math.log(law.initial[1, k]) + HALF_LOG_2_PI
    return total

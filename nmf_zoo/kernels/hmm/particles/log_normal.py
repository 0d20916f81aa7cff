"""Particles of chains whose logarithm is an autoregression of order one. Densities are those of log h."""

from __future__ import annotations

import math

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.particles.rows import add_gathered, add_product, add_row, draw_normals, gather
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


# -- what smoothing sums ---------------------------------------------------------------------------------------------

# Of a step, with z = log h_{t-1} and z' = log h_t: z, z', z z, z z', z' z'. Of the first time: z and z z.
N_PAIRS, N_FIRSTS = 5, 2


@kernel
def add_first(rows, cloud, k, gain):
    """Add component k's statistics of the first time to rows (2, N)."""
    add_row(rows[0], cloud.aux[k], gain)
    add_product(rows[1], cloud.aux[k], cloud.aux[k], gain)


@kernel
def add_step(rows, new, old, k, origins, share, workspace):
    """First and second moments, to rows (5, N): the mean over the particles origins[:, i] that i may come from."""
    z, square, now = workspace[0], workspace[1], new.aux[k]
    z[:], square[:] = 0.0, 0.0
    for m in range(origins.shape[0]):
        add_gathered(z, old.aux[k], origins[m], 1.0 / origins.shape[0])
        add_gathered_square(square, old.aux[k], origins[m], 1.0 / origins.shape[0])
    add_row(rows[0], z, share)
    add_row(rows[1], now, share)
    add_row(rows[2], square, share)
    add_product(rows[3], z, now, share)
    add_product(rows[4], now, now, share)


@in_lanes
def add_gathered_square(out, row, origins, scale):
    """out_i += scale * row[origins_i]^2"""
    for i in range(out.size):
        z = row[origins[i]]
        out[i] += scale * z * z


@kernel
def expect_step(column, new, i, old, k, shares, gain):
    """The same to column (5,) of particle i of ``new``, which comes from those of ``old`` by their shares (N,)."""
    first, second = two_moments(old.aux[k], shares)
    column[0] += gain * first
    column[1] += gain * new.aux[k, i]
    column[2] += gain * second
    column[3] += gain * first * new.aux[k, i]
    column[4] += gain * new.aux[k, i] * new.aux[k, i]


@summing
def two_moments(z, shares):
    """(sum_j shares_j z_j, sum_j shares_j z_j^2)"""
    first, second = 0.0, 0.0
    for j in range(shares.size):
        first += shares[j] * z[j]
        second += shares[j] * z[j] * z[j]
    return first, second


# -- densities of many steps -----------------------------------------------------------------------------------------


@kernel
def prepare_steps(ready, old, k, law):
    """Overwrite ready (2, N) with what steps of component k from the particles of ``old`` need."""
    prepare_means(ready[0], old.aux[k], law.parameters[0, k], law.parameters[1, k], law.parameters[2, k])


@in_lanes
def prepare_means(out, old, mean, persistence, scale):
    """The mean of the next logarithm, in units of the scale."""
    for j in range(old.size):
        out[j] = (mean + persistence * (old[j] - mean)) / scale


@kernel
def add_steps_to(out, ready, new, i, old, k, law):
    """out += log f of the steps from all particles of ``old`` to particle i of ``new``, but for a constant."""
    add_square(out, ready[0], new.aux[k, i] / law.parameters[2, k])


@in_lanes
def add_square(out, means, z):
    """out -= (z - mean)^2 / 2"""
    for j in range(out.size):
        away = z - means[j]
        out[j] -= 0.5 * away * away


@kernel
def add_steps_between(out, ready, new, old, k, origins, law):
    """out += log f of the steps from particle origins[i] of ``old`` to particle i of ``new``, but for a constant."""
    add_square_from(out, ready[0], new.aux[k], law.parameters[2, k], origins)


@in_lanes
def add_square_from(out, means, new, scale, origins):
    """out -= (z / scale - mean)^2 / 2, of log-normal particles."""
    for i in range(out.size):
        away = new[i] / scale - means[origins[i]]
        out[i] -= 0.5 * away * away

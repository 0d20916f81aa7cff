"""Hamiltonian trajectories of the rows of one factor, each on its own, given the other factor.

Rows are independent given the other factor, so each has a step, a mass and a Metropolis test of its own: the step does
not shrink with the size of the table. A row's coordinates are u, v = scale * softplus(u)
(:mod:`nmf_zoo.kernels.softplus`), its log density there, the Jacobian included, is::

    sum_c x_c log m_c - sum_k (rate_k + 1 / scale_k) v_k + sum_k (shape_k - 1) log v_k + sum_k u_k

where ``rate`` holds the prior's and the likelihood's. The mass is the inverse of root root^T, a K x K matrix for each
row, fixed: a trajectory is

    p += step/2 root^T gradient;  u += step root p;  p += step/2 root^T gradient

``length`` times, with p standard normal and the step jittered by up to 30%, so that no path length resonates. A path
between a quarter and half a turn over-relaxes, which speeds up alternating between the factors (Adler 1981).

Duane et al. (1987); Neal (2011), MCMC using Hamiltonian dynamics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nmf_zoo.kernels.draws import normal_from
from nmf_zoo.kernels.row_counts import add_curvature, add_log_ratios, add_plain_curvature, pull, pull_into, table_of
from nmf_zoo.kernels.softplus import fast_exp, to_free, to_plain
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import fold, kernel, uniform

MOMENTUM, JITTER, TEST = range(3)  # children of a block's stream
SHORTEST, LONGEST = 0.7, 1.3  # step of a trajectory, of the row's own
ZERO = np.uint64(0)
in_lanes = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})


class Rows(NamedTuple):
    """A factor's rows and their gamma conditionals less the counts: (blocks, K, width) each, and ``chance``.

    Attributes
    ----------
    values, shape, rate : positive; the rate is the prior's plus the likelihood's
    chance : (blocks, width) acceptance probability of the last trajectory
    """

    values: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    chance: np.ndarray


class Stride(NamedTuple):
    """How rows move: adapted in warm-up, then fixed.

    Attributes
    ----------
    scale : (blocks, K, width) of the coordinates
    root : (blocks, K, K, width) lower triangular, root root^T the inverse mass; size 0: identity
    step : (blocks, width)
    length : (1,) leapfrog steps
    """

    scale: np.ndarray
    root: np.ndarray
    step: np.ndarray
    length: np.ndarray


class Room(NamedTuple):
    """Room for one block, overwritten.

    Attributes
    ----------
    means, before : (cells,) at the end and at the start
    u, v, slope : (K, width) coordinates, values and dv / du
    momentum, gradient : (K, width) of the trajectory
    gain : (width,) log density less kinetic energy, end less start
    step : (width,) jittered
    """

    means: np.ndarray
    before: np.ndarray
    u: np.ndarray
    v: np.ndarray
    slope: np.ndarray
    momentum: np.ndarray
    gradient: np.ndarray
    gain: np.ndarray
    step: np.ndarray


def make_room(most_cells: int, rank: int, width: int) -> Room:
    """Room for blocks of up to ``most_cells`` cells (a grid's, padding included, or non-zeros)."""
    tables = (np.empty((rank, width)) for _ in range(5))
    return Room(np.empty(most_cells), np.empty(most_cells), *tables, np.empty(width), np.empty(width))


@kernel
def move_rows(data, other, rows, stride, room, block, key):
    """One trajectory for each row of a block, in place; ``other`` (cells, K) is the other factor."""
    values, shape, rate, scale = rows.values[block], rows.shape[block], rows.rate[block], stride.scale[block]
    root = stride.root[block] if stride.root.size > 0 else stride.root[0]
    u, v, slope, gradient, momentum, step = room.u, room.v, room.slope, room.gradient, room.momentum, room.step
    before, means = table_of(data, block, step.size, room.before), table_of(data, block, step.size, room.means)
    _set_off(room, values, scale, stride.step[block], key)
    pull_into(data, other, block, v, before, gradient)
    _add_prior(gradient, v, slope, scale, shape, rate)
    _subtract_energy(room.gain, -1.0, u, v, momentum)
    _add_log_prior(room.gain, -1.0, v, scale, shape, rate)
    kick(momentum, root, gradient, step, 0.5)
    for leap in range(1, stride.length[0] + 1):
        drift(u, root, momentum, step)
        to_plain(v, slope, u, scale)
        pull_into(data, other, block, v, means, gradient)
        _add_prior(gradient, v, slope, scale, shape, rate)
        kick(momentum, root, gradient, step, 1.0 if leap < stride.length[0] else 0.5)
    _subtract_energy(room.gain, 1.0, u, v, momentum)
    _add_log_prior(room.gain, 1.0, v, scale, shape, rate)
    add_log_ratios(data, block, room.means, room.before, room.gain)
    decide(values, v, room.gain, rows.chance[block], fold(key, TEST))


@kernel
def draw_momenta(out, key):
    """Overwrite a one-dimensional out with standard normals, words of the key one after the other."""
    word = ZERO
    for i in range(out.size):
        out[i], word = normal_from(key, word)


@kernel
def _set_off(room, values, scale, step, key):
    """Coordinates, slopes, momenta and jittered steps at the start."""
    room.v[:] = values
    to_free(room.u, room.slope, room.v, scale)
    room.gain[:] = 0.0
    draw_momenta(room.momentum.ravel(), fold(key, MOMENTUM))
    jitter_steps(room.step, step, fold(key, JITTER))


# -- elementwise work in SIMD lanes ----------------------------------------------------------------------------------


@in_lanes
def jitter_steps(out, step, key):
    for b in range(step.size):
        out[b] = step[b] * (SHORTEST + (LONGEST - SHORTEST) * uniform(key, b))


@in_lanes
def _add_prior(gradient, v, slope, scale, shape, rate):
    """From the counts' pull to the gradient in u."""
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            inner = gradient[k, b] - rate[k, b] - 1.0 / scale[k, b] + (shape[k, b] - 1.0) / v[k, b]
            gradient[k, b] = slope[k, b] * inner + 1.0


@in_lanes
def _subtract_energy(gain, sign, u, v, momentum):
    """Add sign * (u - kinetic energy) of every row."""
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            gain[b] += sign * (u[k, b] - 0.5 * momentum[k, b] * momentum[k, b])


@in_lanes
def _add_log_prior(gain, sign, v, scale, shape, rate):
    """Add sign * the part of the log density that depends on v but not on the counts."""
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            bend = (shape[k, b] - 1.0) * fast_log(v[k, b])
            gain[b] += sign * (bend - (rate[k, b] + 1.0 / scale[k, b]) * v[k, b])


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


@in_lanes
def _add_bend(out, room, scale, shape, rate):
    """Add to the diagonals what the prior and the bend of the coordinates, v'' = v' (1 - v' / scale), contribute."""
    for k in range(scale.shape[0]):
        for b in range(scale.shape[1]):
            slope, relative = room.slope[k, b], room.slope[k, b] / room.v[k, b]
            bend = 1.0 - slope / scale[k, b]
            linear = slope * (rate[k, b] + 1.0 / scale[k, b] - room.gradient[k, b])
            out[k, k, b] += linear * bend + (shape[k, b] - 1.0) * relative * (relative - bend)


@kernel
def measure_rows(data, other, rows, stride, room, block, sums):
    """Add the curvature where the rows are to ``sums``: (K, K, width) in coordinates, or size 0, and (K, width) plain.

    The lower triangle of the first, minus the second derivative of the log density in u, is what the mass of a row
    should be like. The second is the counts' part in v.
    """
    in_coordinates, plain = sums
    room.v[:] = rows.values[block]
    to_free(room.u, room.slope, room.v, stride.scale[block])
    pull(data, other, block, room.v, room.means, room.gradient)
    if in_coordinates.size > 0:
        add_curvature(data, other, block, room.means, room.slope, in_coordinates)
        _add_bend(in_coordinates, room, stride.scale[block], rows.shape[block], rows.rate[block])
    add_plain_curvature(data, other, block, room.means, plain)

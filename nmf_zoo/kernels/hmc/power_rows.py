"""Moves of the rows of one factor given the other, where the data are powers: trajectories and exchanges of components.

Given the other factor u, rows v_i are independent, and in the coordinates log v the log density of row i is::

    -sum_c (log l_ci + p_ci / l_ci) - sum_k (shape_ki log v_ki + scale_ki / v_ki)     l_ci = sum_k u_ck v_ki + offset_ci

with an inverse-gamma prior, the Jacobian included; a flat one has shape -1 and scale 0. Its gradient in log v is
v_k sum_c u_ck (p_c / l_c - 1) / l_c - shape_k + scale_k / v_k, and the likelihood's expected curvature there is
v_k v_j sum_c u_ck u_cj / l_c^2: its entries add up to at most the number of cells at any v, whatever the data, so that
coordinates and a mass that are right somewhere are right elsewhere.

Trajectories (:mod:`nmf_zoo.kernels.hmc.leapfrog`) run in these coordinates. They do not cross from one way
of explaining a row to another, as where a loud cell belongs to either of two components. For that two components of a
row exchange what they explain::

    v_k -> v_j g_j / g_k,  v_j -> v_k g_k / g_j        g_k = exp(mean_c log u_ck)

an involution that leaves volumes in log v alone, so that the ratio of densities is its Metropolis test.

A cell that was not observed has no power and an offset of `LOUD`: whatever the row does there cannot be heard.

Blocks of rows, one row in each SIMD lane, are those of :mod:`nmf_zoo.kernels.hmc.poisson_rows`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmc.leapfrog import SLOPES, TEST, decide, leap, set_off
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.numerics.special import fast_exp, fast_log
from nmf_zoo.kernels.powers.composite import LEAST, MOST
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.simd.blocked_gradients import gradient_of_power_grid

LOUD = 1e150  # offset of a missing cell
FARTHEST = math.log(MOST)  # of log v from 0: products of factors stay numbers


class RowPowers(NamedTuple):
    """The data, by row.

    Attributes
    ----------
    grid : (blocks, cells, width) the powers
    offset : the same of the background, and `LOUD` where not observed; size 0 for neither
    """

    grid: np.ndarray
    offset: np.ndarray


class PowerRows(NamedTuple):
    """A factor's rows and their priors: (blocks, K, width) each, and ``chance``.

    Attributes
    ----------
    values, shape, scale : of the inverse gamma
    chance : (blocks, width) acceptance probability of the last trajectory
    """

    values: np.ndarray
    shape: np.ndarray
    scale: np.ndarray
    chance: np.ndarray


class PowerStride(NamedTuple):
    """How rows move: adapted in warm-up, then fixed; as in :class:`nmf_zoo.kernels.hmc.poisson_rows.Stride`."""

    root: np.ndarray
    step: np.ndarray
    length: np.ndarray


class PowerRowWorkspace(NamedTuple):
    """Scratch for one block, overwritten.

    Attributes
    ----------
    inverses : (cells, width) of the means
    u, v, momentum, gradient : (K, width) logarithms, values and those of the trajectory
    now, then : (width,) log-likelihood of the rows and of their proposals
    gain : (width,) log density less kinetic energy, proposal less now
    step : (width,) jittered
    size : (K,) g, see above
    """

    inverses: np.ndarray
    u: np.ndarray
    v: np.ndarray
    momentum: np.ndarray
    gradient: np.ndarray
    now: np.ndarray
    then: np.ndarray
    gain: np.ndarray
    step: np.ndarray
    size: np.ndarray


def make_workspace(n_cells: int, rank: int, width: int) -> PowerRowWorkspace:
    """Scratch for blocks of ``width`` rows."""
    tables, lanes = (np.empty((rank, width)) for _ in range(4)), (np.empty(width) for _ in range(4))
    return PowerRowWorkspace(np.empty((n_cells, width)), *tables, *lanes, np.empty(rank))


class PowersTarget(NamedTuple):
    """What the trajectories of a block of rows follow: the data, and the rows' priors."""

    data: RowPowers
    other: np.ndarray
    block: int
    shape: np.ndarray
    scale: np.ndarray


@kernel
def move_rows(data, other, rows, stride, workspace, block, key):
    """One trajectory for each row of a block, in place; ``other`` (cells, K) is the other factor.

    Leaves the rows' log-likelihood in ``workspace.now``.
    """
    values, power = rows.values[block], data.grid[block]
    target = PowersTarget(data, other, block, rows.shape[block], rows.scale[block])
    root = stride.root[block] if stride.root.size > 0 else stride.root[0]
    copy_table(workspace.v, values)
    _to_logarithms(workspace.u, values)
    set_off(workspace, stride.step[block], key)
    _set_gradient(target, workspace)
    _log_likelihoods(workspace.now, power, workspace.inverses)
    _add_rest(workspace.gain, -1.0, target, workspace)
    leap(target, workspace, root, stride.length[0])
    _log_likelihoods(workspace.then, power, workspace.inverses)
    _add_rest(workspace.gain, 1.0, target, workspace)
    _decide(values, workspace, rows.chance[block], fold(key, TEST))


@kernel
def _slope_of_powers(target, workspace):
    _to_values(workspace.v, workspace.u)
    _set_gradient(target, workspace)


@kernel
def _set_gradient(target, workspace):
    """The gradient in log v."""
    gradient_of_powers(target.data, target.other, target.block, workspace.v, workspace.inverses, workspace.gradient)
    _add_prior(workspace.gradient, workspace.v, target.shape, target.scale)


SLOPES[PowersTarget] = _slope_of_powers


@kernel
def exchange_components(data, other, rows, workspace, block, pairs, key):
    """``pairs`` times two components at random exchange what they explain of each row of a block, in place.

    ``workspace.now`` holds the rows' log-likelihood, and will.
    """
    values, rank = rows.values[block], other.shape[1]
    prior = rows.shape[block], rows.scale[block]
    _typical_sizes(workspace.size, other)
    for number in range(pairs):
        own = fold(key, number)
        k = int(uniform(own, 0) * rank)
        j = (k + 1 + int(uniform(own, 1) * (rank - 1))) % rank
        _exchange(workspace, values, prior, k, j)
        gradient_of_powers(data, other, block, workspace.v, workspace.inverses, workspace.gradient)
        _log_likelihoods(workspace.then, data.grid[block], workspace.inverses)
        _decide(values, workspace, workspace.step, fold(own, TEST))


@kernel
def _decide(values, workspace, chance, key):
    """Metropolis, once ``workspace.gain`` holds all but the likelihoods."""
    _add_difference(workspace.gain, workspace.then, workspace.now)
    decide(values, workspace.v, workspace.gain, chance, key)
    _settle(workspace.now, workspace.then, workspace.gain)


@kernel
def add_curvature(data, other, rows, workspace, block, out):
    """Add to out (K, K, width) the expected curvature in log v where the rows are: its lower triangle."""
    values, scale = rows.values[block], rows.scale[block]
    gradient_of_powers(data, other, block, values, workspace.inverses, workspace.gradient)
    rank = values.shape[0]
    for c in range(workspace.inverses.shape[0]):
        for k in range(rank):
            for j in range(k + 1):
                _add_products(out[k, j], other[c, k] * other[c, j], workspace.inverses[c], values[k], values[j])
    for k in range(rank):
        _add_ratios(out[k, k], scale[k], values[k])


@kernel
def gradient_of_powers(data, other, block, values, inverses, gradient):
    """Overwrite inverses (cells, width), of the means at ``values`` (K, width), and gradient (K, width)."""
    if data.offset.size > 0:
        copy_table(inverses, data.offset[block])
    else:
        inverses[:] = 0.0
    gradient_of_power_grid(other, data.grid[block], values, inverses, gradient)


# -- elementwise work in SIMD lanes ----------------------------------------------------------------------------------


@in_lanes
def _to_logarithms(u, v):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            u[k, b] = fast_log(v[k, b])


@in_lanes
def _to_values(v, u):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            v[k, b] = fast_exp(u[k, b])


@in_lanes
def _add_prior(gradient, v, shape, scale):
    """From the data's part of the gradient in v to the gradient in log v."""
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            gradient[k, b] = v[k, b] * gradient[k, b] - shape[k, b] + scale[k, b] / v[k, b]


@in_lanes
def _add_rest(gain, sign, target, workspace):
    """Add sign * the log density less the kinetic energy and the likelihood; -inf where it is too far away."""
    u, v, momentum, shape, scale = workspace.u, workspace.v, workspace.momentum, target.shape, target.scale
    for k in range(v.shape[0]):
        for b in range(gain.size):
            rest = shape[k, b] * u[k, b] + scale[k, b] / v[k, b] + 0.5 * momentum[k, b] * momentum[k, b]
            gain[b] -= sign * rest if abs(u[k, b]) < FARTHEST else np.inf


@in_lanes
def _log_likelihoods(out, power, inverses):
    """Overwrite out (width,) with -sum_c (log l + p / l); two cells share a logarithm."""
    out[:] = 0.0
    n_cells = power.shape[0]
    for c in range(0, n_cells - 1, 2):
        for b in range(out.size):
            first, second = inverses[c, b], inverses[c + 1, b]
            out[b] += fast_log(first * second) - (power[c, b] * first + power[c + 1, b] * second)
    for c in range(n_cells - n_cells % 2, n_cells):
        for b in range(out.size):
            out[b] += fast_log(inverses[c, b]) - power[c, b] * inverses[c, b]


@in_lanes
def _add_difference(out, x, y):
    for b in range(out.size):
        out[b] += x[b] - y[b]


@in_lanes
def _settle(now, then, gain):
    for b in range(gain.size):
        now[b] = then[b] if gain[b] > 0.0 else now[b]


@in_lanes
def _typical_sizes(size, other):
    size[:] = 0.0
    for c in range(other.shape[0]):
        for k in range(size.size):
            size[k] += fast_log(other[c, k])
    for k in range(size.size):
        size[k] = fast_exp(size[k] / other.shape[0])


@in_lanes
def _exchange(workspace, values, prior, k, j):
    """The proposal, and what it gains by the prior; -inf where it is too far away."""
    shape, scale = prior
    v, gain, ratio = workspace.v, workspace.gain, workspace.size[j] / workspace.size[k]
    copy_table(v, values)
    for b in range(gain.size):
        v[k, b], v[j, b] = values[j, b] * ratio, values[k, b] / ratio
        rise = fast_log(v[k, b] / values[k, b])
        bend = scale[k, b] * (1.0 / v[k, b] - 1.0 / values[k, b]) + scale[j, b] * (1.0 / v[j, b] - 1.0 / values[j, b])
        is_near = max(v[k, b], v[j, b]) < MOST and min(v[k, b], v[j, b]) > LEAST
        gain[b] = (shape[j, b] - shape[k, b]) * rise - bend if is_near else -np.inf


@in_lanes
def _add_products(out, factor, inverse, y, z):
    for b in range(out.size):
        out[b] += factor * (inverse[b] * y[b]) * (inverse[b] * z[b])


@in_lanes
def _add_ratios(out, x, y):
    for b in range(out.size):
        out[b] += x[b] / y[b]

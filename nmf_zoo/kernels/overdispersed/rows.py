"""Rows of negative binomial counts: what the trajectories of :mod:`nmf_zoo.kernels.hmc.poisson_rows` ask of data.

The multipliers of the cells are summed over. Given the other factor u the log-likelihood of row i is::

    sum_c x_ci log m_ci - (x_ci + alpha_ci) log(alpha_ci + e_ci m_ci)     m_ci = sum_k u_ck v_ki + offset_ci

(e = exposure, offset = background / e). Its slope in m is alpha (x - e m) / (m (alpha + e m)), and what curvature is
expected there, alpha e / (m (alpha + e m)), is positive whatever the counts: it stands for the curvature in scales and
masses. A missing cell has x = e = 0, which leaves nothing of the three.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, spliced
from nmf_zoo.kernels.counts.sweeps import run_side
from nmf_zoo.kernels.hmc.mass import CLIMBS
from nmf_zoo.kernels.hmc.poisson_rows import (
    CURVATURES,
    GRADIENTS,
    PLAIN_CURVATURES,
    RATIOS,
    add_product,
    add_scaled,
    table_of,
)
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.numerics.special import artanh_series, fast_log
from nmf_zoo.kernels.random.draws import TINY
from nmf_zoo.kernels.random.keyed_rng import fold

FARTHEST = 1.0 / 9.0  # of s^2, up to which artanh's series has all digits


class DispersedRows(NamedTuple):
    """The data, by row.

    Attributes
    ----------
    grid, offset, layout : as of :class:`nmf_zoo.kernels.hmc.poisson_rows.RowCounts`; there are a grid and an offset,
        and no layout is read
    exposure : as ``grid``, 0 where not observed
    alpha_of_rows, alpha_of_cells : (blocks, width) and (cells,), whose product the inverse dispersion is
    """

    grid: np.ndarray
    offset: np.ndarray
    layout: Any
    exposure: np.ndarray
    alpha_of_rows: np.ndarray
    alpha_of_cells: np.ndarray


@kernel
def run_hmc(sides, factors, rates, tuning, workspaces, what, key):
    """Trajectories of H's rows given W, then of W's given H: mean acceptance of W and H, NaN of what does not move.

    ``factors``: W and Ht; ``rates``: those of their priors, (0, 0) of a factor that is not drawn.
    """
    (W, Ht), (rate_w, rate_h), chance_W, chance_H = factors, rates, np.nan, np.nan
    if rate_h.size > 0:
        chance_H = run_side(sides[1], (Ht, rate_h, W), tuning.H, workspaces[1], what, fold(key, 1))
    if rate_w.size > 0:
        chance_W = run_side(sides[0], (W, rate_w, Ht), tuning.W, workspaces[0], what, fold(key, 0))
    return chance_W, chance_H


@kernel
def _gradient_into(data, other, block, values, table, gradient):
    copy_table(table, data.offset[block])
    gradient[:] = 0.0
    alphas = data.alpha_of_rows[block], data.alpha_of_cells
    _add_gradient(data.grid[block], data.exposure[block], alphas, other, values, table, gradient)


@in_lanes
def _add_gradient(counts, exposure, alphas, other, values, means, gradient):
    """Add other @ values to means, and to gradient what the slopes there make of it."""
    slope = np.empty(counts.shape[1])
    for c in range(counts.shape[0]):
        for k in range(values.shape[0]):
            for b in range(slope.size):
                means[c, b] += other[c, k] * values[k, b]
        for b in range(slope.size):
            mean = max(means[c, b], TINY)
            alpha, expected = alphas[0][b] * alphas[1][c], exposure[c, b] * mean
            means[c, b] = mean
            slope[b] = alpha * (counts[c, b] - expected) / (mean * (alpha + expected))
        for k in range(values.shape[0]):
            for b in range(slope.size):
                gradient[k, b] += other[c, k] * slope[b]


@kernel
def _add_log_ratios(data, block, means, before, out):
    after, start = table_of(data, block, out.size, means), table_of(data, block, out.size, before)
    alphas = data.alpha_of_rows[block], data.alpha_of_cells
    _add_ratios(data.grid[block], data.exposure[block], alphas, after, start, out)


@in_lanes
def _add_ratios(counts, exposure, alphas, means, before, out):
    """The second logarithm's argument is near 1 where alpha is large, and what is beside the 1 must not be lost."""
    for c in range(counts.shape[0]):
        for b in range(out.size):
            alpha, x = alphas[0][b] * alphas[1][c], counts[c, b]
            rise = exposure[c, b] * (means[c, b] - before[c, b]) / (alpha + exposure[c, b] * before[c, b])
            out[b] += x * fast_log(means[c, b] / before[c, b]) - (x + alpha) * log1p(rise)


@spliced
def log1p(z):
    """log(1 + z), z > -1"""
    s = z / (2.0 + z)
    square = s * s
    return fast_log(1.0 + z) if square > FARTHEST else 2.0 * s * artanh_series(min(square, FARTHEST))


@in_lanes
def _expected_curvature(out, exposure, alphas, alpha_of_cell, means):
    for b in range(out.size):
        alpha = alphas[b] * alpha_of_cell
        out[b] = alpha * exposure[b] / (means[b] * (alpha + exposure[b] * means[b]))


@kernel
def _add_curvature(data, other, block, means, slope, out):
    rank, width = slope.shape
    share, sums, table = np.empty(width), np.zeros(out.shape), table_of(data, block, width, means)
    for c in range(table.shape[0]):
        alphas = data.alpha_of_rows[block], data.alpha_of_cells[c]
        _expected_curvature(share, data.exposure[block, c], alphas[0], alphas[1], table[c])
        for k in range(rank):
            for j in range(k + 1):
                add_scaled(sums[k, j], other[c, k] * other[c, j], share)
    for k in range(rank):
        for j in range(k + 1):
            add_product(out[k, j], sums[k, j], slope[k], slope[j])


@kernel
def _add_plain_curvature(data, other, block, means, out):
    rank, width = out.shape
    share, table = np.empty(width), table_of(data, block, width, means)
    for c in range(table.shape[0]):
        alphas = data.alpha_of_rows[block], data.alpha_of_cells[c]
        _expected_curvature(share, data.exposure[block, c], alphas[0], alphas[1], table[c])
        for k in range(rank):
            add_scaled(out[k], other[c, k] * other[c, k], share)


@kernel
def _climb(data, other, block, workspace, shape, rate):
    """v <- (shape + v sum u x / m) / (rate + sum u e g), the multipliers g at their means."""
    weight, width = workspace.momentum, workspace.step.size
    table, alphas = table_of(data, block, width, workspace.means), (data.alpha_of_rows[block], data.alpha_of_cells)
    weight[:] = 0.0
    _add_weights(data.grid[block], data.exposure[block], alphas, other, table, weight)
    _update(workspace.v, workspace.gradient, shape, rate, weight)


@in_lanes
def _add_weights(counts, exposure, alphas, other, means, out):
    multiplier = np.empty(counts.shape[1])
    for c in range(counts.shape[0]):
        for b in range(multiplier.size):
            alpha = alphas[0][b] * alphas[1][c]
            multiplier[b] = exposure[c, b] * (counts[c, b] + alpha) / (alpha + exposure[c, b] * means[c, b])
        for k in range(out.shape[0]):
            for b in range(multiplier.size):
                out[k, b] += other[c, k] * multiplier[b]


@in_lanes
def _update(v, gradient, shape, rate, weight):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            v[k, b] = (shape[k, b] + v[k, b] * (gradient[k, b] + weight[k, b])) / (rate[k, b] + weight[k, b])


CLIMBS[DispersedRows] = _climb
GRADIENTS[DispersedRows] = _gradient_into
RATIOS[DispersedRows] = _add_log_ratios
CURVATURES[DispersedRows] = _add_curvature
PLAIN_CURVATURES[DispersedRows] = _add_plain_curvature

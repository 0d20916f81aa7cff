"""Steps and masses for trajectories of rows that depend on the other factor alone, never on the rows themselves.

A particle's components have an order of their own, so that no mass learnt from other particles fits it. But given the
other factor u, where a row's conditional peaks and how it bends there are functions of u, the counts and the prior. A
trajectory with such a mass leaves the conditional as it is, exactly.

The peak is approached by a few EM steps from equal shares of every count::

    v_k <- (shape_k + v_k sum_c u_ck x_c / m_c) / rate_k                m_c = sum_k u_ck v_k + offset_c

where half-normal priors have the root of curve_k v_k^2 + rate_k v_k = what the bracket holds. Components that are known
stay where they are, and the mass is that of the others.

The scale of v's coordinates is 1 / sqrt(curvature), and the mass is the curvature in these coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from nmf_zoo.kernels.compile import chosen_by, in_lanes, kernel
from nmf_zoo.kernels.hmc.poisson_rows import (
    RowCounts,
    add_curvature,
    add_plain_curvature,
    curve_of,
    gradient_of_counts,
)
from nmf_zoo.kernels.numerics.arrays import copy_row, copy_table
from nmf_zoo.kernels.numerics.special import to_free

EM_STEPS = 4
RIDGE = 0.25  # what the coordinates' own bend holds, at the least

CLIMBS: dict[type, Callable[..., None]] = {}  # by the class of data


@kernel
def set_strides(data, other, rows, stride, workspace, prior_rate):
    """Overwrite scale and root of a stride for all blocks; ``prior_rate`` (blocks, K, width)."""
    for block in range(rows.values.shape[0]):
        shape, rate, curve = rows.shape[block], rows.rate[block], curve_of(rows, block)
        _climb(data, other, rows, block, workspace)
        scale, root = stride.scale[block], stride.root[block]
        scale[:] = 0.0
        add_plain_curvature(data, other, block, workspace.means, scale)
        if curve.size > 0:
            _add(scale, curve)
        _set_scales(scale, shape, prior_rate[block], rate)
        to_free(workspace.u, workspace.slope, workspace.v, scale)
        root[:] = 0.0
        add_curvature(data, other, block, workspace.means, workspace.slope, root)
        _add_prior_curvature(root, workspace.slope, workspace.v, shape)
        if curve.size > 0:
            _add_curve(root, workspace.slope, curve)
        _part_known(root, rows.free)
        _factor(root)
        _invert(root)
        _hold_known(root, rows.free)


@kernel
def _climb(data, other, rows, block, workspace):
    """workspace.v and workspace.means: near the peak of the rows' conditionals, by EM."""
    v, shape, rate, curve = workspace.v, rows.shape[block], rows.rate[block], curve_of(rows, block)
    copy_table(v, shape)
    _solve(v, rate, curve)
    _keep_known(v, rows, block)
    for _ in range(EM_STEPS):
        gradient_of_counts(data, other, block, v, workspace.means, workspace.gradient)
        if curve.size > 0:
            _gather(v, workspace.gradient, shape)
            _solve(v, rate, curve)
        else:
            climb(data, other, block, workspace, shape, rate)
        _keep_known(v, rows, block)
    gradient_of_counts(data, other, block, v, workspace.means, workspace.gradient)


@chosen_by("data", CLIMBS)
def climb(data, other, block, workspace, shape, rate):
    """An EM step of workspace.v under gamma priors, from the gradient and means there."""


@kernel
def _climb_counts(data, other, block, workspace, shape, rate):
    _update(workspace.v, workspace.gradient, shape, rate)


CLIMBS[RowCounts] = _climb_counts


@kernel
def _solve(v, rate, curve):
    """From what the bracket holds to v, in place."""
    if curve.size > 0:
        _root(v, rate, curve)
    else:
        _divide(v, rate)


@kernel
def _keep_known(v, rows, block):
    for k in range(v.shape[0]):
        if not rows.free[k]:
            copy_row(v[k], rows.values[block, k])


@kernel
def _part_known(mass, free):
    """Known components and the others have nothing to do with each other."""
    for k in range(free.size):
        for j in range(k + 1):
            if not (free[k] and free[j]):
                mass[k, j] = 1.0 if j == k else 0.0


@kernel
def _hold_known(root, free):
    """Known components are infinitely heavy."""
    for k in range(free.size):
        if not free[k]:
            root[k, k] = 0.0


# -- elementwise work in SIMD lanes ----------------------------------------------------------------------------------


@in_lanes
def _divide(v, rate):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            v[k, b] /= rate[k, b]


@in_lanes
def _update(v, gradient, shape, rate):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            v[k, b] = (shape[k, b] + v[k, b] * gradient[k, b]) / rate[k, b]


@in_lanes
def _gather(v, gradient, shape):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            v[k, b] = shape[k, b] + v[k, b] * gradient[k, b]


@in_lanes
def _root(v, rate, curve):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            v[k, b] = 2.0 * v[k, b] / (rate[k, b] + math.sqrt(rate[k, b] * rate[k, b] + 4.0 * curve[k, b] * v[k, b]))


@in_lanes
def _add(out, curve):
    for k in range(out.shape[0]):
        for b in range(out.shape[1]):
            out[k, b] += curve[k, b]


@in_lanes
def _add_curve(mass, slope, curve):
    for k in range(slope.shape[0]):
        for b in range(slope.shape[1]):
            mass[k, k, b] += slope[k, b] * slope[k, b] * curve[k, b]


@in_lanes
def _set_scales(curvature, shape, prior_rate, rate):
    """1 / sqrt of the curvature and the prior's at its mean; the whole conditional's where both are 0."""
    for k in range(shape.shape[0]):
        for b in range(shape.shape[1]):
            total = curvature[k, b] + prior_rate[k, b] * prior_rate[k, b] / shape[k, b]
            total = total if total > 0.0 else rate[k, b] * rate[k, b] / shape[k, b]
            curvature[k, b] = 1.0 / math.sqrt(total)


@in_lanes
def _add_prior_curvature(mass, slope, v, shape):
    for k in range(v.shape[0]):
        for b in range(v.shape[1]):
            relative = slope[k, b] / v[k, b]
            mass[k, k, b] += max(shape[k, b] - 1.0, 0.0) * relative * relative + RIDGE


@in_lanes
def _factor(mass):
    """Overwrite the lower triangle of masses M (K, K, width) with L, lower triangular, M = L^T L."""
    rank, width = mass.shape[0], mass.shape[2]
    for j in range(rank - 1, -1, -1):
        for b in range(width):
            mass[j, j, b] = math.sqrt(max(mass[j, j, b], RIDGE))
        for i in range(j):
            for b in range(width):
                mass[j, i, b] /= mass[j, j, b]
        for i in range(j):
            for k in range(i + 1):
                for b in range(width):
                    mass[i, k, b] -= mass[j, i, b] * mass[j, k, b]


@in_lanes
def _invert(lower):
    """Overwrite lower triangular L (K, K, width) with its inverse, the root."""
    rank, width = lower.shape[0], lower.shape[2]
    for j in range(rank):
        for b in range(width):
            lower[j, j, b] = 1.0 / lower[j, j, b]
    for j in range(rank - 1, -1, -1):
        for i in range(rank - 1, j, -1):
            for b in range(width):  # (L^-1)_ij = -sum_{j < k <= i} (L^-1)_ik L_kj / L_jj
                total = 0.0
                for k in range(j + 1, i + 1):
                    total -= lower[i, k, b] * lower[k, j, b]
                lower[i, j, b] = total * lower[j, j, b]

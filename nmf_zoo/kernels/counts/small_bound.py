"""Variational Bayes on a small dense table, many iterations in one call: a small problem pays no Python per iteration.

The iteration is that of :mod:`nmf_zoo.inference.counts.vb` (sources shared out once, momentum), for gamma priors of
known hyperparameters; a test holds the two together. Sums run in another order, so that numbers agree to rounding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.numerics.momentum import BOUND_GROWTH, FASTEST, GROWTH, LARGEST_RATIO, SHRINK
from nmf_zoo.kernels.numerics.multiplicative import largest_change
from nmf_zoo.kernels.numerics.special import digamma_and_log_gamma, fast_log

LARGEST_LOG = math.log(LARGEST_RATIO)
FLOOR, SMALLEST_MEAN, SMALLEST_CELL = 1e-300, 1e-200, 1e-300
BOUND, PUSH, PUSH_BOUND, RESIDUAL, BEGUN = range(5)  # places in a climb's numbers


class DenseTable(NamedTuple):
    """The data (F, N), 0 where missing; weight: mask * exposure; offset: background / exposure; B's constant."""

    x: np.ndarray
    weight: np.ndarray
    offset: np.ndarray
    constant: float


class FactorBound(NamedTuple):
    """A factor's prior, and q: shape and rate, E[v], E[log v], exp(E[log v]), expected sources; (rows, K) each."""

    prior_shape: np.ndarray
    prior_rate: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    mean: np.ndarray
    log: np.ndarray
    geometric: np.ndarray
    sources: np.ndarray


class Led(NamedTuple):
    """Where the last update led, before it was pushed, and the one before: shape and rate, (rows, K) each."""

    shape: np.ndarray
    rate: np.ndarray
    old_shape: np.ndarray
    old_rate: np.ndarray


@kernel
def climb(table, W, H, spares, led, numbers, most, tol):
    """Iterate until the residual is below ``tol``, ``most`` times at the most; returns how often, or -1.

    q, ``led`` and ``numbers`` (see their places) are overwritten and go on in the next call. ``spares``: q of both
    factors once more, as scratch. -1: a mean underflows, which this kernel can't handle.
    """
    spare_W, spare_H = spares
    for iteration in range(most):
        _keep(led)
        _update(led[0], W, table.weight, H.mean, False)
        _fill_means(spare_W, led[0])
        _update(led[1], H, table.weight, spare_W.mean, True)
        push = numbers[PUSH] if numbers[BEGUN] > 0.0 else 0.0
        _push(spare_W, led[0], push)
        _push(spare_H, led[1], push)
        bound = _look(table, spare_W, spare_H)
        if numbers[BEGUN] > 0.0 and not bound >= numbers[BOUND]:
            numbers[PUSH_BOUND], numbers[PUSH] = numbers[PUSH], numbers[PUSH] / SHRINK
            _push(spare_W, led[0], 0.0)
            _push(spare_H, led[1], 0.0)
            bound = _look(table, spare_W, spare_H)
        elif numbers[BEGUN] > 0.0:
            numbers[PUSH] = min(numbers[PUSH_BOUND], GROWTH * numbers[PUSH])
            numbers[PUSH_BOUND] = min(FASTEST, BOUND_GROWTH * numbers[PUSH_BOUND])
        if math.isnan(bound):
            return -1
        change = largest_change(W.mean, spare_W.mean, SMALLEST_CELL)
        numbers[RESIDUAL] = max(change, largest_change(H.mean, spare_H.mean, SMALLEST_CELL))
        numbers[BOUND], numbers[BEGUN] = bound, 1.0
        _copy(W, spare_W)
        _copy(H, spare_H)
        if numbers[RESIDUAL] < tol:
            return iteration + 1
    return most


@kernel
def _keep(led):
    for part in led:
        copy_table(part.old_shape, part.shape)
        copy_table(part.old_rate, part.rate)


@kernel
def _update(led, cells, weight, other, turned):
    """q = Gamma(prior shape + sources, prior rate + sum of weight * E[the other factor])"""
    led.shape[:] = cells.prior_shape + cells.sources
    led.rate[:] = cells.prior_rate
    for i in range(led.rate.shape[0]):
        for j in range(other.shape[0]):
            w = weight[j, i] if turned else weight[i, j]
            for k in range(other.shape[1]):
                led.rate[i, k] += w * other[j, k]


@kernel
def _fill_means(cells, led):
    cells.mean[:] = led.shape / led.rate


@kernel
def _push(cells, led, push):
    """Beyond where the update led, as seen from the one before, by ratios."""
    if push == 0.0:
        cells.shape[:] = led.shape
        cells.rate[:] = led.rate
        return
    for i in range(led.shape.shape[0]):
        for k in range(led.shape.shape[1]):
            cells.shape[i, k] = _ahead(led.shape[i, k], led.old_shape[i, k], push)
            cells.rate[i, k] = _ahead(led.rate[i, k], led.old_rate[i, k], push)


@kernel
def _ahead(new, old, push):
    log_ratio = min(max(fast_log(new / old), -LARGEST_LOG), LARGEST_LOG)
    return max(new * math.exp(push * log_ratio), FLOOR)


@kernel
def _look(table, W, H):
    """The moments of both factors, the sources at these, and the bound; NaN where a mean underflows."""
    divergence = _fill_moments(W) + _fill_moments(H)
    W.sources[:] = 0.0
    H.sources[:] = 0.0
    fit = 0.0
    rank = W.mean.shape[1]
    for f in range(table.x.shape[0]):
        for n in range(table.x.shape[1]):
            if table.weight[f, n] != 0.0:
                total = 0.0
                for k in range(rank):
                    total += W.mean[f, k] * H.mean[n, k]
                fit -= table.weight[f, n] * total
            x = table.x[f, n]
            if x > 0.0:
                mean = table.offset[f, n]
                for k in range(rank):
                    mean += W.geometric[f, k] * H.geometric[n, k]
                if mean < SMALLEST_MEAN:
                    return np.nan
                fit += x * fast_log(mean)
                ratio = x / mean
                for k in range(rank):
                    share = ratio * W.geometric[f, k] * H.geometric[n, k]
                    W.sources[f, k] += share
                    H.sources[n, k] += share
    return fit + table.constant - divergence


@kernel
def _fill_moments(cells):
    """E[v], E[log v] and its exponential; returns KL(q || prior) without what depends on the prior alone."""
    divergence = 0.0
    for i in range(cells.shape.shape[0]):
        for k in range(cells.shape.shape[1]):
            shape, rate = cells.shape[i, k], cells.rate[i, k]
            psi, log_gamma = digamma_and_log_gamma(shape)
            cells.mean[i, k] = shape / rate
            cells.log[i, k] = psi - fast_log(rate)
            cells.geometric[i, k] = math.exp(cells.log[i, k])
            divergence += shape * psi - log_gamma - shape
            divergence += cells.prior_rate[i, k] * cells.mean[i, k] - cells.prior_shape[i, k] * cells.log[i, k]
    return divergence


@kernel
def _copy(cells, other):
    copy_table(cells.shape, other.shape)
    copy_table(cells.rate, other.rate)
    copy_table(cells.mean, other.mean)
    copy_table(cells.log, other.log)
    copy_table(cells.geometric, other.geometric)
    copy_table(cells.sources, other.sources)

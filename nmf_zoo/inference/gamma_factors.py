"""q of one factor in variational Bayes for counts: independent gamma cells.

See :mod:`nmf_zoo.inference.vb`, whose updates and bound are put together from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.acceleration import ahead_by_ratio
from nmf_zoo.inference.divergence import LARGE, gamma_divergence
from nmf_zoo.inference.layout import MOST_CHUNKS, Weights
from nmf_zoo.inference.sides import Side
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.kernels.residuals import column_changes
from nmf_zoo.kernels.streams import child
from nmf_zoo.kernels.variational import fill_moments
from nmf_zoo.structure import Array, even_bounds

SMALL = 1 << 14  # cells of a factor that are not worth sharing out among threads
SMALLEST_MEAN = 1e-300  # of a start: its logarithm must exist


class Approximation(NamedTuple):
    """q of one factor, (rows, K) each; a known factor has mean and the logarithm of its value only.

    shape, rate : of the gammas, rate (1, K) when it is the same for all rows; mean, log : E[v], E[log v];
    geometric : exp(log), between iterations None where nothing asks for it again; own : what the divergence from any
    prior owes to the shapes alone; sums : (2, K), of mean and of log over the rows; change : the largest of a mean from
    the one before, relative to its column's largest
    """

    mean: Array
    log: Array
    geometric: Any
    shape: Any = None
    rate: Any = None
    own: float = 0.0
    sums: Any = None
    change: float = 0.0


class Gamma(NamedTuple):
    """Shape (rows, K) and rate (rows or 1, K) of q of a factor."""

    shape: Any
    rate: Any


def point(value: Array) -> Approximation:
    """All mass at one value."""
    with np.errstate(divide="ignore"):
        return Approximation(value, np.log(value), value)


def update(side: Side, counts: Array, weight: Array, values: Mapping[str, Array]) -> Gamma:
    """q = Gamma(prior shape + counts, prior rate + weight)"""
    if side.is_fixed:
        return Gamma(None, None)
    prior_shape, prior_rate = side.prior(values)
    return Gamma(prior_shape + counts, prior_rate + weight)


def ahead(new: Gamma, old: Gamma, push: float) -> Gamma:
    """Beyond the new law, as seen from the old one."""
    return new if new.shape is None else Gamma(*(ahead_by_ratio(a, b, push) for a, b in zip(new, old, strict=True)))


def moments_at(gamma: Gamma, before: Approximation, workers: Workers) -> Approximation:
    """q of a factor with its moments, and how far its means are from those before."""
    shape, rate = gamma
    if shape is None:
        return before
    log_rate = np.log(rate)
    mean, log, geometric = (np.empty_like(shape) for _ in range(3))

    def fill(first: int, last: int) -> tuple[float, Array, Array]:
        own = fill_moments(mean, log, geometric, shape, rate, log_rate, first, last)
        np.exp(log[first:last], out=geometric[first:last])
        ones = np.ones(last - first)
        sums = np.stack([ones @ mean[first:last], ones @ log[first:last]])
        return own, sums, column_changes(before.mean, mean, first, last)

    bounds = even_bounds(len(shape), int(np.clip(shape.size // SMALL, 1, MOST_CHUNKS)))
    owns, sums, largest = zip(*workers.map(fill, bounds[:-1], bounds[1:]), strict=True)
    steps, tops = np.max(largest, axis=0)
    change = float(np.max(steps / np.maximum(tops, SMALLEST_MEAN)))
    return Approximation(mean, log, geometric, shape, rate, sum(owns), sum(sums), change)


def weigh_W(weights: Weights, W: Gamma, known: Array) -> Array:
    """sum_f weight E[w]; a rate shared by all rows divides their sum."""
    if W.shape is None:
        return weights.over_features(known)
    return weights.over_features(W.shape) / W.rate if len(W.rate) == 1 else weights.over_features(W.shape / W.rate)


def total_mean(weights: Weights, W: Approximation, H: Approximation) -> float:
    """sum weight E[w] E[h]"""
    if weights.are_ones and W.sums is not None and H.sums is not None:
        return float(W.sums[0] @ H.sums[0])
    return weights.total(W.mean, H.mean)


def divergence(q: Approximation, shape: Array, rate: Array) -> float:
    """KL(q || Gamma(shape, rate)), summed over the cells."""
    if np.any(shape > LARGE):
        return float(np.sum(gamma_divergence(q.shape, q.rate, shape, rate)))
    constants = gammaln(shape) - shape * np.log(rate)
    repeats = q.mean.size / constants.size
    products = _sum_product(rate, q.mean, q.sums[0]) - _sum_product(shape, q.log, q.sums[1])
    return q.own + products + float(np.sum(constants)) * repeats


def _sum_product(prior: Array, cells: Array, sums: Array) -> float:
    """The sum of prior * cells, of (1 or rows, 1 or K) and (rows, K); ``sums`` (K,) are those of the cells' rows."""
    return float(np.sum(prior[0] * sums)) if len(prior) == 1 else float(np.sum(prior * cells))


def draw_from(q: Approximation, draws: int, key: np.uint64) -> Array:
    """Independent draws, (draws, rows, K)."""
    rate = np.broadcast_to(q.rate, q.shape.shape)
    out = np.empty((draws, *q.shape.shape))
    for draw in range(draws):
        draw_factor(out[draw], q.shape, rate, 0, len(q.shape), child(key, draw))
    return out

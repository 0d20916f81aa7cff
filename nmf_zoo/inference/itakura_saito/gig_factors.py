"""q of one factor in variational Bayes for powers: generalised inverse Gaussian cells of known order.

See :mod:`nmf_zoo.inference.itakura_saito.vb`, whose updates and bound are put together from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.acceleration import ahead_by_ratio
from nmf_zoo.inference.itakura_saito.vb_support import free_scales
from nmf_zoo.inference.layout import MOST_CHUNKS
from nmf_zoo.inference.sides import Side
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.composite_bound import Pair
from nmf_zoo.kernels.gig_moments import Orders, draw_gig_factor, fill_gig_moments, tabulate
from nmf_zoo.kernels.residuals import column_changes
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, even_bounds

SMALL = 1 << 12  # cells of a factor that are not worth sharing out among threads
MOST_TABLES, WORTH_A_TABLE = 32, 1 << 10  # distinct orders of a factor with tables; cells of the factor for each
SMALLEST, LARGEST = 1e-300, 1e300


class Approximation(NamedTuple):
    """q of one factor, (rows, K) each; a known factor and the start have a value only, which is both means.

    mean : E[v]; harmonic : 1 / E[1/v]; rho, tau : see above; height : what the bound owes to rho and tau alone;
    change : the largest of a harmonic mean from the one before, relative to its column's largest
    """

    mean: Array
    harmonic: Array
    rho: Any = None
    tau: Any = None
    height: float = 0.0
    change: float = 0.0


class Law(NamedTuple):
    """rho and tau of q of a factor, (rows, K); None of a known one."""

    rho: Any
    tau: Any


def orders_of(side: Side) -> Orders:
    """The orders of q of a factor, with tables of those that many cells share."""
    if side.is_gamma:
        p = side.prior({})[0]
    else:
        scales = {unknown.name: np.ones(unknown.variable_shape) for unknown in free_scales(side)}
        p = -side.shape_and_scale(scales)[0]
    p = np.ascontiguousarray(p, dtype=np.float64)
    distinct, which = np.unique(np.abs(p), return_inverse=True)
    size = side.factor.shape[0] * side.factor.shape[1]
    if len(distinct) > min(MOST_TABLES, size // WORTH_A_TABLE):
        return Orders(p, np.full(p.shape, -1), np.empty((0, *_table(1.0).shape)))
    return Orders(p, which.reshape(p.shape), np.stack([_table(float(nu)) for nu in distinct]))


_table = lru_cache(MOST_TABLES)(tabulate)


def update(side: Side, q: Approximation, sums: Pair, values: Mapping[str, Array]) -> Law:
    if side.is_fixed:
        return Law(None, None)
    rate, scale = prior_terms(side, values)
    return Law(2.0 * (rate + sums.arithmetic), 2.0 * (scale + q.harmonic * sums.harmonic * q.harmonic))


def prior_terms(side: Side, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """(r, t) of the prior: its density is proportional to v^(p - 1) exp(-r v - t / v)."""
    zero = np.zeros((1, 1))
    return (side.prior(values)[1], zero) if side.is_gamma else (zero, side.shape_and_scale(values)[1])


def ahead(new: Array, old: Array, push: float) -> Array:
    with np.errstate(over="ignore"):  # ratios are clipped
        beyond = ahead_by_ratio(np.maximum(new, SMALLEST), np.maximum(old, SMALLEST), push)
    return np.where((new > SMALLEST) & (old > SMALLEST), beyond, new)


def moments_at(orders: Orders | None, law: Law, before: Approximation, workers: Workers) -> Approximation:
    """q of a factor with its moments, and how far from those before."""
    if orders is None:
        return before
    mean, harmonic = np.empty_like(law.rho), np.empty_like(law.rho)

    def fill(first: int, last: int) -> tuple[float, Array]:
        height = fill_gig_moments(mean, harmonic, law.rho, law.tau, orders, first, last)
        return height, column_changes(before.harmonic, harmonic, first, last)

    bounds = even_bounds(len(mean), int(np.clip(mean.size // SMALL, 1, MOST_CHUNKS)))
    heights, changes = zip(*workers.map(fill, bounds[:-1], bounds[1:]), strict=True)
    steps, tops = np.max(changes, axis=0)
    with np.errstate(over="ignore"):  # from the smallest numbers to the largest
        change = float(np.max(steps / np.maximum(tops, SMALLEST), initial=0.0))
    return Approximation(mean, harmonic, law.rho, law.tau, sum(heights), min(change, LARGEST))


def own_part(side: Side, q: Approximation, values: Mapping[str, Array]) -> float:
    """What the bound owes to a factor beside the cells of X: all of B but the constant and sum (log m + x / l)."""
    if side.is_flat:
        return q.height
    shape, pull = side.prior(values) if side.is_gamma else side.shape_and_scale(values)
    moments = q.mean if side.is_gamma else 1.0 / q.harmonic
    constants = shape * np.log(pull) - gammaln(shape)
    return q.height - float(np.sum(pull * moments)) + float(np.sum(constants)) * (moments.size / constants.size)


def draw_from(q: Approximation, orders: Orders, draws: int, key: np.uint64) -> Array:
    out = np.empty((draws, *q.rho.shape))
    for draw in range(draws):
        draw_gig_factor(out[draw], q.rho, q.tau, orders, child(key, draw))
    return out

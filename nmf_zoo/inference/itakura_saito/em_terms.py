"""What priors say of a cell, as EM of exponential data takes it: power log w + scale / w + rate w, and a constant."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.layout import MOST_CHUNKS
from nmf_zoo.inference.sides import Side
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.factor_steps import prior_cost
from nmf_zoo.kernels.itakura_saito import PriorTerms
from nmf_zoo.structure import Array, even_bounds


def prior_terms(side: Side, mode: str) -> PriorTerms:
    """The terms of a factor's prior, or of its logarithm's for ``mode`` "log": (rows or 1, K) each."""
    power, scale, rate = np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1))
    in_logs = 1.0 if mode == "log" else 0.0
    if side.is_inverse_gamma:
        shape, scale = side.shape_and_scale({})
        power = shape + 1.0 - in_logs
    elif side.is_gamma:
        shape, rate = side.prior({})
        power = 1.0 - shape - in_logs
    K = side.turn(np.empty(side.factor.shape)).shape[1]
    terms = np.broadcast_arrays(power, scale, rate, np.zeros((1, K)))[:3]
    return PriorTerms(*(np.ascontiguousarray(part, dtype=np.float64) for part in terms))


def prior_constant(side: Side) -> float:
    """What minus the log prior density has beside its terms."""
    if side.is_inverse_gamma or side.is_gamma:
        shape, second = side.shape_and_scale({}) if side.is_inverse_gamma else side.prior({})
        cells = side.turn(np.empty(side.factor.shape)).shape
        return float(np.sum(np.broadcast_to(gammaln(shape) - shape * np.log(second), cells)))
    return 0.0


def cost_of_rows(workers: Workers, factor: Array, terms: PriorTerms) -> float:
    """Minus the log prior density of a factor (rows, K) but for the constant, summed in an order that is fixed."""
    bounds = even_bounds(len(factor), MOST_CHUNKS if factor.size > 1 << 14 else 1)
    return sum(workers.map(lambda first, last: prior_cost(factor, *terms, first, last), bounds[:-1], bounds[1:]))

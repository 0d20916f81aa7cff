"""Priors of factors under a normal likelihood, as terms in v: power log v - rate v - curve v^2 / 2."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.kernels.normal.factor_draws import CellTerms
from nmf_zoo.structure import Array, TruncatedNormalPrior


def cell_terms(side: Side, values: Mapping[str, Array]) -> CellTerms:
    """(rows, K) each; 0 where there is no prior, and at known components."""
    shape = side.turn(np.empty(side.factor.shape)).shape
    power, rate, curve = (np.zeros(shape) for _ in range(3))
    prior = side.factor.prior
    if isinstance(prior, TruncatedNormalPrior):
        mu, sigma = (side.turn(np.atleast_2d(own.value)) for own in (prior.mu, prior.sigma))
        rate[:, side.free], curve[:, side.free] = -mu / sigma**2, sigma**-2.0
    elif side.is_gamma or side.is_half_normal:
        own = side.terms("density", values)
        power[:, side.free], rate[:, side.free], curve[:, side.free] = own.power, own.rate, own.curve
    return CellTerms(power, rate, curve)

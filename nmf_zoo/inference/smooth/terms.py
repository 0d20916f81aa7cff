"""What a prior of W says of a cell or of a column scaled as a whole: power log w - rate w - inverse / w."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.structure import Array


class PriorTermsOfCells(NamedTuple):
    """Of the density of the logarithms; arrays that broadcast to (F, K), or (K,) where a column is scaled."""

    power: Array
    rate: Array
    inverse: Array

    def over_rows(self, W: Array) -> PriorTermsOfCells:
        """Of a column scaled by c, W (F, K) what it is now, in c."""
        power, rate, inverse = (np.broadcast_to(own, W.shape) for own in self)
        return PriorTermsOfCells(power.sum(axis=0), (rate * W).sum(axis=0), (inverse / W).sum(axis=0))


def terms_of_weights(side: Side, values: Mapping[str, Array], mode: str = "log") -> PriorTermsOfCells:
    """Of a gamma, inverse-gamma or flat prior; of the density of w itself in the mode "density"."""
    nothing, less = np.zeros((1, 1)), float(mode == "density")
    if side.is_gamma:
        shape, rate = side.prior(values)
        return PriorTermsOfCells(shape - less, rate, nothing)
    if side.is_inverse_gamma:
        shape, scale = side.shape_and_scale(values)
        return PriorTermsOfCells(-shape - less, nothing, scale)
    return PriorTermsOfCells(nothing, nothing, nothing)


def peak(terms: PriorTermsOfCells) -> Array:
    """v at the peak of power log v - rate v - inverse / v; not a finite number above 0 where there is none."""
    power, rate, inverse = terms
    root = np.hypot(power, 2.0 * np.sqrt(rate * inverse))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(power > 0, (power + root) / (2.0 * rate), 2.0 * inverse / (root - power))


def best_scale(of_W: PriorTermsOfCells, power: Array, rate: Array) -> Array:
    """c, (K,), by which W is best multiplied and H divided, whose rows scaled by c have the terms power and rate.

    The peak of power' log c - rate' c - inverse' / c; 1 where there is none.
    """
    c = peak(PriorTermsOfCells(of_W.power - power, of_W.rate, of_W.inverse + rate))
    return np.where(np.isfinite(c) & (c > 0), c, 1.0)

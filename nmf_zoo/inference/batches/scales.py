"""The scales that multipliers share with the factors, and where they are best.

A feature's multipliers can grow while its row of W shrinks, and a batch's while its samples' columns of H shrink: the
means stay as they are, only the priors say how far. An optimiser that goes back and forth between multipliers and
factors creeps along these lines, as slowly as the data are many. So it goes to the best point of each at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.multiplied import BatchData
from nmf_zoo.structure import Array


class SharedScales(NamedTuple):
    """M -> c_f M c_b, W -> W / c_f, H -> H / c_b.

    Attributes
    ----------
    of_features : (F, 1), ones where W can't move
    of_batches : (columns,), ones where H can't move, and for the reference
    batch : (N,) the column of each sample
    """

    of_features: Array
    of_batches: Array
    batch: Array

    @property
    def of_samples(self) -> Array:
        """(N, 1)"""
        return self.of_batches[self.batch][:, None]

    def log_mean(self, counts: Array) -> float:
        """How much sum x log(W H) falls; ``counts`` (F, columns)."""
        return float(np.sum(counts * (np.log(self.of_features) + np.log(self.of_batches))))


def can_scale(side: Side) -> bool:
    """Whether rows of a factor may move as a whole, with a known law."""
    return side.is_gamma and side.factor.known is None


def best_scales(
    data: BatchData,
    sides: tuple[Side, Side],
    factors: tuple[Array, Array],
    values: Mapping[str, Array],
    prior: tuple[Array, Array],
    M: Array,
    is_density: bool,
) -> SharedScales:
    """Those that maximise the priors, of features at these multipliers, then of batches.

    ``factors`` : W (F, K) and Ht (N, K), or their expectations; ``prior`` : shape and rate of M, (F, B) each;
    ``is_density`` : of the densities of the variables, not of their logarithms (or the bound)
    """
    multipliers, (shape, rate) = data.multipliers, prior
    (n_features, n_batches), less = M.shape, float(is_density)
    of_features, of_batches = np.ones((n_features, 1)), np.ones(data.counts.shape[1])
    if data.leaves_scales:
        if can_scale(sides[0]) and not multipliers.has_reference:
            shapes, rates = (np.broadcast_to(own, factors[0].shape) for own in sides[0].prior(values))
            power = np.sum(shape - less, axis=1) - np.sum(shapes - less, axis=1)
            of_features[:, 0] = _best(power, np.sum(rate * M, axis=1), np.sum(rates * factors[0], axis=1))
        if can_scale(sides[1]):
            shapes, rates = (np.broadcast_to(own, factors[1].shape) for own in sides[1].prior(values))
            sums = np.stack([np.sum(shapes - less, axis=1), np.sum(rates * factors[1], axis=1)], axis=1)
            of_H = multipliers.sum_samples(sums)[:n_batches]
            power = np.sum(shape - less, axis=0) - of_H[:, 0]
            of_batches[:n_batches] = _best(power, np.sum(rate * M * of_features, axis=0), of_H[:, 1])
    return SharedScales(of_features, of_batches, multipliers.batch)


def _best(power: Array, a: Array, b: Array) -> Array:
    """c of the highest power log c - a c - b / c; 1 where there is none."""
    root = np.sqrt(np.square(power) + 4.0 * a * b)
    is_clear = (a > 0) & (b > 0) & np.isfinite(root)
    positive = np.divide(power + root, 2.0 * a, out=np.ones_like(root), where=is_clear & (power >= 0))
    return np.divide(2.0 * b, root - power, out=positive, where=is_clear & (power < 0))

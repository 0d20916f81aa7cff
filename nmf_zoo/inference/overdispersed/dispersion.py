"""The inverse dispersion alpha of negative binomial data, the multipliers summed over: its density, and a step up it.

Given the means m its entries (one for all cells, for each feature or for each sample) are independent of each other,

    log p(x | m, alpha) = sum log Gamma(alpha + x) - log Gamma(alpha) - x log alpha - (x + alpha) log(1 + m / alpha),

but for what does not depend on it. Newton steps on log alpha are shortened until no entry loses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nmf_zoo.inference.overdispersed.cells import Pieces, mean_at, where_seen
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.structure import Array, Factorisation, KnownAtCells, Unknown
from nmf_zoo.structure.likelihoods.negative_binomial import LEAST, MOST, log_rising

LARGEST_STEP = 2.0  # of log alpha
DIFFERENCE = 1e-4  # in log alpha, of the slope's central differences
HALVINGS = 40

ByEntry = Callable[[Array], Array]  # alpha (1 or F, 1 or N) -> one number for each of its entries


def alpha_of(structure: Factorisation, values: Mapping[str, Array]) -> Array:
    """(1 or F, 1 or N)"""
    return np.atleast_2d(np.asarray(structure.likelihood.parameters["alpha"].resolve(values), dtype=np.float64))


def takes_ties(structure: Factorisation) -> Verdict:
    """CAN_RUN when alpha is one for all cells, for each feature or for each sample."""
    alpha = structure.likelihood.parameters["alpha"]
    shape = (1,) * (2 - len(alpha.shape)) + tuple(alpha.shape)
    if 1 in shape and not isinstance(alpha, KnownAtCells):
        return CAN_RUN
    return Verdict("alpha is one for each cell, and it takes one for all, for each feature or for each sample")


def log_likelihood_of(pieces: Pieces, W: Array, Ht: Array) -> ByEntry:
    """alpha -> the sum over its cells of what depends on it, at the means that W (F, K) and Ht (N, K) give."""

    def by_entry(alpha: Array) -> Array:
        total = np.zeros(alpha.shape)
        for piece in pieces:
            mean, own = mean_at(piece, piece.product(W, Ht)), piece.parameter(alpha)
            cells = log_rising(own, piece.x) - (piece.x + own) * np.log1p(mean / own)
            piece.add_up(total, where_seen(piece, cells))
        return total

    return by_entry


def log_prior_of(unknown: Unknown, is_of_logarithms: bool) -> ByEntry:
    """alpha -> the log density of its entries, or of their logarithms; 0 where it is free."""

    def by_entry(alpha: Array) -> Array:
        if unknown.prior.is_flat:
            return np.zeros(alpha.shape)
        density = unknown.prior.log_density(alpha.reshape(unknown.variable_shape)).reshape(alpha.shape)
        return density + np.log(alpha) if is_of_logarithms else density

    return by_entry


def climb(alpha: Array, log_density: ByEntry) -> Array:
    """One Newton step on log alpha, each entry as far as it does not lose."""
    middle, up, down = (log_density(alpha * np.exp(by)) for by in (0.0, DIFFERENCE, -DIFFERENCE))
    slope, bend = (up - down) / (2.0 * DIFFERENCE), (up - 2.0 * middle + down) / DIFFERENCE**2
    newton = np.where(bend < 0, -slope / np.where(bend < 0, bend, 1.0), LARGEST_STEP * np.sign(slope))
    step = np.clip(newton, -LARGEST_STEP, LARGEST_STEP)
    for _ in range(HALVINGS):
        beyond = np.clip(alpha * np.exp(step), LEAST, MOST)
        is_loss = ~(log_density(beyond) >= middle)
        if not is_loss.any():
            return beyond
        step = np.where(is_loss, step / 2.0, step)
    return np.where(is_loss, alpha, beyond)

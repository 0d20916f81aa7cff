"""Moves of log-normal chains along what the data cannot see: w_k -> c w_k, h_k -> h_k / c leaves W H alone.

With s = log c the logarithms of a chain's row fall by s and those of W's column rise by it, volumes stay, and s has
the density::

    prod_f p(w_fk e^s) e^s  p(log h_k - s)

of which the last is the chain's own. Where the chain returns to an unknown mean, a second move takes the mean along,
so that only the priors of W, of the mean, and of the first time hold it back. Both are by slice sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from nmf_zoo.inference.hmm.gibbs_chain import ChainSums
from nmf_zoo.inference.prior_cells import PriorCells, prior_cells
from nmf_zoo.inference.sides import sum_to
from nmf_zoo.inference.slice_sampling import slice_draw
from nmf_zoo.kernels.gibbs import TINY
from nmf_zoo.structure import Array, Factorisation, LogNormalARPrior, Unknown


def move_levels(
    structure: Factorisation,
    W: Array,
    z: Array,
    sums: ChainSums,
    values: dict[str, Array],
    generator: np.random.Generator,
) -> ChainSums:
    """Move W (F, K), z = log h (K, T) and the mean's entry of ``values``, in place; returns the sums of the new z."""
    priors = prior_cells(structure, values)  # the chain's mean has no part in them where it moves
    weights = _density_of_weights(priors, W)
    slope, bend = pull_of_level(_chain(structure), sums, values)

    def of_level(s: Array) -> Array:
        return weights(s) + (slope - 0.5 * bend * s) * s

    sums = _apply(slice_draw(of_level, np.zeros(sums.first.shape), generator), W, z, sums)
    mean = _free_mean(structure)
    if mean is None:
        return sums
    return _move_with_mean(_chain(structure), mean, _density_of_weights(priors, W), (W, z), sums, values, generator)


def _move_with_mean(
    prior: LogNormalARPrior,
    mean: Unknown,
    weights: Callable[[Array], Array],
    moved: tuple[Array, Array],
    sums: ChainSums,
    values: dict[str, Array],
    generator: np.random.Generator,
) -> ChainSums:
    """The levels of all chains that share a mean move with it: a stationary chain does not notice.

    ``weights`` is the density of W; ``moved`` are W and z.
    """
    slope, bend = pull_of_first(prior, sums, values)
    old = values[mean.name]

    def of_mean(s: Array) -> Array:
        by_row = s.reshape(mean.shape)
        rows = weights(by_row) + (slope - 0.5 * bend * by_row) * by_row
        return sum_to(rows, mean.shape).reshape(mean.variable_shape) + mean.prior.log_density(old - s)

    s = slice_draw(of_mean, np.zeros(mean.variable_shape), generator)
    values[mean.name] = old - s
    return _apply(np.broadcast_to(s.reshape(mean.shape), sums.first.shape), *moved, sums)


def pull_of_level(prior: LogNormalARPrior, sums: ChainSums, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """(slope, bend), (K, 1): log p(z - s) = log p(z) + slope s - bend s^2 / 2."""
    mean, persistence, scale, first, spread = prior.law(values)
    room, away = 1.0 - persistence, sums.centre - mean
    residuals = sums.steps[1] - persistence * sums.steps[0] + sums.n_steps * room * away
    slope = room * residuals / scale**2 + (sums.first - first) / spread**2
    return slope, np.broadcast_to(sums.n_steps * room**2 / scale**2 + 1.0 / spread**2, slope.shape)


def pull_of_first(prior: LogNormalARPrior, sums: ChainSums, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """The same where the chain's mean falls with it: only a first time with a mean of its own notices."""
    _, _, _, first, spread = prior.law(values)
    if prior.is_stationary:
        return np.zeros_like(sums.first), np.zeros_like(sums.first)
    return (sums.first - first) / spread**2, np.broadcast_to(1.0 / spread**2, sums.first.shape)


def _density_of_weights(priors: PriorCells, W: Array) -> Callable[[Array], Array]:
    """log of prod_f p(w_fk e^s) e^s as a function of s (K, 1)."""
    shape, pull = (part.sum(axis=0)[:, None] for part in (priors.shape_w, priors.rate_w * W))
    return lambda s: shape * s - pull * np.exp(s)


def _chain(structure: Factorisation) -> LogNormalARPrior:
    return cast(LogNormalARPrior, structure.H.prior)


def _free_mean(structure: Factorisation) -> Unknown | None:
    """The unknown that is the chain's mean, if it is that and nothing else."""
    mean = _chain(structure).mean
    if not isinstance(mean, Unknown):
        return None
    uses = [own for own in structure.W.unknowns + structure.H.unknowns if own.name == mean.name]
    return mean if len(uses) == 1 else None


def _apply(s: Array, W: Array, z: Array, sums: ChainSums) -> ChainSums:
    """Move by s (K, 1)."""
    np.maximum(W * np.exp(s[:, 0]), TINY, out=W)
    z -= s
    return sums._replace(first=sums.first - s, centre=sums.centre - s)

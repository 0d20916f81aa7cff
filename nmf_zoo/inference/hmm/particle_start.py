"""Where EM by particles begins: at the values given, else W at the scale of the data and the chain in mid-prior."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.hmm.chain_updates import keep_inside
from nmf_zoo.inference.layout import Weights
from nmf_zoo.inference.multiplicative import FLOOR
from nmf_zoo.inference.start import SPREAD, start_hyperparameters
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.structure import Array, Factorisation, Fixed, LogNormalARPrior


def start_values(structure: Factorisation, start: Mapping[str, Array]) -> dict[str, Array]:
    """A value of every unknown of the chain, off the ends of its support."""
    return keep_inside(structure.H.prior, start_hyperparameters(structure, start))


def start_weights(
    structure: Factorisation, weights: Weights, values: Mapping[str, Array], key: np.uint64, start: Mapping[str, Array]
) -> Array:
    """W (F, K): known, given, or random with the mean of the data where activations are at their typical size."""
    factor = structure.W
    if isinstance(factor.prior, Fixed):
        return np.array(factor.prior.value, dtype=np.float64, order="C")
    if factor.name in start:
        given = factor.orient(np.asarray(start[factor.name], dtype=np.float64))
        return np.ascontiguousarray(np.maximum(given, FLOOR))
    typical = np.broadcast_to(_typical(structure, values), structure.H.shape).T
    total = max(float(structure.data.observed_values.sum()), 1.0)
    scale = total / max(weights.total(np.ones(factor.shape), typical), FLOOR)
    out = np.empty(factor.shape)
    shape, rate = (np.broadcast_to(number, factor.shape) for number in (SPREAD, SPREAD / scale))
    draw_factor(out, shape, rate, 0, len(out), key)
    return out


def _typical(structure: Factorisation, values: Mapping[str, Array]) -> Array:
    """A typical activation, () or (K, 1): one half where it is at most one, e^mean of a log-normal chain."""
    prior = structure.H.prior
    return np.exp(prior.law(values)[0]) if isinstance(prior, LogNormalARPrior) else np.asarray(0.5)

"""Where engines of chains begin: hyperparameters off the ends of their support, and W at the scale of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from nmf_zoo.inference.hmm.m_step import keep_inside
from nmf_zoo.inference.shared.layout import Weights
from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.inference.shared.start import SPREAD, start_hyperparameters
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.structure import Array, ChainPrior, Factor, Factorisation, Fixed


def start_values(structure: Factorisation, start: Mapping[str, Array]) -> dict[str, Array]:
    """A value of every unknown of the chain, off the ends of its support."""
    return keep_inside(structure.H.prior, start_hyperparameters(structure, start))


def start_weights(factor: Factor, start: Mapping[str, Array], mean: Callable[[], float], key: np.uint64) -> Array:
    """W (F, K): known, given, or random with this mean; known components as they are."""
    if isinstance(factor.prior, Fixed):
        return np.array(factor.prior.value, dtype=np.float64, order="C")
    if set(factor.shapes) & set(start):
        out = np.array(np.maximum(factor.value(start), FLOOR), order="C")
    else:
        out = np.empty(factor.shape)
        shape, rate = (np.full(factor.shape, number) for number in (SPREAD, SPREAD / mean()))
        draw_factor(out, shape, rate, 0, len(out), key)
    return out if factor.known is None else factor.known.whole(factor.known.part(out))


def mean_of_weights(structure: Factorisation, weights: Weights, typical: Array) -> float:
    """The mean of W by the data, were the activations ``typical`` (N, K)."""
    total = max(float(structure.data.observed_values.sum()), 1.0)
    return total / max(weights.total(np.ones(structure.W.shape), typical), FLOOR)


def typical_activations(structure: Factorisation, values: Mapping[str, Array]) -> Array:
    """(N, K): one half where an activation is at most one, e^mean of a log-normal chain."""
    return np.broadcast_to(cast(ChainPrior, structure.H.prior).typical(values), structure.H.shape).T

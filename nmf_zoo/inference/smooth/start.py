"""Where engines of smooth chains begin: H about what is typical of its chain, W at the scale of the data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from nmf_zoo.inference.hmm.starts import mean_of_weights, start_values, start_weights, typical_activations
from nmf_zoo.inference.shared.layout import Weights
from nmf_zoo.inference.shared.start import FLOOR, SPREAD
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.kernels.random.keyed_rng import children
from nmf_zoo.structure import Array, Factorisation


def start_of_chain(
    structure: Factorisation, weights: Weights, key: np.uint64, start: Mapping[str, Array]
) -> tuple[Array, Array, dict[str, Array]]:
    """W (F, K), Ht (N, K) and the hyperparameters by name: given, or random."""
    values, keys, H = start_values(structure, start), children(key, 2), structure.H
    typical = typical_activations(structure, values)
    if H.name in start:
        Ht = np.array(H.value(start).T, order="C")
        Ht = np.maximum(Ht, FLOOR * (Ht.max() or 1.0))
    else:
        Ht = np.empty(typical.shape)
        draw_factor(Ht, np.full(Ht.shape, SPREAD), SPREAD / typical, 0, len(Ht), keys[0])
    W = start_weights(structure.W, start, partial(mean_of_weights, structure, weights, typical), keys[1])
    return W, Ht, values

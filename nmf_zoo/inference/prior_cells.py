"""Shape and rate of the gamma prior at every cell of both factors, as samplers need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.structure import Array, Factorisation


class PriorCells(NamedTuple):
    """shape_w, rate_w (F, K) and shape_h, rate_h (N, K), read-only views; tilt (K,): sum of W's shapes minus H's.

    A factor without a prior has shape 1 and rate 0: that is the density it adds to a gamma conditional.
    """

    shape_w: Array
    rate_w: Array
    shape_h: Array
    rate_h: Array
    tilt: Array


def prior_cells(structure: Factorisation, values: Mapping[str, Array]) -> PriorCells:
    """The priors' cells, given the values of the unknown hyperparameters."""
    W, H = two_sides(structure)
    shape_w, rate_w = _cells(W, structure.W.shape, values)
    shape_h, rate_h = _cells(H, structure.H.shape[::-1], values)
    return PriorCells(shape_w, rate_w, shape_h, rate_h, shape_w.sum(axis=0) - shape_h.sum(axis=0))


def _cells(side: Side, shape: tuple[int, int], values: Mapping[str, Array]) -> tuple[Array, Array]:
    pair = side.prior(values) if side.is_gamma else (np.float64(1.0), np.float64(0.0))
    shapes, rates = (np.broadcast_to(array, shape) for array in pair)
    return shapes, rates

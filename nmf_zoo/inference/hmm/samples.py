"""The data as chains need them: sample by sample, with what is not observed weighing nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmf_zoo.inference.shared.layout import Layout, Weights, compress, likelihood_constant, weigh
from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.structure import Array, Factorisation


@dataclass(frozen=True)
class CountsBySample:
    """Counts by sample.

    Attributes
    ----------
    layout : the non-zero observed cells, compressed along the samples
    weights : mask * exposure
    base : (F,) background / exposure where all samples share it, 0 where the layout has offsets
    constant : log p(X | W, H) = sum_nonzero x log((W H) + offset) - sum weight (W H) + constant
    """

    layout: Layout
    weights: Weights
    base: Array
    constant: float

    def counts(self, W: Array) -> Counts:
        """As the kernels take them, for this W (F, K): they need what a component costs where it is on."""
        _, indptr, indices, values, offset, _ = self.layout
        return Counts(indptr, indices, values, offset, np.ascontiguousarray(self.weights.over_features(W)))


def read_samples(structure: Factorisation) -> CountsBySample:
    """Lay out the data of a Poisson model."""
    base = shared_offset(structure)
    layout = compress(structure, by_features=False, with_offset=base is None)
    base = np.zeros(structure.shape[0]) if base is None else base
    return CountsBySample(layout, weigh(structure), base, likelihood_constant(structure))


def shared_offset(structure: Factorisation) -> Array | None:
    """background / exposure of every feature, (F,), if it is the same for all samples."""
    background, exposure = structure.likelihood.background, structure.likelihood.exposure
    if background is None:
        return np.zeros(structure.shape[0])
    if not (isinstance(background, np.ndarray) and isinstance(exposure, np.ndarray | None)):
        return None
    ratio = np.atleast_2d(background / (1.0 if exposure is None else exposure))
    return np.array(np.broadcast_to(ratio, (structure.shape[0], 1))[:, 0]) if ratio.shape[1] == 1 else None

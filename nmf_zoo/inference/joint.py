"""The log joint density of a Poisson factorisation, fast: what samplers report as ``lp`` at every kept draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.layout import Layout, Weights, likelihood_constant
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.gibbs import sum_x_log_mean
from nmf_zoo.structure import Array, Factorisation


class LogJoint:
    """``structure.log_joint`` at factors in our layout, in O(non-zeros * K)."""

    def __init__(self, structure: Factorisation, layout: Layout, weights: Weights, workers: Workers):
        self.structure, self.layout, self.weights, self.workers = structure, layout, weights, workers
        self.constant = likelihood_constant(structure)

    def log_likelihood(self, W: Array, Ht: Array) -> float:
        """log p(X | W, H) of the observed cells."""
        sides = self.layout.sides(W, Ht)
        parts = self.workers.map(lambda chunk: sum_x_log_mean(self.layout, *sides, chunk), range(self.layout.n_chunks))
        return sum(parts) - self.weights.total(W, Ht) + self.constant

    def __call__(self, W: Array, Ht: Array, values: Mapping[str, Array]) -> float:
        """log p(X, W, H, hyperparameters); ``values`` holds the hyperparameters by name, and the imputed cells if any."""
        structure = self.structure
        total = self.log_likelihood(W, Ht) + structure.W.log_density(W, values) + structure.H.log_density(Ht.T, values)
        for name, unknown in structure.unknowns.items():
            total += float(np.sum(unknown.prior.log_density(np.asarray(values[name]))))
        return total + structure.log_imputed(W, Ht.T, values)

"""The log joint density, fast where it is Poisson: what is reported as ``lp`` at every kept draw."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.shared.layout import Layout, SparseSources, Weights, compress, likelihood_constant, weigh
from nmf_zoo.inference.shared.requirements import takes_likelihood
from nmf_zoo.kernels.numerics.cells import rates_at_cells
from nmf_zoo.results.groups import checked_cells
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior, Poisson


class LogJoint:
    """``structure.log_joint`` at factors in our layout, in O(non-zeros * K)."""

    def __init__(self, structure: Factorisation, layout: Layout, weights: Weights, workers: Workers):
        self.structure, self.weights = structure, weights
        self.sources = SparseSources(structure, workers, layout)
        self.constant = likelihood_constant(structure)

    def log_likelihood(self, W: Array, Ht: Array) -> float:
        """log p(X | W, H) of the observed cells."""
        return self.sources.gather(W, Ht, sides="").log_mean - self.weights.total(W, Ht) + self.constant

    @cached_property
    def prior_constant(self) -> float:
        """What the log priors hold beside the factors, when their parameters are known."""
        total = 0.0
        for factor in (self.structure.W, self.structure.H):
            if isinstance(factor.prior, GammaPrior):
                shape, rate = (np.broadcast_to(array, factor.free_shape) for array in factor.prior.shape_and_rate({}))
                total += float(np.sum(xlogy(shape, rate) - gammaln(shape)))
        return total

    def complete(self, lp: Array, Ws: Array, Hts: Array, values: Mapping[str, Array]) -> Array:
        """The log joint of draws (draws, *variable) from that of the kernel (draws,): with constants, imputed cells."""
        lp = lp + (self.constant + self.prior_constant)
        imputed = self.structure.imputed
        if imputed is not None:
            draws = zip(Ws, Hts, values[imputed.name], strict=True)
            lp += [self.structure.log_imputed(W, Ht.T, {imputed.name: drawn}) for W, Ht, drawn in draws]
        return lp

    def __call__(self, W: Array, Ht: Array, values: Mapping[str, Array]) -> float:
        """log p(X, W, H, hyperparameters); ``values`` holds the hyperparameters by name, and any imputed cells."""
        structure = self.structure
        total = self.log_likelihood(W, Ht) + structure.W.log_density(W, values) + structure.H.log_density(Ht.T, values)
        for name, unknown in structure.unknowns.items():
            total += float(np.sum(unknown.prior.log_density(np.asarray(values[name]))))
        return total + structure.log_imputed(W, Ht.T, values)


def followed_means(W: Array, Ht: Array, cells: tuple[Array, Array]) -> Array:
    """(cells,) of W H at rows and columns, W (F, K) and Ht (N, K): what a sampler's draw tells beside ``lp``."""
    mean = np.empty(len(cells[0]))
    rates_at_cells(mean, W, Ht, *cells)
    return mean


def log_joints(structure: Factorisation, values: Mapping[str, Array]) -> Array:
    """``structure.log_joint`` at every draw of ``values``, name -> (draws, *variable); (draws,)."""
    n_draws = len(next(iter(values.values())))
    draws = ({name: array[draw] for name, array in values.items()} for draw in range(n_draws))
    if not takes_likelihood(structure, (Poisson,)) or structure.data is None:
        with np.errstate(over="ignore"):  # a draw of a heavy tail may have a mean beyond all numbers, and lp = -inf
            return np.array([structure.log_joint(draw) for draw in draws])
    log_joint = LogJoint(structure, compress(structure), weigh(structure), SERIAL)

    def at(draw: dict[str, Array]) -> float:
        W, H = (factor.value(draw) for factor in (structure.W, structure.H))
        return log_joint(np.ascontiguousarray(W), np.ascontiguousarray(H.T), draw)

    return np.array([at(draw) for draw in draws])


def invariants_of_chains(structure: Factorisation, values: Mapping[str, Array]) -> dict[str, Array]:
    """``lp`` (chain, draw) and ``mean`` (chain, draw, checked_cell) of draws that a sampler of its own has made.

    ``values`` : name -> (chain, draw, *variable)
    """
    n_chains, n_draws = next(iter(values.values())).shape[:2]
    rows, cols = checked_cells(structure.shape)
    lp, mean = np.empty((n_chains, n_draws)), np.empty((n_chains, n_draws, len(rows)))
    for at in np.ndindex(n_chains, n_draws):
        draw = {name: array[at] for name, array in values.items()}
        W, H = structure.W.value(draw), structure.H.value(draw)
        lp[at] = structure.log_joint(draw)
        mean[at] = np.einsum("ck,kc->c", W[rows], H[:, cols])
    return {"lp": lp, "mean": mean}

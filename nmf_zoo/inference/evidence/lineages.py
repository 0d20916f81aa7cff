"""A run's own error of its log evidence, from the lineages of its particles.

Sequential Monte Carlo sums log mean weights, so to first order its error is the sum over stages t and particles i of
(g_ti - 1) / n, with g_t the weights over their mean. Particles that descend from one particle of the first stage are
dependent, others are taken for independent::

    variance of log p(X) = var(g_0) / n + sum_e ( sum_t sum_{i descends from e} (g_ti - 1) / n )^2

with e the chains that the first stage starts (after Chan, Lai 2013; Lee, Whiteley 2018, whose estimate is of the final
weights and would count the resampling of few ancestors from many particles as an error).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.structure import Array


class Lineages(NamedTuple):
    """first : variance from the first stage; founders (particles,) and sums (chains,), by founder, of what follows."""

    first: float
    founders: Array
    sums: Array


def begin(weights: Array, n_chains: int) -> Lineages:
    """After the first stage, of independent particles with these weights (n,) of mean 1."""
    founders = np.repeat(np.arange(n_chains), len(weights) // n_chains)
    return Lineages(float(np.var(weights, ddof=1)) / len(weights), founders, np.zeros(n_chains))


def follow(lineages: Lineages, weights: Array, ancestors: Array) -> Lineages:
    """After a stage in which ``ancestors`` (chains,) were drawn of particles with these weights (n,) of mean 1."""
    n, chains = len(weights), len(ancestors)
    shares = np.bincount(lineages.founders, weights - 1.0, minlength=chains) / n
    founders = np.repeat(lineages.founders[ancestors], n // chains)
    return lineages._replace(founders=founders, sums=lineages.sums + shares)


def standard_error(lineages: Lineages) -> float:
    """Of log p(X); NaN where all particles descend from one, so that none are left to compare."""
    if np.ptp(lineages.founders) == 0:
        return np.nan
    return float(np.sqrt(lineages.first + np.sum(lineages.sums**2)))

"""The M-step of any chain: its parameters at their best given the expected statistics of its paths.

What each chain counts over its transitions (z = h_{t-1} and z' = h_t, or their logarithms), for every component:

    basis        0->0, 0->1, 1->0, 1->1                                                `basis_updates`
    unit         moves towards the nearer end, moves away from it                      `unit_updates`
    log-normal   z, z', z z, z z', z' z'                                               `log_normal_updates`

Any of the parameters may be known; the others may be one number for all components or one for each, free or with a
prior, which then adds its log-density to the chains' own. :func:`update_chain` is for whole series, where the step may
search; `nmf_zoo.kernels.chain_updates` is its compiled twin for streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nmf_zoo.inference.hmm.basis_updates import update_basis
from nmf_zoo.inference.hmm.climb import bounds, keep_inside
from nmf_zoo.inference.hmm.log_normal_updates import update_log_normal
from nmf_zoo.inference.hmm.unit_updates import update_unit
from nmf_zoo.structure import Array, BasisChainPrior, Factor, LogNormalARPrior, UnitChainPrior

__all__ = ["ChainCounts", "bounds", "keep_inside", "update_chain"]


class ChainCounts(NamedTuple):
    """Expected statistics of a chain's paths.

    Attributes
    ----------
    pairs : (K, 4), (K, 2) or (K, 5) sums over the transitions, as above
    first : of the first time: (K, 1) P(on) of a basis chain, (K, 0) of a unit one, (K, 2) z and z^2 of a log-normal one
    transitions : how many there are, T - 1
    """

    pairs: Array
    first: Array
    transitions: float


def update_chain(factor: Factor, counts: ChainCounts, values: Mapping[str, Array]) -> dict[str, Array]:
    """The values of the hyperparameters, those of the chain at their best."""
    prior, unknowns = factor.prior, {unknown.name: unknown for unknown in factor.unknowns}
    if not unknowns:
        return dict(values)
    if isinstance(prior, BasisChainPrior):
        return update_basis(prior, unknowns, counts.pairs, counts.first, values)
    if isinstance(prior, UnitChainPrior):
        return update_unit(prior, unknowns, counts.pairs, values)
    assert isinstance(prior, LogNormalARPrior)
    return update_log_normal(prior, unknowns, *counts, values)

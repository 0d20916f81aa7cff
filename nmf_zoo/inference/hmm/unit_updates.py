"""The M-step of the unit chain: alpha is the share of moves towards the nearer end.

alpha = towards / (towards + away), summed over the components that share it (Yildirim, Cemgil, Singh 2012, section 4.2,
which leaves out that sum), with the counts of a beta prior added. The first time says nothing of alpha.
"""

from __future__ import annotations

from collections.abc import Mapping

from nmf_zoo.inference.hmm.climb import climb, log_priors
from nmf_zoo.inference.hmm.shares import CLOSED_FORM, Shares, log_shares, update_shares
from nmf_zoo.structure import Array, UnitChainPrior, Unknown


def update_unit(
    prior: UnitChainPrior, unknowns: Mapping[str, Unknown], pairs: Array, old: Mapping[str, Array]
) -> dict[str, Array]:
    """The values of the hyperparameters, alpha at its best given pairs (K, 2): towards the nearer end, or away."""
    counts: Shares = {"alpha": (pairs[:, :1], pairs[:, 1:])}
    values = update_shares(prior, unknowns, counts, old)
    if all(own.prior.kind in CLOSED_FORM for own in unknowns.values()):
        return values
    return climb(lambda v: log_chain(prior, unknowns, counts, v), prior, unknowns, (old, values))


def log_chain(prior: UnitChainPrior, unknowns: Mapping[str, Unknown], counts: Shares, values) -> float:
    """What the M-step maximises, up to what does not depend on alpha."""
    return log_shares(counts, (prior.alpha.resolve(values),)) + log_priors(unknowns, values)

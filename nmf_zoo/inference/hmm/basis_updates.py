"""The M-step of the basis chain: p, q and the initial law from the expected transitions.

Of p, its stays and its leaves are the expected transitions 0->0 and 0->1; of q, 1->1 and 1->0; of the initial law, on
and off at the first time. Where the initial law is a number (Yildirim, Cemgil, Singh 2012, section 4.1, with
the states *left* in the denominators), each is a share of its own: stays / (stays + leaves), with the counts of a beta
prior added, over all components and roles that the unknown serves. A stationary initial law ties p and q together::

    sum stays log p + leaves log(1 - p) + ... + on log r + off log(1 - r),   r = (1 - p) / (2 - p - q)

whose maximum is found numerically.
"""

from __future__ import annotations

from collections.abc import Mapping

from nmf_zoo.inference.hmm.climb import climb, log_priors
from nmf_zoo.inference.hmm.shares import CLOSED_FORM, Shares, log_shares, update_shares
from nmf_zoo.structure import Array, BasisChainPrior, Unknown


def count(pairs: Array, first: Array) -> Shares:
    """From the expected transitions (K, 4) and P(on) at the first time (K, 1)."""
    stay_off, turn_on, turn_off, stay_on = pairs.T[:, :, None]
    return {"p": (stay_off, turn_on), "q": (stay_on, turn_off), "initial": (first, 1.0 - first)}


def update_basis(
    prior: BasisChainPrior, unknowns: Mapping[str, Unknown], pairs: Array, first: Array, old: Mapping[str, Array]
) -> dict[str, Array]:
    """The values of the hyperparameters, those of the chain at their best."""
    counts = count(pairs, first)
    values = update_shares(prior, unknowns, counts, old)
    if not prior.is_stationary and all(own.prior.kind in CLOSED_FORM for own in unknowns.values()):
        return values
    return climb(lambda v: log_chain(prior, unknowns, counts, v), prior, unknowns, (old, values))


def log_chain(prior: BasisChainPrior, unknowns: Mapping[str, Unknown], counts: Shares, values) -> float:
    """What the M-step maximises: the expected log-density of the chains and the priors of their parameters."""
    return log_shares(counts, prior.law(values)) + log_priors(unknowns, values)

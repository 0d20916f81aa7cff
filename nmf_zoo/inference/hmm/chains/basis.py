"""Binary chains: what their paths count is the four transitions, and whether they begin on.

The M-step: of p, its stays and its leaves are the expected transitions 0->0 and 0->1; of q, 1->1 and 1->0; of
the initial law, on and off at the first time. Where the initial law is a number (Yildirim, Cemgil, Singh 2012, section
4.1, with the states *left* in the denominators), each is a share of its own: stays / (stays + leaves), with the counts
of a beta prior added, over all components and roles that the unknown serves. A stationary initial law ties p and q
together::

    sum stays log p + leaves log(1 - p) + ... + on log r + off log(1 - r),   r = (1 - p) / (2 - p - q)

whose maximum is found numerically.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from nmf_zoo.inference.hmm.chains.base import ChainFormulas, ChainSums, Values, row_sums
from nmf_zoo.inference.hmm.m_step import (
    CLOSED_FORM,
    ChainCounts,
    Shares,
    climb,
    log_priors,
    log_shares,
    update_shares,
)
from nmf_zoo.kernels.hmm.particles.laws import BASIS, Law
from nmf_zoo.structure import Array, BasisChainPrior, Unknown


class BasisFormulas(ChainFormulas):
    """Of binary chains."""

    code: ClassVar[int] = BASIS
    learned: ClassVar[tuple[str, ...]] = ("p", "q")

    def law_rows(self, prior: BasisChainPrior, values: Values) -> tuple[Sequence[Array], Sequence[Array]]:
        p, q, initial = prior.law(values)
        return (p, q), (initial,)

    def in_the_middle(self, law: Law) -> Law:
        p, q, _ = law.parameters
        return law._replace(initial=np.stack([(1.0 - p) / (2.0 - p - q), 0.0 * p]))

    def with_companion(self, h: Array) -> tuple[Array, Array]:
        h = (h > 0.5).astype(np.float64)
        return h, h.copy()

    def start_path(self, law: Law, k: int, n_times: int, generator: np.random.Generator) -> Array:
        """All on: the one path that no count makes impossible."""
        return np.ones(n_times)

    def sum_paths(self, h: Array, aux: Array) -> ChainSums:
        before, after = h[:, :-1], h[:, 1:]
        steps = [(before == a) & (after == b) for a in (0, 1) for b in (0, 1)]
        return ChainSums(h[:, :1].copy(), row_sums(steps), h.shape[1] - 1, np.zeros((len(h), 1)))

    def log_paths(self, prior: BasisChainPrior, sums: ChainSums, values: Values) -> Array:
        p, q, initial = prior.law(values)
        stay_off, turn_on, turn_off, stay_on = sums.steps
        steps = stay_off * np.log(p) + turn_on * np.log1p(-p) + turn_off * np.log1p(-q) + stay_on * np.log(q)
        return steps + np.log(np.where(sums.first > 0.5, initial, 1.0 - initial))

    def events(self, sums: ChainSums) -> dict[str, Any]:
        begins = np.stack([sums.first, 1.0 - sums.first])
        return {"p": sums.steps[:2], "q": sums.steps[:1:-1], "initial": begins}

    def update(
        self, prior: BasisChainPrior, unknowns: Mapping[str, Unknown], counts: ChainCounts, old: Values
    ) -> dict[str, Array]:
        shares = count(counts.pairs, counts.first)
        values = update_shares(prior, unknowns, shares, old)
        if not prior.is_stationary and all(own.prior.kind in CLOSED_FORM for own in unknowns.values()):
            return values
        return climb(lambda v: log_basis_chain(prior, unknowns, shares, v), prior, unknowns, (old, values))


def count(pairs: Array, first: Array) -> Shares:
    """From the expected transitions (K, 4) and P(on) at the first time (K, 1)."""
    stay_off, turn_on, turn_off, stay_on = pairs.T[:, :, None]
    return {"p": (stay_off, turn_on), "q": (stay_on, turn_off), "initial": (first, 1.0 - first)}


def log_basis_chain(prior: BasisChainPrior, unknowns: Mapping[str, Unknown], counts: Shares, values: Values) -> float:
    """What the M-step maximises: the expected log-density of the chains and the priors of their parameters."""
    return log_shares(counts, prior.law(values)) + log_priors(unknowns, values)

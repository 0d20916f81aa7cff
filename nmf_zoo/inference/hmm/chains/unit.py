"""Chains inside (0, 1): what their paths count is steps towards the nearer end, and away from it.

The M-step: alpha is the share of moves towards the nearer end,
alpha = towards / (towards + away), summed over the components that share it (Yildirim, Cemgil, Singh 2012, section 4.2,
which leaves out that sum), with the counts of a beta prior added. The first time says nothing of alpha.
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
from nmf_zoo.kernels.hmm.particles.laws import UNIT, Law
from nmf_zoo.kernels.random.chain_draws import LARGEST, SMALLEST, unit_path
from nmf_zoo.structure import Array, UnitChainPrior, Unknown


class UnitFormulas(ChainFormulas):
    """Of chains inside (0, 1)."""

    code: ClassVar[int] = UNIT
    learned: ClassVar[tuple[str, ...]] = ("alpha",)

    def law_rows(self, prior: UnitChainPrior, values: Values) -> tuple[Sequence[Array], Sequence[Array]]:
        return (prior.alpha.resolve(values),), ()

    def with_companion(self, h: Array) -> tuple[Array, Array]:
        h = np.clip(h, SMALLEST, LARGEST)
        return h, 1.0 - h

    def inside(self, h: Array) -> Array:
        """What has rounded to 1 is the largest number below it."""
        return np.minimum(h, LARGEST)

    def start_path(self, law: Law, k: int, n_times: int, generator: np.random.Generator) -> Array:
        return unit_path(generator.random((2, n_times)), float(law.parameters[0, k]))

    def sum_paths(self, h: Array, aux: Array) -> ChainSums:
        is_low = h[:, :-1] <= aux[:, :-1]
        towards = np.where(is_low, h[:, 1:] <= h[:, :-1], aux[:, 1:] <= aux[:, :-1])
        return ChainSums(h[:, :1].copy(), row_sums([towards, ~towards]), h.shape[1] - 1, np.zeros((len(h), 1)))

    def log_paths(self, prior: UnitChainPrior, sums: ChainSums, values: Values) -> Array:
        alpha = prior.alpha.resolve(values)
        return sums.steps[0] * np.log(alpha) + sums.steps[1] * np.log1p(-alpha)

    def events(self, sums: ChainSums) -> dict[str, Any]:
        return {"alpha": sums.steps}

    def update(
        self, prior: UnitChainPrior, unknowns: Mapping[str, Unknown], counts: ChainCounts, old: Values
    ) -> dict[str, Array]:
        shares: Shares = {"alpha": (counts.pairs[:, :1], counts.pairs[:, 1:])}
        values = update_shares(prior, unknowns, shares, old)
        if all(own.prior.kind in CLOSED_FORM for own in unknowns.values()):
            return values
        return climb(lambda v: log_unit_chain(prior, unknowns, shares, v), prior, unknowns, (old, values))


def log_unit_chain(prior: UnitChainPrior, unknowns: Mapping[str, Unknown], counts: Shares, values: Values) -> float:
    """What the M-step maximises, up to what does not depend on alpha."""
    return log_shares(counts, (prior.alpha.resolve(values),)) + log_priors(unknowns, values)

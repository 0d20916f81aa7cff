"""The formulas of every kind of chain that engines run, one file each: the table that they are looked up in."""

from __future__ import annotations

from collections.abc import Mapping

from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.inference.hmm.chains.base import ChainFormulas, ChainSums, entries
from nmf_zoo.inference.hmm.chains.basis import BasisFormulas
from nmf_zoo.inference.hmm.chains.log_normal import LogNormalFormulas
from nmf_zoo.inference.hmm.chains.unit import UnitFormulas
from nmf_zoo.inference.hmm.m_step import ChainCounts
from nmf_zoo.structure import Array, BasisChainPrior, ChainPrior, Factor, LogNormalARPrior, UnitChainPrior

FORMULAS: dict[type[ChainPrior], ChainFormulas] = {
    BasisChainPrior: BasisFormulas(),
    UnitChainPrior: UnitFormulas(),
    LogNormalARPrior: LogNormalFormulas(),
}
CHAINS = tuple(FORMULAS)  # that particles can move by

__all__ = ["CHAINS", "ChainFormulas", "ChainSums", "entries", "formulas_of", "update_chain"]


def formulas_of(prior: object) -> ChainFormulas:
    """Those of the chain that H is."""
    found = FORMULAS.get(type(prior))  # type: ignore[arg-type]
    if found is None:
        words = " or ".join(f"{own.family}s" for own in FORMULAS)
        family = getattr(prior, "family", type(prior).__name__)
        raise UnsupportedModel(f"H is of the kind {family}, and its updates are for {words}")
    return found


def update_chain(factor: Factor, counts: ChainCounts, values: Mapping[str, Array]) -> dict[str, Array]:
    """The M-step: the values of the hyperparameters, those of the chain at their best."""
    unknowns = {unknown.name: unknown for unknown in factor.unknowns}
    return formulas_of(factor.prior).update(factor.prior, unknowns, counts, values) if unknowns else dict(values)

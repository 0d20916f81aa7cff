"""Which likelihoods and families of priors an engine's formulas are for: another one is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.structure import (
    BasisChainPrior,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    InverseGammaPrior,
    Likelihood,
    LogNormalARPrior,
    UnitChainPrior,
)

WORDS = {
    GammaPrior: "gamma",
    InverseGammaPrior: "inverse-gamma",
    BasisChainPrior: "binary chain",
    UnitChainPrior: "bounded chain",
    LogNormalARPrior: "log-normal chain",
}


def takes_likelihood(structure: Factorisation, taken: Sequence[type[Likelihood]]) -> Verdict:
    """CAN_RUN when X's likelihood is one of these."""
    likelihood = structure.likelihood
    if type(likelihood) in taken:
        return CAN_RUN
    words = " or ".join(own.family for own in taken) or "no"
    return Verdict(f"{likelihood.name} is {likelihood.family}, and its updates are for {words} data")


def takes_priors(structure: Factorisation, *families: type) -> Verdict:
    """CAN_RUN when every factor's prior, if it has one, is of one of these families."""
    for factor in (structure.W, structure.H):
        if not isinstance(factor.prior, (*families, Flat, Fixed)):
            found = WORDS.get(type(factor.prior), type(factor.prior).__name__)
            taken = " or ".join(WORDS[family] for family in families)
            article = "an" if found[0] in "aeiou" else "a"
            return Verdict(f"{factor.name} has {article} {found} prior, and its updates are for {taken} ones")
    return CAN_RUN

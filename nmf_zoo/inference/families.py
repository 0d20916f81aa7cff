"""Which likelihoods and families of priors an engine's formulas are for: another one is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.structure import (
    BasisChainPrior,
    Factorisation,
    GammaPrior,
    InverseGammaPrior,
    Likelihood,
    LogNormalARPrior,
    Proper,
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


def takes_priors(structure: Factorisation, family: type) -> Verdict:
    """CAN_RUN when every factor's prior, if it has one, is of this family."""
    for factor in (structure.W, structure.H):
        if isinstance(factor.prior, Proper) and not isinstance(factor.prior, family):
            found, taken = WORDS[type(factor.prior)], WORDS[family]
            article = "an" if found[0] in "aeiou" else "a"
            return Verdict(f"{factor.name} has {article} {found} prior, and its updates are for {taken} ones")
    return CAN_RUN

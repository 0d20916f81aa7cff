"""What engines of smooth chains ask of a model and of options that others have too."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.structure import Factorisation, Fixed, Flat, GammaPrior, InverseGammaPrior


def is_smooth(structure: Factorisation) -> Verdict:
    """CAN_RUN where H is a chain."""
    if structure.H.is_chain:
        return CAN_RUN
    return Verdict(f"{structure.H.name or 'H'} is no chain in time: its columns are independent given W")


def takes_weights(structure: Factorisation, *families: Any) -> Verdict:
    """CAN_RUN where W is gamma or known; without a prior, which engines refuse, or not, in words of their own."""
    W, taken = structure.W, families or (GammaPrior,)
    if isinstance(W.prior, (*taken, Fixed, Flat)):
        return CAN_RUN
    words = " or ".join(family.family for family in taken)
    return Verdict(f"{W.name} has a prior of the kind {W.prior.family}, and beside a chain its updates are for {words}")


def takes_weights_of_powers(structure: Factorisation) -> Verdict:
    """Inverse-gamma priors of W as well, which are conjugate to powers."""
    return takes_weights(structure, InverseGammaPrior, GammaPrior)


def has_no_zeros(structure: Factorisation) -> Verdict:
    """CAN_RUN where no observed power is 0: what its sources say of h has no bound where h is near 0."""
    zeros = int(np.sum(structure.data.observed_values == 0)) if structure.data is not None else 0
    if not zeros:
        return CAN_RUN
    name, H = structure.likelihood.name, structure.H
    return Verdict(
        f"{zeros} cells of {name} are 0, and under a {H.prior.family} of {H.name} the density has no bound as its rows "
        "fall to 0 there: raise them to a floor, or leave them out with mask="
    )


def takes_defaults_of_chains(structure: Factorisation, options: Any, *names: str) -> Verdict:
    """CAN_RUN when these options, which are for independent columns, are what they are unless said otherwise."""
    for name in names:
        found = getattr(options, name)
        if found != getattr(type(options), name):
            return Verdict(
                f"{name}={found!r} is for independent columns, and {structure.H.name} is a chain: leave it out"
            )
    return CAN_RUN

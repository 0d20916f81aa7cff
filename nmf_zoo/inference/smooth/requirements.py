"""What engines of smooth chains ask of a model and of options that others have too."""

from __future__ import annotations

from typing import Any

from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.structure import Factorisation, Fixed, Flat, GammaPrior


def is_smooth(structure: Factorisation) -> Verdict:
    """CAN_RUN where H is a chain."""
    if structure.H.is_chain:
        return CAN_RUN
    return Verdict(f"{structure.H.name or 'H'} is no chain in time: its columns are independent given W")


def takes_weights(structure: Factorisation) -> Verdict:
    """CAN_RUN where W is gamma or known; without a prior, which engines refuse, or not, in words of their own."""
    W = structure.W
    if isinstance(W.prior, GammaPrior | Fixed | Flat):
        return CAN_RUN
    return Verdict(f"{W.name} has a {W.prior.family} prior, and beside a chain its updates are for gamma ones")


def takes_defaults_of_chains(structure: Factorisation, options: Any, *names: str) -> Verdict:
    """CAN_RUN when these options, which are for independent columns, are what they are unless said otherwise."""
    for name in names:
        found = getattr(options, name)
        if found != getattr(type(options), name):
            return Verdict(
                f"{name}={found!r} is for independent columns, and {structure.H.name} is a chain: leave it out"
            )
    return CAN_RUN

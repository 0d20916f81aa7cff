"""What variational Bayes for powers can run."""

from __future__ import annotations

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.families import takes_priors
from nmf_zoo.inference.itakura_saito.gibbs_support import takes_powers
from nmf_zoo.inference.propriety import is_proper
from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.inference.vb import VB
from nmf_zoo.structure import Factorisation, GammaPrior, InverseGammaPrior, Unknown


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Powers; known hyperparameters, or free scales of inverse gammas; a posterior that exists."""
    verdict = takes_powers(structure) and takes_priors(structure, GammaPrior, InverseGammaPrior)
    verdict = verdict and _takes_options(options)
    return verdict and (_takes_unknowns(structure) if structure.unknowns else is_proper(structure))


def _takes_options(options: VB) -> Verdict:
    if options.order != "cemgil":
        return Verdict(f"order={options.order!r} is for counts: leave it out")
    if options.precision != "float64":
        return Verdict(f"precision={options.precision!r} is for counts: leave it out")
    return CAN_RUN


def _takes_unknowns(structure: Factorisation) -> Verdict:
    sampled = [name for name, unknown in structure.unknowns.items() if not unknown.prior.is_flat]
    if sampled:
        return Verdict(f"hyperparameter {', '.join(sampled)} has a prior: VB takes known or free hyperparameters")
    scales = {unknown.name for side in two_sides(structure) for unknown in free_scales(side)}
    others = [name for name in structure.unknowns if name not in scales or _is_elsewhere(structure, name)]
    if others:
        return Verdict(
            f"hyperparameter {', '.join(others)} is free: of powers' priors only inverse-gamma scales may be"
        )
    flat = [side.factor.name for side in two_sides(structure) if side.is_flat]
    if flat:
        return Verdict(f"{', '.join(flat)} has no prior and the other factor's scale is free: nothing pins the scale")
    return CAN_RUN


def free_scales(side: Side) -> list[Unknown]:
    prior = side.factor.prior
    return [prior.scale] if isinstance(prior, InverseGammaPrior) and isinstance(prior.scale, Unknown) else []


def _is_elsewhere(structure: Factorisation, name: str) -> bool:
    """Whether this scale is something else, too."""
    uses = [unknown.name for factor in (structure.W, structure.H) for unknown in factor.unknowns]
    scales = [unknown.name for side in two_sides(structure) for unknown in free_scales(side)]
    return uses.count(name) > scales.count(name)

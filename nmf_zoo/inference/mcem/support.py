"""Which models Monte-Carlo EM can run, and with which complete data."""

from __future__ import annotations

from typing import Any

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.gibbs_support import takes_counts, takes_gammas
from nmf_zoo.inference.layout import weigh
from nmf_zoo.inference.mcem.updates import why_not_c
from nmf_zoo.inference.sides import two_sides
from nmf_zoo.structure import Factorisation, Unknown


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Poisson counts: a free W under a gamma H, or gamma or known factors with free hyperparameters."""
    checks = (_check_counts, _check_factors, _check_hyperparameters, _check_complete)
    return next((verdict for verdict in (check(structure, options) for check in checks) if not verdict), CAN_RUN)


def complete_set(structure: Factorisation, options: Any) -> str:
    """ "C", "H" or "CH", and "" when W is not maximised over."""
    W, H = two_sides(structure)
    if not W.is_flat:
        return ""
    if options.complete != "auto":
        return options.complete
    return "CH" if why_not_c(H, weigh(structure)) else "C"


def _check_counts(structure: Factorisation, options: Any) -> Verdict:
    counts = takes_counts(structure)
    return takes_gammas(structure) if counts else counts


def _check_factors(structure: Factorisation, options: Any) -> Verdict:
    W, H = two_sides(structure)
    if W.is_flat and H.is_gamma:
        return CAN_RUN
    w, h = W.factor.name, H.factor.name
    if H.is_flat:
        if W.is_flat:
            return Verdict(f"{w} and {h} have no prior, so nothing can be integrated out: nz.gap gives {h} one")
        return Verdict(f"{h} has no prior and would have to be integrated out: pass the transpose of X to nz.gap")
    if not structure.unknowns:
        return Verdict(
            f"it maximises over a {w} without a prior, as in nz.gap, or over free hyperparameters, as in "
            "nz.gamma_nmf(alpha_w=nz.free()), and there are neither"
        )
    return CAN_RUN


def _check_hyperparameters(structure: Factorisation, options: Any) -> Verdict:
    sampled = [name for name, unknown in structure.unknowns.items() if not unknown.prior.is_flat]
    if sampled:
        return Verdict(f"hyperparameter {', '.join(sampled)} has a prior: it takes known or free hyperparameters")
    W, H = two_sides(structure)
    if not W.is_flat or not H.is_gamma:
        return CAN_RUN
    shape = H.gamma.shape
    scales = [p.name for role, p in H.gamma.parameters.items() if role != "shape" and isinstance(p, Unknown)]
    if scales and not (isinstance(shape, Unknown) and shape.name in scales):
        name, w = scales[0], W.factor.name
        return Verdict(f"{name} is free, and so is {w}: only their ratio matters (eq. 32), so give {name} a value")
    if scales:
        return Verdict(f"{scales[0]} is shape and rate at once: give the rate a value")
    return CAN_RUN


def _check_complete(structure: Factorisation, options: Any) -> Verdict:
    W, H = two_sides(structure)
    if not W.is_flat:
        if options.complete == "auto":
            return CAN_RUN
        return Verdict(f"complete= says how {W.factor.name} is updated, and it has a prior: leave it out")
    reason = why_not_c(H, weigh(structure)) if options.complete == "C" else ""
    return Verdict(f'the update of complete="C" does not hold ({reason}): use complete="CH"') if reason else CAN_RUN

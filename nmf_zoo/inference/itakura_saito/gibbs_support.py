"""What the composite Gibbs sampler can run."""

from __future__ import annotations

from typing import Any

from nmf_zoo.inference.engine import CAN_RUN, Verdict, has_data
from nmf_zoo.inference.families import takes_likelihood, takes_priors
from nmf_zoo.inference.propriety import is_proper
from nmf_zoo.inference.scale import takes_scale
from nmf_zoo.structure import Exponential, Factorisation, InverseGammaPrior

SCALES = 1e-305, 1e305  # of the largest power


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Powers with inverse-gamma (or proper flat) factors and proper hyperpriors."""
    checks = (takes_powers, takes_inverse_gammas, is_proper)
    return next((verdict for verdict in (check(structure) for check in checks) if not verdict), CAN_RUN)


def takes_inverse_gammas(structure: Factorisation) -> Verdict:
    """Priors that are conjugate to powers."""
    return takes_priors(structure, InverseGammaPrior)


def takes_powers(structure: Factorisation) -> Verdict:
    """What an engine that shares powers out among components asks of the data."""
    asked = takes_likelihood(structure, (Exponential,)) and has_data(structure)
    return asked and takes_scale(structure, "sharing powers out", *SCALES)

"""What Gibbs can run."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict, has_data
from nmf_zoo.inference.families import takes_likelihood, takes_priors
from nmf_zoo.inference.propriety import is_proper
from nmf_zoo.inference.scale import takes_scale
from nmf_zoo.structure import Factorisation, GammaPrior, Poisson

SCALES = 1e-250, 1e250  # of the largest count over its exposure
LARGEST_COUNT = 2.0**53  # above it float64 does not hold every integer


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Poisson counts with gamma (or proper flat) factors and proper hyperpriors."""
    checks = (takes_counts, takes_gammas, is_proper)
    return next((verdict for verdict in (check(structure) for check in checks) if not verdict), CAN_RUN)


def takes_gammas(structure: Factorisation) -> Verdict:
    """Priors that are conjugate to counts."""
    return takes_priors(structure, GammaPrior)


def takes_counts(structure: Factorisation) -> Verdict:
    """What an engine that allocates counts asks of the data."""
    for verdict in (takes_likelihood(structure, (Poisson,)), has_data(structure)):
        if not verdict:
            return verdict
    if not structure.is_integer:
        return Verdict(f"it allocates counts, and {structure.likelihood.name} holds {_describe_fractions(structure)}")
    largest = float(np.max(structure.data.observed_values, initial=0.0))
    if largest > LARGEST_COUNT:
        return Verdict(f"it allocates counts, and the largest {structure.likelihood.name} is {largest:g}, above 2^53")
    return takes_scale(structure, "allocation", *SCALES)


def _describe_fractions(structure: Factorisation) -> str:
    rows, cols, x = structure.observed_cells()
    at = np.flatnonzero(x != np.floor(x))
    place = structure.place(rows[at[0]], cols[at[0]])
    return f"values that are not integers ({len(at)} of them), the first {x[at[0]]:g} at {place}"

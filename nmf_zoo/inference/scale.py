"""Units that arithmetic can't take: what engines square or divide must neither overflow nor vanish."""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.structure import Factorisation, Known, Normal

UNITS = 1e-120, 1e120  # of an exposure and of sigma
SINGLE = 1e-30, 1e30  # of the largest cell, in single precision


def takes_scale(structure: Factorisation, name: str, least: float, most: float, precision: str = "float64") -> Verdict:
    """Whether the largest X, unless 0, also over exposure or sigma, lies in ``least`` to ``most``; they in `UNITS`."""
    if precision == "float32":
        name, (least, most) = f'{name}(precision="float32")', SINGLE
    largest = float(np.max(np.abs(structure.data.observed_values), initial=0.0))
    likelihood, of_X = structure.likelihood, f"the largest {structure.likelihood.name}"
    found, others = [(of_X, largest)], []
    with np.errstate(over="ignore"):
        if likelihood.exposure is not None:
            ends = np.min(likelihood.exposure), np.max(likelihood.exposure)
            found += [(f"{of_X} over an exposure of {end:g}", np.divide(largest, end)) for end in ends]
            others += [("an exposure", end) for end in ends]
        if isinstance(likelihood, Normal) and isinstance(likelihood.sigma, Known):
            sigma = float(likelihood.sigma.value)
            found.append((f"{of_X} over sigma", np.divide(largest, sigma)))
            others.append(("sigma", sigma))
    checks = [(*other, *UNITS) for other in others] + [(*one, least, most) for one in found if largest]
    for what, size, low, high in checks:
        if not low <= size <= high:
            return Verdict(f"{what} is {size:g}, and {name} takes {low:g} to {high:g}: change its unit")
    return CAN_RUN

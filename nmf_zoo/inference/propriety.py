"""Whether a posterior exists at all when a factor has no prior: what samplers must ask before they start.

A flat factor can grow while the other one shrinks. Its posterior is proper only when the other factor's prior pins the scale: for
GaP, W flat and H ~ Gamma(alpha, beta), when alpha_k N > F (MATH.md, section 3).
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.structure import Cells, Factor, Factorisation, Flat, GammaPrior


def is_proper(structure: Factorisation) -> Verdict:
    """CAN_RUN when the posterior is proper, else the reason why it is not."""
    free = [name for name, unknown in structure.unknowns.items() if unknown.prior.is_flat]
    if free:
        return Verdict(f"hyperparameter {', '.join(free)} is free: give it a proper prior to sample it")
    W, H = structure.W, structure.H
    flat = [factor for factor in (W, H) if isinstance(factor.prior, Flat)]
    if not flat:
        return CAN_RUN
    if len(flat) == 2:
        return Verdict(f"{W.name} and {H.name} have no prior: their posterior is improper")
    axis = 0 if flat[0] is W else 1
    unseen = count_unobserved(structure, axis)
    if unseen:
        return Verdict(f"{flat[0].name} has no prior and {unseen} of X's rows or columns along it have no observed cell")
    return _is_pinned(structure, flat[0], H if axis == 0 else W, axis)


def _is_pinned(structure: Factorisation, flat: Factor, other: Factor, axis: int) -> Verdict:
    if not isinstance(other.prior, GammaPrior):
        return CAN_RUN
    if other.unknowns:
        return Verdict(f"{flat.name} has no prior and the hyperparameters of {other.name} are unknown")
    total = np.broadcast_to(other.prior.shape.resolve({}), other.shape).sum(axis=1 - axis)
    if np.all(total > flat.shape[axis]):
        return CAN_RUN
    return Verdict(
        f"{flat.name} has no prior, so that its posterior is proper only if the gamma shapes of {other.name} sum to more "
        f"than {flat.shape[axis]} in each component; the least sum is {total.min():.6g}"
    )


def count_unobserved(structure: Factorisation, axis: int) -> int:
    """How many rows (axis 0) or columns (axis 1) of X have no observed cell."""
    data = structure.data
    if isinstance(data, Cells):
        listed = data.rows if axis == 0 else data.cols
        return 0 if data.is_complete else int(np.sum(np.bincount(listed, minlength=structure.shape[axis]) == 0))
    return 0 if data.mask is None else int(np.sum(~data.mask.any(axis=1 - axis)))

"""Whether a posterior exists at all when a factor has no prior: what samplers must ask before they start.

A flat factor can grow while the other one shrinks. Its posterior is proper only when the other factor's prior pins the
scale: for GaP, W flat and H ~ Gamma(alpha, beta), when alpha_k N > F. A half-normal density and a truncated normal one
are below a multiple of an exponential one and like it near 0, a gamma density of shape 1. Powers have rules of their
own (:mod:`nmf_zoo.inference.shared.propriety_of_powers`).

Of chains, log-normal ones pin it. Binary ones do not: a component is off at all times with a positive probability, and
then nothing is said of its weights. Nor do bounded ones: a row of H lies below e with a probability of order e, and
then the F weights of its component reach up to 1 / e.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nmf_zoo.inference.shared import propriety_of_powers as powers
from nmf_zoo.inference.shared.layout import weigh
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.structure import (
    Array,
    Cells,
    ChainPrior,
    Exponential,
    Factor,
    Factorisation,
    Fixed,
    Flat,
    HalfNormalPrior,
    InverseGammaPrior,
    Likelihood,
    Normal,
    Poisson,
    TruncatedNormalPrior,
)

OF_SHAPE_1 = (HalfNormalPrior, TruncatedNormalPrior)


def is_proper(structure: Factorisation) -> Verdict:
    """CAN_RUN when the posterior is proper, else the reason why it is not."""
    free = [name for name, unknown in structure.unknowns.items() if unknown.prior.is_flat]
    if free:
        return Verdict(f"hyperparameter {', '.join(free)} is free: give it a proper prior to sample it")
    rule = RULES.get(type(structure.likelihood))
    if rule is not None:
        return rule(structure)
    flat = _flat_factors(structure)
    if not flat:
        return CAN_RUN
    return Verdict(f"{flat[0].name} has no prior, and what {structure.likelihood.family} data hold is not known")


def _flat_factors(structure: Factorisation) -> list[Factor]:
    return [factor for factor in (structure.W, structure.H) if isinstance(factor.prior, Flat)]


def _is_scale_held(structure: Factorisation) -> Verdict:
    """Counts and squared error: one flat factor at the most, which the other one's prior and the data hold."""
    W, H = structure.W, structure.H
    flat = _flat_factors(structure)
    if not flat:
        return CAN_RUN
    if len(flat) == 2:
        return Verdict(f"{W.name} and {H.name} have no prior: their posterior is improper")
    axis = 0 if flat[0] is W else 1
    unseen = count_unobserved(structure, axis)
    if unseen:
        return Verdict(
            f"{flat[0].name} has no prior and {unseen} of X's rows or columns along it have no observed cell"
        )
    return _is_pinned(structure, flat[0], H if axis == 0 else W, axis)


# What is known of each likelihood; of another one, that two proper priors make a proper posterior.
RULES: dict[type[Likelihood], Callable[[Factorisation], Verdict]] = {
    Poisson: _is_scale_held,
    Normal: _is_scale_held,
    Exponential: powers.is_proper,
}


def _is_pinned(structure: Factorisation, flat: Factor, other: Factor, axis: int) -> Verdict:
    if isinstance(other.prior, Fixed):
        return _is_seen(structure, flat, other.prior.value, axis)
    if other.known is not None:
        return Verdict(f"{flat.variable} has no prior and some components of {other.name} are known: give it a prior")
    if other.unknowns:
        return Verdict(f"{flat.name} has no prior and the hyperparameters of {other.name} are unknown")
    if isinstance(other.prior, ChainPrior) and other.prior.never:
        return Verdict(
            f"{flat.name} has no prior, and nothing is known of the weights of a component that is "
            f"{other.prior.never}: give {flat.name} a prior"
        )
    if isinstance(other.prior, InverseGammaPrior | ChainPrior):
        # all moments of 1 / h are finite, and one seen cell holds a row's
        return CAN_RUN
    least = _least_share(structure, other, axis)
    if least > 1:
        return CAN_RUN
    shapes = "gamma shapes"
    if isinstance(other.prior, OF_SHAPE_1):
        shapes = f"cells (a {other.prior.family} one counts as a gamma shape of 1)"
    if is_complete(structure):
        return Verdict(
            f"{flat.name} has no prior, so that its posterior is proper only if the {shapes} of {other.name} "
            f"sum to more than {flat.shape[axis]} in each component; the least sum is {least * flat.shape[axis]:.6g}"
        )
    return Verdict(
        f"{flat.name} has no prior and cells are missing, so that its posterior is known to be proper only if the "
        f"{shapes} of {other.name}, each divided by the observed cells it serves, sum to more than 1 over the "
        f"observed cells of every row or column of X along {flat.name}; the least sum is {least:.6g}"
    )


def _least_share(structure: Factorisation, other: Factor, axis: int) -> float:
    """The least, over rows of the flat factor and components, of the sum of shape / cells served over the row's cells.

    Above 1 the posterior is proper, because integrating the other factor out leaves at most prod_f (r + w_f)^-share_f;
    of complete data this is alpha_k N > F itself, which is necessary too.
    """
    is_of_shape_1 = isinstance(other.prior, OF_SHAPE_1)
    shapes = np.broadcast_to(1.0 if is_of_shape_1 else other.prior.shape.resolve({}), other.shape)
    shapes = shapes.T if axis == 0 else shapes  # (columns along the other factor, K)
    if is_complete(structure):
        return float(shapes.sum(axis=0).min() / structure.shape[axis])
    rows, cols, _ = structure.observed_cells()
    own, across = (rows, cols) if axis == 0 else (cols, rows)
    served = np.bincount(across, minlength=structure.shape[1 - axis])
    shares = [np.bincount(own, (shapes[:, k] / np.maximum(served, 1))[across]) for k in range(structure.rank)]
    return float(np.min(shares))


def _is_seen(structure: Factorisation, flat: Factor, known: Array, axis: int) -> Verdict:
    """With a known other factor, every cell of the flat one must enter some observed mean."""
    weights = weigh(structure)
    total = weights.over_samples(known.T) if axis == 0 else weights.over_features(known)
    if np.all(total > 0):
        return CAN_RUN
    return Verdict(f"{flat.name} has no prior and the known factor is 0 wherever some of its cells would be seen")


def is_complete(structure: Factorisation) -> bool:
    """Every cell of X is observed."""
    return structure.data is None or structure.data.is_complete


def count_unobserved(structure: Factorisation, axis: int) -> int:
    """How many rows (axis 0) or columns (axis 1) of X have no observed cell."""
    data = structure.data
    if is_complete(structure):
        return 0
    if isinstance(data, Cells):
        listed = data.rows if axis == 0 else data.cols
        return int(np.sum(np.bincount(listed, minlength=structure.shape[axis]) == 0))
    return int(np.sum(~data.mask.any(axis=1 - axis)))

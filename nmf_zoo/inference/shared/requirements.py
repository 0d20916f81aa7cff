"""What engines ask of a model before they run: of its likelihood, chain, priors and data, and of its units.

An engine's formulas are for some likelihoods and families of priors, and another one is refused by name. What engines
square or divide must neither overflow nor vanish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nmf_zoo.runtime.engine import CAN_RUN, Verdict, has_data
from nmf_zoo.structure import (
    Array,
    Exponential,
    Factorisation,
    Fixed,
    Flat,
    GammaPrior,
    InverseGammaPrior,
    Likelihood,
    Offset,
    Poisson,
    ends_of,
)

UNITS = 1e-120, 1e120  # of an exposure and of sigma
SINGLE = 1e-30, 1e30  # of the largest cell, in single precision
COUNTS = 1e-250, 1e250  # of the largest count over its exposure
POWERS = 1e-305, 1e305  # of the largest power
LARGEST_COUNT = 2.0**53  # above it float64 does not hold every integer


def takes_likelihood(structure: Factorisation, taken: Sequence[type[Likelihood]]) -> Verdict:
    """CAN_RUN when X's likelihood is one of these."""
    likelihood = structure.likelihood
    if type(likelihood) in taken:
        return CAN_RUN
    words = " or ".join(own.family for own in taken) or "no"
    return Verdict(f"{likelihood.name} is {likelihood.family}, and its updates are for {words} data")


def takes_chain(structure: Factorisation, taken: Sequence[Any]) -> Verdict:
    """CAN_RUN when H is no chain in time, or one of these."""
    H = structure.H
    if not H.is_chain or type(H.prior) in taken:
        return CAN_RUN
    if not taken:
        return Verdict(f"the columns of {H.name} are a Markov chain, and it takes them for independent")
    words = " or ".join(f"{own.family}s" for own in taken)
    return Verdict(f"{H.name} is {_a(H.prior.family)}, and its updates are for {words}")


def takes_defaults(structure: Factorisation, options: Any, *names: str) -> Verdict:
    """CAN_RUN when these options are what they are unless said otherwise."""
    for name in names:
        found = getattr(options, name)
        if found != getattr(type(options), name):
            return Verdict(f"{name}={found!r} is not for {structure.likelihood.family} data: leave it out")
    return CAN_RUN


def takes_known(structure: Factorisation, does: bool) -> Verdict:
    """CAN_RUN when no factor has known components beside unknown ones, unless that is taken."""
    mixed = [factor for factor in (structure.W, structure.H) if factor.known is not None]
    if does or not mixed:
        return CAN_RUN
    known = int(np.sum(~mixed[0].known.are_free))
    return Verdict(f"{known} of the {structure.rank} components of {mixed[0].name} are known, and it takes all or none")


def knows_weights_only(structure: Factorisation) -> Verdict:
    """CAN_RUN when no component of H is known beside unknown ones: for passes that move whole columns of H."""
    H = structure.H
    if H.known is None:
        return CAN_RUN
    return Verdict(f"some components of {H.name} are known, and it takes known ones of W alone: exchange the factors")


def takes_priors(structure: Factorisation, *families: Any) -> Verdict:
    """CAN_RUN when every factor's prior, if it has one, is of one of these families."""
    for factor in (structure.W, structure.H):
        if not isinstance(factor.prior, (*families, Flat, Fixed)):
            taken = " or ".join(family.family for family in families)
            return Verdict(f"{factor.name} has {_a(factor.prior.family)} prior, and its updates are for {taken} ones")
    return CAN_RUN


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
    return takes_scale(structure, "allocation", *COUNTS)


def _describe_fractions(structure: Factorisation) -> str:
    rows, cols, x = structure.observed_cells()
    at = np.flatnonzero(x != np.floor(x))
    place = structure.place(rows[at[0]], cols[at[0]])
    return f"values that are not integers ({len(at)} of them), the first {x[at[0]]:g} at {place}"


def takes_inverse_gammas(structure: Factorisation) -> Verdict:
    """Priors that are conjugate to powers."""
    return takes_priors(structure, InverseGammaPrior)


def takes_powers(structure: Factorisation) -> Verdict:
    """What an engine that shares powers out among components asks of the data."""
    asked = takes_likelihood(structure, (Exponential,)) and has_data(structure)
    return asked and takes_scale(structure, "sharing powers out", *POWERS)


def takes_scale(structure: Factorisation, name: str, least: float, most: float, precision: str = "float64") -> Verdict:
    """Whether the largest X, unless 0, also over exposure or scale, lies in ``least`` to ``most``; they in `UNITS`."""
    if precision == "float32":
        name, (least, most) = f'{name}(precision="float32")', SINGLE
    largest = float(np.max(np.abs(structure.data.observed_values), initial=0.0))
    likelihood, of_X = structure.likelihood, f"the largest {structure.likelihood.name}"
    found, others = [(of_X, largest)], []
    with np.errstate(over="ignore"):
        if likelihood.exposure is not None:
            ends = ends_of(likelihood.exposure)
            found += [(f"{of_X} over an exposure of {end:g}", np.divide(largest, end)) for end in ends]
            others += [("an exposure", end) for end in ends]
        for of_scale, scale in likelihood.known_scales:
            found.append((f"{of_X} over {of_scale}", np.divide(largest, scale)))
            others.append((of_scale, scale))
        sums = [(f"the sum of {what}", float(np.sum(cells))) for what, cells in known_cells(structure)]
    checks = [(*other, *UNITS) for other in others] + [(*one, least, most) for one in found if largest]
    checks += [(*found, 0.0, most if precision == "float32" else POWERS[1]) for found in sums]
    for what, size, low, high in checks:
        if not low <= size <= high:
            return Verdict(f"{what} is {size:g}, and {name} takes {low:g} to {high:g}: change its unit")
    return CAN_RUN


def known_cells(structure: Factorisation) -> list[tuple[str, Array]]:
    """What the model gives of its factors: (words, values)."""
    found = []
    for factor in (structure.W, structure.H):
        if isinstance(factor.prior, Fixed):
            found.append((factor.name or "the known factor", factor.prior.value))
        elif factor.known is not None:
            found.append((f"known components of {factor.name}", factor.known.values))
    return found


def takes_units(name: str, exposure: Offset | None) -> Verdict:
    """Whether an exposure lies in `UNITS`."""
    for end in () if exposure is None else ends_of(exposure):
        if not UNITS[0] <= end <= UNITS[1]:
            return Verdict(f"an exposure is {end:g}, and {name} takes {UNITS[0]:g} to {UNITS[1]:g}: change its unit")
    return CAN_RUN


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"

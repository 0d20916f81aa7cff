"""Which models EM can run, and where it must hold a factor to columns that sum to one."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict, has_data
from nmf_zoo.inference.families import takes_priors
from nmf_zoo.inference.scale import takes_scale
from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.inference.squared_error import can_square
from nmf_zoo.structure import Factorisation, GammaPrior, Known, Normal, Poisson, Unknown

SCALES = 1e-120, 1e120  # of the largest cell


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Poisson or normal data with known hyperparameters, or the free rate of a GaP model."""
    if structure.data is None:
        return has_data(structure)
    checks = (
        *(_check_update, _check_families, _check_hyperparameters, _check_shapes, _check_free_rates, _check_normal),
        _check_scale,
    )
    return next((verdict for verdict in (check(structure, options) for check in checks) if not verdict), CAN_RUN)


def constrained(structure: Factorisation, mode: str) -> Side | None:
    """The factor without a prior that would grow for ever while the other shrinks, or None."""
    for flat, other in _flat_and_gamma(structure):
        shape = other.gamma.shape
        if other.factor.unknowns or (mode == "density" and isinstance(shape, Known) and np.any(shape.value <= 1.0)):
            return flat
    return None


def _flat_and_gamma(structure: Factorisation) -> list[tuple[Side, Side]]:
    W, H = two_sides(structure)
    return [(flat, other) for flat, other in ((W, H), (H, W)) if flat.is_flat and other.is_gamma]


def _check_update(structure: Factorisation, options: Any) -> Verdict:
    if options.update == "auto":
        return CAN_RUN
    family = structure.likelihood.family
    return Verdict(f'update={options.update!r} is for exponential data, and these are {family}: leave it at "auto"')


def _check_families(structure: Factorisation, options: Any) -> Verdict:
    return takes_priors(structure, GammaPrior)


def _check_hyperparameters(structure: Factorisation, options: Any) -> Verdict:
    """Free rates and means are estimated in GaP only, shapes nowhere: with the factors they have no joint maximum."""
    allowed = set()
    if isinstance(structure.likelihood, Poisson):
        for _, other in _flat_and_gamma(structure):
            second = [p for role, p in other.gamma.parameters.items() if role != "shape" and isinstance(p, Unknown)]
            allowed = {p.name for p in second if p.prior.is_flat and p != other.gamma.shape}
    allowed |= {unknown.name for unknown in structure.likelihood.unknowns if unknown.prior.is_flat}
    refused = [name for name in structure.unknowns if name not in allowed]
    if refused:
        return Verdict(
            f"hyperparameter {', '.join(refused)} is unknown, and estimated jointly with the factors it has no maximum"
        )
    return CAN_RUN


def _check_shapes(structure: Factorisation, options: Any) -> Verdict:
    for side in two_sides(structure):
        if not side.is_gamma or options.mode == "log":
            continue
        least = float(np.min(side.gamma.shape.resolve({})))
        if least < 1.0:
            name = side.factor.name
            return Verdict(f'the density of {name} has shape {least:g} < 1 and is unbounded at 0: use EM(mode="log")')
    return CAN_RUN


def _check_free_rates(structure: Factorisation, options: Any) -> Verdict:
    """As a component empties, its own free rate rises, and the density of its cells with it, whatever the data say."""
    for side in two_sides(structure):
        for unknown in side.factor.unknowns:
            per_component = side.turn(np.empty(np.broadcast_shapes(unknown.shape, (1, 1)))).shape[1] > 1
            if options.mode == "density" and per_component:
                return Verdict(
                    f"{unknown.name} is free for each component, and as one empties, the density of {side.factor.name} "
                    'has no bound: share it among the components or use EM(mode="log")'
                )
    return CAN_RUN


def _check_scale(structure: Factorisation, options: Any) -> Verdict:
    """Factors are at least FLOOR, and squares have to be finite."""
    return takes_scale(structure, "EM", *SCALES, options.precision)


def _check_normal(structure: Factorisation, options: Any) -> Verdict:
    if not isinstance(structure.likelihood, Normal):
        return CAN_RUN
    if options.inner not in (None, 1):
        return Verdict("inner= freezes expected sources, and a normal likelihood has none: leave it out")
    if options.precision != "float64":
        return Verdict("precision= rounds expected sources, and a normal likelihood has none: leave it out")
    for side in two_sides(structure):
        if side.is_gamma and (options.mode == "log" or np.any(side.gamma.shape.resolve({}) != 1.0)):
            return Verdict(
                f"squared-error updates take {side.factor.name} without a prior, or with a gamma prior of shape 1 and "
                'mode="density"'
            )
    for flat, other in _flat_and_gamma(structure):
        return Verdict(
            f"{flat.factor.name} has no prior, so it can grow while {other.factor.name} shrinks to 0: give both a prior"
        )
    sigma, factors = structure.likelihood.sigma, (structure.W, structure.H)
    if isinstance(sigma, Unknown) and structure.rank >= min(structure.shape) and not any(f.is_fixed for f in factors):
        return Verdict(
            f"{sigma.name} is free and rank {structure.rank} can fit X exactly, where the density has no bound: "
            f"lower the rank below {min(structure.shape)} or give {sigma.name}"
        )
    if not can_square(structure):
        return Verdict("sparse data with an exposure or a background would have to be made dense: pass X as an array")
    return CAN_RUN

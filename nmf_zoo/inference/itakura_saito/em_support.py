"""Which exponential models EM can run."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.families import takes_priors
from nmf_zoo.inference.itakura_saito.gibbs_support import takes_powers
from nmf_zoo.inference.scale import takes_scale
from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.structure import Cells, Factorisation, Fixed, GammaPrior, InverseGammaPrior

SCALES = 1e-120, 1e120  # of the largest power


def supports(structure: Factorisation, options: Any) -> Verdict:
    """Powers with known hyperparameters: free, inverse-gamma and most gamma factors."""
    verdict = takes_powers(structure) and takes_priors(structure, GammaPrior, InverseGammaPrior)
    checks = (_check_hyperparameters, _check_options, _check_gamma, _check_silence, _check_scale, _check_fixed)
    return next(
        (found for found in (verdict, *(check(structure, options) for check in checks if verdict)) if not found),
        CAN_RUN,
    )


def _check_hyperparameters(structure: Factorisation, options: Any) -> Verdict:
    if structure.unknowns:
        names = ", ".join(structure.unknowns)
        return Verdict(f"hyperparameter {names} is unknown, and estimated jointly with the factors it has no maximum")
    return CAN_RUN


def _check_options(structure: Factorisation, options: Any) -> Verdict:
    if options.inner not in (None, 1):
        return Verdict("inner= freezes expected sources, and exponential data refresh theirs: leave it out")
    if options.precision != "float64":
        return Verdict("precision= is for Poisson data, and powers span too many decades for float32: leave it out")
    return CAN_RUN


def _check_gamma(structure: Factorisation, options: Any) -> Verdict:
    """Below a shape of 1 the density has no bound at 0; up to 1, the other factor free, it wants to get there."""
    W, H = two_sides(structure)
    for side, other in ((W, H), (H, W)):
        least = float(np.min(side.prior({})[0])) if side.is_gamma and options.mode == "density" else np.inf
        name = side.factor.name
        if least < 1.0:
            return Verdict(f'the density of {name} has shape {least:g} < 1 and is unbounded at 0: use EM(mode="log")')
        if least == 1.0 and other.is_flat:
            return Verdict(
                f"{other.factor.name} has no prior, so it can grow while {name} shrinks to 0: give both a prior or use "
                'EM(mode="log")'
            )
    return CAN_RUN


def _check_silence(structure: Factorisation, options: Any) -> Verdict:
    free = [side.factor.name for side in two_sides(structure) if side.is_flat]
    values = structure.data.observed_values
    if free and structure.likelihood.background is None and not np.any(values):
        return Verdict(f"all power is 0, and {free[0]} has no prior: the density has no bound")
    return CAN_RUN


def _check_scale(structure: Factorisation, options: Any) -> Verdict:
    """Factors are at least FLOOR, and squares of means have to be finite."""
    return takes_scale(structure, "EM", *SCALES)


def _check_fixed(structure: Factorisation, options: Any) -> Verdict:
    """A known factor's row of zeros is a mean of 0 wherever that feature or sample was observed."""
    for side in two_sides(structure):
        if isinstance(side.factor.prior, Fixed):
            empty = np.flatnonzero(~np.any(side.turn(side.factor.prior.value) > 0.0, axis=1))
            if empty.size and np.any(_without_background(structure, side, empty)):
                where = structure.axes[1 if side.is_right else 0]
                return Verdict(
                    f"{side.factor.name or 'the known factor'} is all 0 at {where} {empty[0]}, so is the mean there"
                )
    return CAN_RUN


def _without_background(structure: Factorisation, side: Side, rows: np.ndarray) -> np.ndarray:
    """Whether the cells of some features or samples are observed without a background."""
    data = structure.data
    seen = np.ones(structure.shape, dtype=bool)
    if isinstance(data, Cells):
        seen = np.full(structure.shape, data.is_complete)
        seen[data.rows, data.cols] = True
    elif data.mask is not None:
        seen = data.mask
    if structure.likelihood.background is not None:
        seen = seen & (np.broadcast_to(structure.likelihood.background, structure.shape) == 0.0)
    return side.turn(seen)[rows]

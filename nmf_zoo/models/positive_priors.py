"""Priors of factors under a normal likelihood: none, gamma, half-normal, or normal and truncated at 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.errors import InputError
from nmf_zoo.models.hyperparameters import (
    GammaParameters,
    HalfNormalOrFlat,
    Hyperparameter,
    check_gamma,
    check_half_normal,
    check_hyperparameter,
    is_symbolic,
    labelled_numbers,
)
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.matrices import check_broadcast, span


@dataclass(frozen=True)
class GammaCells:
    """Gamma cells."""

    parameters: GammaParameters

    def declare(self, name: str, dims: tuple[str, ...]) -> TensorVariable:
        return pm.Gamma(name, **self.parameters.declare(), dims=dims)


@dataclass(frozen=True)
class TruncatedNormalCells:
    """Cells with a normal density about ``mu``, on [0, inf)."""

    mu: TensorVariable
    sigma: Hyperparameter

    def declare(self, name: str, dims: tuple[str, ...]) -> TensorVariable:
        return pm.TruncatedNormal(name, mu=self.mu, sigma=self.sigma.declare(), lower=0.0, dims=dims)


Positive = HalfNormalOrFlat | GammaCells | TruncatedNormalCells


def check_positive(suffix: str, inputs: Inputs, dims: tuple[str, str], **given: Any) -> Positive:
    """The prior of W (suffix "w") or H (suffix "h") that ``alpha``, ``beta``, ``mean``, ``mu`` and ``sigma`` say."""
    named = {role: value for role, value in given.items() if value is not None}
    of_gamma = [role for role in named if role in ("alpha", "beta", "mean")]
    of_normal = [role for role in named if role in ("mu", "sigma")]
    if of_gamma and of_normal:
        got = f"{of_gamma[0]}_{suffix} and {of_normal[0]}_{suffix} both"
        do = f"drop {of_normal[0]}_{suffix} for gamma cells, {of_gamma[0]}_{suffix} for normal ones"
        raise InputError(f"{of_normal[0]}_{suffix}", got, "the parameters of one prior", do)
    if of_gamma:
        alpha = 1.0 if given["alpha"] is None else given["alpha"]
        return GammaCells(check_gamma(suffix, inputs, alpha, given["beta"], given["mean"], dims))
    if "mu" not in named:
        return check_half_normal(suffix, inputs, given["sigma"], dims)
    if "sigma" not in named:
        raise InputError(f"mu_{suffix}", "no scale beside it", f"sigma_{suffix}", "give both, or drop it")
    sigma = check_hyperparameter(f"sigma_{suffix}", given["sigma"], dims, inputs)
    return TruncatedNormalCells(check_location(f"mu_{suffix}", given["mu"], dims, inputs), sigma)


def check_location(name: str, value: Any, dims: tuple[str, str], inputs: Inputs) -> TensorVariable:
    """Known finite numbers that broadcast to the factor."""
    if is_symbolic(value):
        raise InputError(name, "a variable", "known numbers", "engines read no unknown location of a truncated normal")
    array = labelled_numbers(name, value, dims, inputs)
    check_broadcast(name, array.shape, tuple(len(inputs.coords[dim]) for dim in dims))
    if not np.all(np.isfinite(array)):
        raise InputError(name, span(array), "finite numbers")
    return pt.constant(array, dtype="float64")

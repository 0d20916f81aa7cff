"""Hyperparameters with conjugate priors, in VB, EM and SMC: rates with gamma, means with inverse-gamma priors.

The cells v ~ Gamma(s, c u) of one factor or of both share an unknown u ~ Gamma(a, b): it is the rate itself (c = 1), or
1 / u is the mean (c = s). In VB the best factor of q, given q of the cells, is exact (Gopalan, Hofman and Blei 2015,
sec. 3)::

    q(u) = Gamma(A, B),     A = a + sum s,     B = b + sum c E[v]

and all that the cells' updates need of it is E[u] = A / B, which is kept as the hyperparameter's value. The bound has,
beside what it has at u = E[u], with E[log u] = psi(A) - log B::

    (A - a) (psi(A) - log A) - KL(q(u) || p(u))

EM has the value at which the joint density is highest, given the cells: of a rate u that is (A - 1) / B, of a mean
1 / u it is B / (A + 1), as in Tan and Fevotte (2013), and the densities of their logarithms are highest at A / B and
B / A.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
from scipy.special import psi

from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.inference.shared.hyperparameters import Moments, gamma_divergence
from nmf_zoo.kernels.random.keyed_rng import generator_of
from nmf_zoo.structure import Array, Factor, Factorisation, GammaPrior, Known, Unknown

LARGEST = 1e120  # of a particle's rate
CONJUGATE = {"rate": "gamma", "mean": "inverse_gamma"}  # role -> the prior that is conjugate


class Conjugate(NamedTuple):
    """One of them; arrays have the variable's shape.

    role : "rate" or "mean"; prior_shape, prior_rate : a and b of u; shape : A of q(u), which the data don't change
    """

    role: str
    prior_shape: Array
    prior_rate: Array
    shape: Array

    def value(self, u: Array) -> Array:
        """The variable, of u or back."""
        return u if self.role == "rate" else 1.0 / u

    def rate(self, value: Array) -> Array:
        """B of q(u), of the value that stands for it."""
        return self.shape / self.value(value)


def conjugates(structure: Factorisation) -> dict[str, Conjugate]:
    """Those of the model, by name."""
    found = {}
    for name, unknown in structure.unknowns.items():
        if unknown.prior.is_flat:
            continue
        uses = _uses(structure, name)
        first, second = (np.broadcast_to(arg, unknown.variable_shape) for arg in unknown.prior.args)
        shapes = (np.broadcast_to(use.prior.shape.resolve({}), use.factor.free_shape) for use in uses)
        total = sum(_over_cells(shape, use.unknown) for shape, use in zip(shapes, uses, strict=True))
        found[name] = Conjugate(uses[0].role, first, second, first + total)
    return found


def why_not(structure: Factorisation) -> str:
    """Why a hyperparameter with a prior has no exact factor of q; empty where all have one."""
    for name, unknown in structure.unknowns.items():
        if unknown.prior.is_flat:
            continue
        uses = _uses(structure, name)
        roles = {use.role for use in uses}
        if not uses or len(roles) > 1 or len(uses) > len({use.factor.name for use in uses}):
            return f"hyperparameter {name} has a prior and more than one role"
        if CONJUGATE.get(uses[0].role) != unknown.prior.kind:
            pairs = " and ".join(f"{kind.replace('_', '-')} priors of {role}s" for role, kind in CONJUGATE.items())
            return f"hyperparameter {name} has a prior, and not one of the conjugate ones, {pairs}"
        if not all(isinstance(use.prior.shape, Known) for use in uses):
            return f"hyperparameter {name} has a prior, and the shape beside it is unknown"
    return ""


def update_conjugates(
    found: Mapping[str, Conjugate], moments: list[Moments], values: Mapping[str, Array]
) -> dict[str, Array]:
    """The values with these at E[u], given q of the factors."""
    values = dict(values)
    for name, own in found.items():
        rate = own.prior_rate
        for part in moments:
            for use in _uses_in(part.factor, name):
                multiple = use.prior.shape.resolve({}) if own.role == "mean" else 1.0
                rate = rate + _over_cells(multiple * part.mean, use.unknown)
        values[name] = own.value(own.shape / rate)
    return values


def at_modes(found: Mapping[str, Conjugate], mode: str) -> dict[str, Conjugate]:
    """With shapes A such that :func:`update_conjugates` leads to modes: of the "density", or of that of the "log"."""
    shift = {"rate": -1.0, "mean": 1.0} if mode == "density" else {"rate": 0.0, "mean": 0.0}
    return {name: own._replace(shape=own.shape + shift[own.role]) for name, own in found.items()}


def log_hyperprior(structure: Factorisation, names: Iterable[str], mode: str, values: Mapping[str, Array]) -> float:
    """Log prior density of these, or of their logarithms."""
    total = 0.0
    for name in names:
        total += float(np.sum(structure.unknowns[name].prior.log_density(values[name])))
        if mode == "log":
            total += float(np.sum(np.log(values[name])))
    return total


def conjugate_bound(found: Mapping[str, Conjugate], values: Mapping[str, Array]) -> float:
    """What they add to the bound beside what it has at u = E[u]."""
    total = 0.0
    for name, own in found.items():
        spread = (own.shape - own.prior_shape) * (psi(own.shape) - np.log(own.shape))
        divergence = gamma_divergence(own.shape, own.rate(values[name]), own.prior_shape, own.prior_rate)
        total += float(np.sum(spread - divergence))
    return total


def draw_conjugates(
    found: Mapping[str, Conjugate], values: Mapping[str, Array], draws: int, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(draws of q by name, the parameters of each q(u))"""
    generator = generator_of(key)
    drawn: dict[str, Array] = {}
    parameters: dict[str, Array] = {}
    for name, own in found.items():
        rate = own.rate(values[name])
        drawn[name] = own.value(generator.gamma(own.shape, 1.0, (draws, *own.shape.shape)) / rate)
        parameters |= {f"{name}_shape": np.array(own.shape), f"{name}_rate": rate}
    return drawn, parameters


# -- many values at once: particles ----------------------------------------------------------------------------------


def draw_hyperpriors(found: Mapping[str, Conjugate], n: int, generator: np.random.Generator) -> dict[str, Array]:
    """(n, *variable_shape) draws of each from its prior."""
    return {
        name: own.value(_within(generator.gamma(own.prior_shape, 1.0, (n, *own.shape.shape)) / own.prior_rate))
        for name, own in found.items()
    }


def draw_given_cells(
    found: Mapping[str, Conjugate], cells: Sequence[tuple[Factor, Array]], generator: np.random.Generator
) -> dict[str, Array]:
    """A draw of each given the factors' cells v, (n, *factor.shape) each: u ~ Gamma(A, B) with v for E[v]."""
    values = {}
    for name, own in found.items():
        rate = own.prior_rate[None]
        for factor, array in cells:
            for use in _uses_in(factor, name):
                multiple = use.prior.shape.resolve({}) if own.role == "mean" else 1.0
                padded = (1,) * (2 - len(use.unknown.shape)) + use.unknown.shape
                own_cells = sum_to(multiple * array, (len(array), *padded))
                rate = rate + own_cells.reshape(len(array), *use.unknown.variable_shape)
        values[name] = own.value(_within(generator.gamma(np.broadcast_to(own.shape, rate.shape)) / rate))
    return values


def _within(u: Array) -> Array:
    """Where rates, cells and products of two cells are numbers."""
    return np.clip(u, 1.0 / LARGEST, LARGEST)


def rates_of(factor: Factor, values: Mapping[str, Array], n: int) -> Array:
    """(n, *factor.shape) rates of a gamma prior, at n values of the hyperparameters."""
    prior = cast(GammaPrior, factor.prior)
    shape = prior.shape.resolve({})
    second = prior.mean if prior.mean is not None else prior.rate
    assert second is not None
    if isinstance(second, Known):
        own = second.value
    else:
        own = values[second.name].reshape(n, *(1,) * (2 - len(second.shape)), *second.shape)
    return np.broadcast_to(own if prior.mean is None else shape / own, (n, *factor.shape))


# -- where they enter ------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a hyperparameter enters."""

    factor: Factor
    prior: GammaPrior
    role: str
    unknown: Unknown


def _uses(structure: Factorisation, name: str) -> list[Place]:
    return [*_uses_in(structure.W, name), *_uses_in(structure.H, name)]


def _uses_in(factor: Factor, name: str) -> list[Place]:
    if not isinstance(factor.prior, GammaPrior):
        return []
    parameters = factor.prior.parameters.items()
    return [
        Place(factor, factor.prior, role, own)
        for role, own in parameters
        if isinstance(own, Unknown) and own.name == name
    ]


def _over_cells(cells: Array, unknown: Unknown) -> Array:
    """Sums over the cells that share an entry, in the variable's shape."""
    return sum_to(cells, unknown.shape).reshape(unknown.variable_shape)

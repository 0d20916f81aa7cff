"""Hyperparameters with conjugate priors, in VB, EM, Gibbs and SMC: rates with gamma, means with inverse-gamma priors.

The cells v ~ Gamma(s, c u) of one factor or of both share an unknown u ~ Gamma(a, b): it is the rate itself (c = 1), or
1 / u is the mean (c = s). In VB the best factor of q, given q of the cells, is exact (Gopalan, Hofman and Blei 2015,
sec. 3)::

    q(u) = Gamma(A, B),     A = a + sum s,     B = b + sum c E[v]

and all that the cells' updates need of it is E[u] = A / B, which is kept as the hyperparameter's value. The bound has,
beside what it has at u = E[u], with E[log u] = psi(A) - log B::

    (A - a) (psi(A) - log A) - KL(q(u) || p(u)) = a log(b u) - b u - log Gamma(a) + log Gamma(A) - A log A + A

at u = A / B: what the data don't change is computed once.

Half-normal cells, with a precision u (c = 1) or a variance 1 / u, are alike with v^2 / 2 in the place of v and s = 1/2:
where q is a point, that is in EM, and given the cells, in Gibbs.

EM has the value at which the joint density is highest, given the cells: of a rate or precision u that is (A - 1) / B,
of a mean or variance 1 / u it is B / (A + 1), as in Tan and Fevotte (2013), and the densities of their logarithms are
highest at A / B and B / A.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.inference.shared.hyperparameters import LARGE, Moments
from nmf_zoo.kernels.random.keyed_rng import generator_of
from nmf_zoo.structure import Array, Factor, Factorisation, GammaPrior, HalfNormalPrior, Known, Unknown

LARGEST = 1e120  # of a particle's rate
CONJUGATE = {  # role -> the prior that is conjugate
    "rate": "gamma",
    "mean": "inverse_gamma",
    "precision": "gamma",
    "variance": "inverse_gamma",
}
INVERSES = ("mean", "variance")  # roles of 1 / u
PLURALS: dict[type, dict[str, str]] = {
    GammaPrior: {"rate": "rates", "mean": "means"},
    HalfNormalPrior: {"precision": "precisions", "variance": "variances"},
}


class Conjugate(NamedTuple):
    """One of them; arrays have the variable's shape.

    role : of `CONJUGATE`; prior_shape, prior_rate : a and b of u; shape : A of q(u), which the data don't change; own :
    of the bound, what depends on A and a alone, summed over the entries; uses : where it enters
    """

    role: str
    prior_shape: Array
    prior_rate: Array
    shape: Array
    own: float
    uses: list[HyperparameterPlace]

    def value(self, u: Array) -> Array:
        """The variable, of u or back."""
        return 1.0 / u if self.role in INVERSES else u

    def rate(self, value: Array) -> Array:
        """B of q(u), of the value that stands for it."""
        return self.shape / self.value(value)


def conjugates(structure: Factorisation) -> dict[str, Conjugate]:
    """Those of the model, by name."""
    found = {}
    for name, unknown in _of_factors(structure):
        uses = _uses(structure, name)
        first, second = (np.broadcast_to(arg, unknown.variable_shape) for arg in unknown.prior.args)
        shapes = (np.broadcast_to(use.shape, use.factor.free_shape) for use in uses)
        total = sum(_over_cells(shape, use.unknown) for shape, use in zip(shapes, uses, strict=True))
        own = float(np.sum(_stirling_rest(first + total) - gammaln(first)))
        found[name] = Conjugate(uses[0].role, first, second, first + total, own, uses)
    return found


def _stirling_rest(shape: Array) -> Array:
    """log Gamma(A) - A log A + A; its series where the terms are so large that their digits cancel."""
    is_large = shape > LARGE
    near, far = np.where(is_large, 1.0, shape), np.where(is_large, shape, LARGE)
    return np.where(is_large, np.log(2 * np.pi / far) / 2 + 1 / (12 * far), gammaln(near) - near * np.log(near) + near)


def why_not(structure: Factorisation) -> str:
    """Why a hyperparameter with a prior has no exact factor of q; empty where all have one."""
    for name, unknown in _of_factors(structure):
        uses = _uses(structure, name)
        kinds = {CONJUGATE.get(use.role) for use in uses}
        if not uses or len(kinds) > 1 or len(uses) > len({use.factor.name for use in uses}):
            return f"hyperparameter {name} has a prior and more than one role"
        if kinds != {unknown.prior.kind}:
            plurals = PLURALS[type(uses[0].prior)].items()
            pairs = " and ".join(f"{CONJUGATE[role].replace('_', '-')} priors of {own}" for role, own in plurals)
            return f"hyperparameter {name} has a prior, and not one of the conjugate ones, {pairs}"
        if any(isinstance(use.prior, GammaPrior) and not isinstance(use.prior.shape, Known) for use in uses):
            return f"hyperparameter {name} has a prior, and the shape beside it is unknown"
    return ""


def _of_factors(structure: Factorisation) -> list[tuple[str, Unknown]]:
    """Unknowns of the factors' priors that have priors of their own."""
    of_likelihood = {unknown.name for unknown in structure.likelihood.unknowns}
    found = structure.unknowns.items()
    return [(name, own) for name, own in found if not own.prior.is_flat and name not in of_likelihood]


def update_conjugates(
    found: Mapping[str, Conjugate], moments: list[Moments], values: Mapping[str, Array]
) -> dict[str, Array]:
    """The values with these at E[u], given q of the factors."""
    values, means = dict(values), {part.factor.name: part.mean for part in moments}
    for name, own in found.items():
        rate = own.prior_rate
        for use in own.uses:
            rate = rate + _over_cells(use.of_cells(means[use.factor.name]), use.unknown)
        values[name] = own.value(own.shape / rate)
    return values


def at_modes(found: Mapping[str, Conjugate], mode: str) -> dict[str, Conjugate]:
    """With shapes A such that :func:`update_conjugates` leads to modes: of the "density", or of that of the "log"."""

    def shift(own: Conjugate) -> float:
        return 0.0 if mode == "log" else 1.0 if own.role in INVERSES else -1.0

    return {name: own._replace(shape=own.shape + shift(own)) for name, own in found.items()}


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
        scaled = own.prior_rate * own.value(values[name])  # b u
        total += own.own + float((own.prior_shape * np.log(scaled) - scaled).sum())
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
    values: dict[str, Array] = {}
    of_factors = {factor.name: array for factor, array in cells}
    for name, own in found.items():
        rate = own.prior_rate[None]
        for use in own.uses:
            array = of_factors[use.factor.name]
            padded = (1,) * (2 - len(use.unknown.shape)) + use.unknown.shape
            own_cells = sum_to(use.of_cells(array), (len(array), *padded))
            rate = rate + use.unknown.entries(own_cells.reshape(len(array), *use.unknown.shape))
        values[name] = own.value(_within(generator.gamma(np.broadcast_to(own.shape, rate.shape)) / rate))
    return values


def _within(u: Array) -> Array:
    """Where rates, cells and products of two cells are numbers."""
    return np.clip(u, 1.0 / LARGEST, LARGEST)


def rates_of(factor: Factor, values: Mapping[str, Array], n: int) -> Array:
    """(n, *factor.free_shape) rates of a gamma prior, or precisions of a half-normal one, at n values."""
    prior = cast(GammaPrior | HalfNormalPrior, factor.prior)
    second = {role: own for role, own in prior.parameters.items() if role != "shape"}
    ((role, parameter),) = second.items()
    if isinstance(parameter, Known):
        own = parameter.value
    else:
        own = parameter.whole(values[parameter.name])
        own = own.reshape(n, *(1,) * (2 - len(parameter.shape)), *parameter.shape)
    if role in INVERSES:
        own = (prior.shape.resolve({}) if isinstance(prior, GammaPrior) else 1.0) / own
    elif role == "sigma":
        own = own**-2.0
    return np.broadcast_to(own, (n, *factor.free_shape))


# -- where they enter ------------------------------------------------------------------------------------------------


class HyperparameterPlace(NamedTuple):
    """Where a hyperparameter enters."""

    factor: Factor
    prior: GammaPrior | HalfNormalPrior
    role: str
    unknown: Unknown

    @property
    def shape(self) -> Array:
        """s of the cells."""
        return self.prior.shape.resolve({}) if isinstance(self.prior, GammaPrior) else np.array(0.5)

    def of_cells(self, cells: Array) -> Array:
        """c v, or v^2 / 2."""
        if isinstance(self.prior, HalfNormalPrior):
            return np.square(cells) / 2
        return self.shape * cells if self.role == "mean" else cells


def _uses(structure: Factorisation, name: str) -> list[HyperparameterPlace]:
    return [
        HyperparameterPlace(factor, factor.prior, role, own)
        for factor in (structure.W, structure.H)
        if isinstance(factor.prior, GammaPrior | HalfNormalPrior)
        for role, own in factor.prior.parameters.items()
        if isinstance(own, Unknown) and own.name == name
    ]


def _over_cells(cells: Array, unknown: Unknown) -> Array:
    """Sums over the cells that share an entry, in the variable's shape; those of rows or columns as products."""
    rows, cols = (1,) * (2 - len(unknown.shape)) + unknown.shape
    if cols == 1 < rows:
        return unknown.entries((cells @ np.ones(cells.shape[1])).reshape(unknown.shape))
    if rows == 1 < cols:
        return unknown.entries((np.ones(cells.shape[0]) @ cells).reshape(unknown.shape))
    return unknown.entries(sum_to(cells, unknown.shape))

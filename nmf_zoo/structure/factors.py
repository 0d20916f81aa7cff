"""The two factors of the product and their priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.chains import ChainPrior
from nmf_zoo.structure.covariates import Covariates
from nmf_zoo.structure.parameters import (
    Array,
    Known,
    Parameter,
    Unknown,
    log_gamma_density,
    log_half_normal_density,
    log_inverse_gamma_density,
    log_truncated_normal_density,
)


@dataclass(frozen=True)
class Flat:
    """No prior: density 1 on [0, inf). Optimisers maximise it."""

    family: ClassVar[str] = "free"


@dataclass(frozen=True, kw_only=True)
class GammaPrior:
    """Independent Gamma(shape, rate) cells, with the rate given directly or as shape / mean.

    Attributes
    ----------
    shape : Parameter
    rate : Parameter or None, in the (shape, rate) parametrisation
    mean : Parameter or None, in the (shape, mean) parametrisation; exactly one of ``rate`` and ``mean`` is given
    """

    family: ClassVar[str] = "gamma"
    distribution: ClassVar[str] = "Gamma"
    shape: Parameter
    rate: Parameter | None = None
    mean: Parameter | None = None

    def __post_init__(self):
        if (self.rate is None) == (self.mean is None):
            raise ValueError("GammaPrior: got rate and mean both given or both missing; expected exactly one of them")

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by role: shape and rate, or shape and mean."""
        if self.mean is not None:
            return {"shape": self.shape, "mean": self.mean}
        assert self.rate is not None
        return {"shape": self.shape, "rate": self.rate}

    def shape_and_rate(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """(shape, rate) as arrays that broadcast to the factor, given the values of the unknowns."""
        shape = self.shape.resolve(values)
        if self.mean is None:
            return shape, self.rate.resolve(values)
        return shape, shape / self.mean.resolve(values)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        shape, rate = self.shape_and_rate(values)
        return float(np.sum(log_gamma_density(factor, shape, rate)))


@dataclass(frozen=True, kw_only=True)
class LogLinearGammaPrior:
    """Gamma cells of H whose scale depends on covariates of the samples: h = exp(slopes . covariates) g, g gamma.

    Attributes
    ----------
    base : the prior of g, and of samples whose covariates are 0
    covariates : with the slopes
    """

    family: ClassVar[str] = "log-linear gamma"
    distribution: ClassVar[str] = "Gamma"
    base: GammaPrior
    covariates: Covariates

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the base by role, and the slopes."""
        return {**self.base.parameters, "slopes": self.covariates.variable}

    def shape_and_rate(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """(shape, rate) as arrays that broadcast to the factor, given the values of the unknowns."""
        shape, rate = self.base.shape_and_rate(values)
        return shape, rate / self.covariates.effects(values)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        shape, rate = self.shape_and_rate(values)
        return float(np.sum(log_gamma_density(factor, shape, rate)))


@dataclass(frozen=True, kw_only=True)
class InverseGammaPrior:
    """Independent InverseGamma(shape, scale) cells: density proportional to v^(-shape - 1) exp(-scale / v).

    Attributes
    ----------
    shape, scale : Parameter
    """

    family: ClassVar[str] = "inverse-gamma"
    distribution: ClassVar[str] = "InverseGamma"
    shape: Parameter
    scale: Parameter

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by role."""
        return {"shape": self.shape, "scale": self.scale}

    def shape_and_scale(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """(shape, scale) as arrays that broadcast to the factor, given the values of the unknowns."""
        return self.shape.resolve(values), self.scale.resolve(values)

    @property
    def of_inverses(self) -> GammaPrior:
        """The prior of 1 / v: the scale becomes a rate."""
        return GammaPrior(shape=self.shape, rate=self.scale)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        return float(np.sum(log_inverse_gamma_density(factor, *self.shape_and_scale(values))))


@dataclass(frozen=True, kw_only=True)
class HalfNormalPrior:
    """Independent cells |v|, v normal with mean 0: density proportional to exp(-v^2 / (2 sigma^2)).

    Attributes
    ----------
    sigma, variance, precision : Parameter or None; exactly one is given: sigma, sigma^2 or 1 / sigma^2
    """

    family: ClassVar[str] = "half-normal"
    distribution: ClassVar[str] = "HalfNormal"
    sigma: Parameter | None = None
    variance: Parameter | None = None
    precision: Parameter | None = None

    def __post_init__(self):
        if len(self.parameters) != 1:
            got = ", ".join(self.parameters) or "none of them"
            raise ValueError(f"HalfNormalPrior: got {got}; expected exactly one of sigma, variance and precision")

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameter by its role."""
        roles = {"sigma": self.sigma, "variance": self.variance, "precision": self.precision}
        return {role: parameter for role, parameter in roles.items() if parameter is not None}

    def precision_of(self, values: Mapping[str, Array]) -> Array:
        """1 / sigma^2 as an array that broadcasts to the factor, given the values of the unknowns."""
        ((role, parameter),) = self.parameters.items()
        value = parameter.resolve(values)
        return {"sigma": lambda: value**-2.0, "variance": lambda: 1.0 / value, "precision": lambda: value}[role]()

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        return float(np.sum(log_half_normal_density(factor, self.precision_of(values) ** -0.5)))


@dataclass(frozen=True, kw_only=True)
class TruncatedNormalPrior:
    """Independent cells, normal about mu and truncated to [0, inf): density prop. to exp(-(v - mu)^2 / (2 sigma^2)).

    Attributes
    ----------
    mu, sigma : Known
    """

    family: ClassVar[str] = "truncated normal"
    distribution: ClassVar[str] = "TruncatedNormal"
    mu: Known
    sigma: Known

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by role."""
        return {"mu": self.mu, "sigma": self.sigma}

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        mu, sigma = self.mu.value, self.sigma.value
        return float(np.sum(log_truncated_normal_density(factor, mu, sigma)))


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A factor whose value is known (plain data, or ``pm.do``)."""

    family: ClassVar[str] = "known"
    value: Array


Proper = GammaPrior | LogLinearGammaPrior | InverseGammaPrior | HalfNormalPrior | TruncatedNormalPrior | ChainPrior
Prior = Flat | Proper | Fixed


@dataclass(frozen=True, kw_only=True)
class KnownComponents:
    """The components of a factor whose values are known, beside those of a free variable.

    Attributes
    ----------
    variable : name of the free variable, which holds the other components
    values : (F, K) or (K, N) in our orientation, 0 where components are free
    free : which components the free variable holds, one after the other
    axis : of the components: 1 of the left factor, 0 of the right one
    """

    variable: str
    values: Array
    free: slice
    axis: int

    def part(self, whole: Array) -> Array:
        """The free components of a factor (..., F, K) or (..., K, N) in our orientation: a view."""
        return whole[..., self.free] if self.axis == 1 else whole[..., self.free, :]

    def whole(self, part: Array) -> Array:
        """The factor whose free components are these."""
        out = np.array(np.broadcast_to(self.values, (*part.shape[:-2], *self.values.shape)))
        self.part(out)[...] = part
        return out

    @property
    def shape(self) -> tuple[int, int]:
        """Of the free components, in our orientation."""
        rows, cols = self.part(self.values).shape
        return rows, cols

    @property
    def are_free(self) -> Array:
        """(K,) bool"""
        found = np.zeros(self.values.shape[self.axis], dtype=bool)
        found[self.free] = True
        return found


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One factor of the product.

    Attributes
    ----------
    name : the model's variable (of a fixed factor: its data's name, or ""; with known components the Deterministic)
    shape : (F, K) for the left factor, (K, N) for the right one
    prior : Flat, GammaPrior, InverseGammaPrior, HalfNormalPrior, TruncatedNormalPrior, Fixed, and of H alone
        LogLinearGammaPrior or a chain in time; parameter arrays broadcast to ``shape``, with known components to the
        shape of the others
    transposed : the model's variable is the transpose of this factor
    known : the components that are known, where others are not
    """

    name: str
    shape: tuple[int, int]
    prior: Prior
    transposed: bool = False
    known: KnownComponents | None = None

    @property
    def is_fixed(self) -> bool:
        return isinstance(self.prior, Fixed)

    @property
    def is_free(self) -> bool:
        """Nothing of it is known."""
        return not self.is_fixed and self.known is None

    @property
    def free_shape(self) -> tuple[int, int]:
        """Shape, in our orientation, of what has the prior: all, unless some components are known."""
        return self.shape if self.known is None else self.known.shape

    @property
    def is_chain(self) -> bool:
        return isinstance(self.prior, ChainPrior)

    @property
    def variable(self) -> str:
        """Name of the model's free variable."""
        return self.name if self.known is None else self.known.variable

    @property
    def variable_shape(self) -> tuple[int, int]:
        return self.shape[::-1] if self.transposed else self.shape

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Of what a posterior holds of this factor: the whole and, beside known components, the free variable."""
        if self.is_fixed:
            return {}
        if self.known is None:
            return {self.name: self.variable_shape}
        rows, cols = self.known.shape
        return {self.name: self.variable_shape, self.known.variable: (cols, rows) if self.transposed else (rows, cols)}

    def variables(self, whole: Array) -> dict[str, Array]:
        """The same arrays, of a value (..., F, K) or (..., K, N) in our orientation."""
        if self.is_fixed:
            return {}
        found = {self.name: self.orient(whole)}
        return found if self.known is None else found | {self.known.variable: self.orient(self.known.part(whole))}

    def value(self, values: Mapping[str, Array]) -> Array:
        """In our orientation, from the values of the model's variables: the whole's or the free variable's."""
        if isinstance(self.prior, Fixed):
            return self.prior.value
        if self.known is not None and self.name not in values:
            return self.known.whole(self.orient(np.asarray(values[self.known.variable], dtype=np.float64)))
        return self.orient(np.asarray(values[self.name], dtype=np.float64))

    def orient(self, array: Array) -> Array:
        """Turn the last two axes from our orientation to the model variable's, or back."""
        return np.swapaxes(array, -1, -2) if self.transposed else array

    def orient_dims(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """The model variable's dims in our orientation."""
        return dims[::-1] if self.transposed else dims

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        """Log prior density at ``factor`` (our orientation); 0 where there is no prior."""
        factor = factor if self.known is None else self.known.part(factor)
        return self.prior.log_density(factor, values) if isinstance(self.prior, Proper) else 0.0

    @cached_property
    def unknowns(self) -> list[Unknown]:
        if not isinstance(self.prior, Proper):
            return []
        return [p for p in self.prior.parameters.values() if isinstance(p, Unknown)]

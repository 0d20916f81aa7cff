"""The two factors of the product and their priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.chains import ChainPrior
from nmf_zoo.structure.parameters import Array, Parameter, Unknown, log_gamma_density, log_inverse_gamma_density


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
class InverseGammaPrior:
    """Independent InverseGamma(shape, scale) cells: density proportional to v^(-shape - 1) exp(-scale / v).

    Attributes
    ----------
    shape, scale : Parameter
    """

    family: ClassVar[str] = "inverse-gamma"
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
class Fixed:
    """A factor whose value is known (plain data, or ``pm.do``)."""

    family: ClassVar[str] = "known"
    value: Array


Proper = GammaPrior | InverseGammaPrior | ChainPrior
Prior = Flat | Proper | Fixed


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One factor of the product.

    Attributes
    ----------
    name : the model's variable (of a fixed factor: its data's name, or "")
    shape : (F, K) for the left factor, (K, N) for the right one
    prior : Flat, GammaPrior, InverseGammaPrior, a chain in time (H), Fixed; parameter arrays broadcast to ``shape``
    transposed : the model's variable is the transpose of this factor
    """

    name: str
    shape: tuple[int, int]
    prior: Prior
    transposed: bool = False

    @property
    def is_fixed(self) -> bool:
        return isinstance(self.prior, Fixed)

    @property
    def is_chain(self) -> bool:
        return isinstance(self.prior, ChainPrior)

    @property
    def variable_shape(self) -> tuple[int, int]:
        return self.shape[::-1] if self.transposed else self.shape

    def orient(self, array: Array) -> Array:
        """Turn the last two axes from our orientation to the model variable's, or back."""
        return np.swapaxes(array, -1, -2) if self.transposed else array

    def orient_dims(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """The model variable's dims in our orientation."""
        return dims[::-1] if self.transposed else dims

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        """Log prior density at ``factor`` (our orientation); 0 where there is no prior."""
        return self.prior.log_density(factor, values) if isinstance(self.prior, Proper) else 0.0

    @property
    def unknowns(self) -> list[Unknown]:
        if not isinstance(self.prior, Proper):
            return []
        return [p for p in self.prior.parameters.values() if isinstance(p, Unknown)]

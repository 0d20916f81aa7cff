"""Covariates of samples: what multiplies the prior scale of H, log-linear in slopes that are unknowns of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.parameters import Array, Unknown


@dataclass(frozen=True, kw_only=True)
class UnknownOfCovariates(Unknown):
    """The variable of slopes, whose entries broadcast to no factor."""

    tied: ClassVar[str] = "one for each component and covariate"


@dataclass(frozen=True, kw_only=True)
class Covariates:
    """exp(slopes @ design.T), (K, N), with normal priors of the slopes.

    Attributes
    ----------
    variable : the slopes, (K, J) in the model, or (J, K) if ``transposed``; an axis of one may be left out
    design : (N, J), the covariates of each sample
    transposed : the variable has covariates first
    """

    variable: UnknownOfCovariates
    design: Array
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(K, J)"""
        n_covariates = self.design.shape[1]
        return int(np.prod(self.variable.variable_shape, dtype=int)) // n_covariates, n_covariates

    def by_component(self, array: Array) -> Array:
        """(K, J) from an array that broadcasts to the variable."""
        whole = np.broadcast_to(np.asarray(array, dtype=np.float64), self.variable.variable_shape)
        return whole.reshape(self.shape[::-1]).T if self.transposed else whole.reshape(self.shape)

    def as_variable(self, own: Array) -> Array:
        """The variable's value, from (K, J)."""
        return np.array(own.T if self.transposed else own, order="C").reshape(self.variable.variable_shape)

    def prior(self) -> tuple[Array, Array]:
        """(mu, sigma) of the normal prior, (K, J) each."""
        mu, sigma = map(self.by_component, self.variable.prior.args)
        return mu, sigma

    def effects(self, values: Mapping[str, Array]) -> Array:
        """(K, N), what the scale of each cell of H is multiplied by."""
        return np.exp(self.by_component(values[self.variable.name]) @ self.design.T)

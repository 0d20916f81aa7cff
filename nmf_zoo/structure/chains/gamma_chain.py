"""Gamma Markov chains with auxiliary variables, these integrated out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import betaln

from nmf_zoo.structure.chains.base import POSITIVE, ChainPrior, Support, of_each
from nmf_zoo.structure.parameters import Array, Parameter, log_gamma_density


@dataclass(frozen=True, kw_only=True)
class GammaChainPrior(ChainPrior):
    """Positive chains of two gamma draws a step: z ~ Gamma(alpha_z, beta_z h') after h', then h ~ Gamma(alpha_h, z).

    The auxiliary z is integrated out: h / (beta_z h') is a beta prime of shapes alpha_h and alpha_z. The logarithm of
    such a chain is a random walk, so that it has no stationary law.

    Attributes
    ----------
    alpha_z, alpha_h : shapes of the two draws
    beta_z : ratio of the two rates
    initial_shape, initial_rate : of the gamma law of the first time
    """

    family: ClassVar[str] = "gamma chain"
    distribution: ClassVar[str] = "GammaChain"
    supports: ClassVar[Mapping[str, Support]] = {
        "alpha_z": POSITIVE,
        "alpha_h": POSITIVE,
        "beta_z": POSITIVE,
        "initial_shape": POSITIVE,
        "initial_rate": POSITIVE,
    }
    of_first: ClassVar[tuple[str, ...]] = ("initial_shape", "initial_rate")
    is_bounded: ClassVar[bool] = False
    never: ClassVar[str] = "near 0 at all times"
    alpha_z: Parameter
    alpha_h: Parameter
    beta_z: Parameter
    initial_shape: Parameter
    initial_rate: Parameter

    def law(self, values: Mapping[str, Array]) -> tuple[Array, Array, Array, Array, Array]:
        """(alpha_z, alpha_h, beta_z, shape and rate of the first time), each () or (K, 1)."""
        alpha_z, alpha_h, beta_z = (own.resolve(values) for own in (self.alpha_z, self.alpha_h, self.beta_z))
        return alpha_z, alpha_h, beta_z, self.initial_shape.resolve(values), self.initial_rate.resolve(values)

    def log_rows(self, factor: Array, values: Mapping[str, Array]) -> Array:
        """Log density of each row of a positive H, (K, 1)."""
        alpha_z, alpha_h, beta_z, shape, rate = self.law(values)
        first = log_gamma_density(factor[:, :1], shape, rate)
        return first + np.sum(
            log_beta_prime(factor[:, 1:], beta_z * factor[:, :-1], alpha_h, alpha_z), 1, keepdims=True
        )

    def draw_next(self, last: Array, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
        alpha_z, alpha_h, beta_z, _, _ = of_each(last, self.law(values))
        return last * beta_z * rng.gamma(alpha_h) / rng.gamma(alpha_z)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        return float(np.sum(self.log_rows(factor, values))) if np.all(factor > 0) else -np.inf

    def typical(self, values: Mapping[str, Array]) -> Array:
        """The mean of the first time."""
        return np.asarray(self.initial_shape.resolve(values) / self.initial_rate.resolve(values))


def log_beta_prime(v: Array, scale: Array, a: Array, b: Array) -> Array:
    """Log density of v, v / scale = x / y with x ~ Gamma(a, 1) and y ~ Gamma(b, 1)."""
    log_v, log_scale = np.log(v), np.log(scale)
    return (a - 1.0) * log_v + b * log_scale - (a + b) * np.logaddexp(log_v, log_scale) - betaln(a, b)

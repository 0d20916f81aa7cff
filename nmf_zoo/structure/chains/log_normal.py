"""Positive chains whose logarithm is an autoregression of order one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.chains.base import POSITIVE, REAL, SYMMETRIC, ChainPrior, Support, of_each
from nmf_zoo.structure.parameters import Array, Parameter


@dataclass(frozen=True, kw_only=True)
class LogNormalARPrior(ChainPrior):
    """Positive chains whose logarithm is an autoregression of order one.

    Attributes
    ----------
    mean, persistence, scale : of log h: where it returns to, how slowly, and the standard deviation of a step
    initial_mean, initial_scale : of log h at the first time; None: stationary, (mean, scale / sqrt(1 - persistence^2))
    """

    family: ClassVar[str] = "log-normal chain"
    distribution: ClassVar[str] = "LogNormalAR"
    supports: ClassVar[Mapping[str, Support]] = {
        "mean": REAL,
        "persistence": SYMMETRIC,
        "scale": POSITIVE,
        "initial_mean": REAL,
        "initial_scale": POSITIVE,
    }
    of_first: ClassVar[tuple[str, ...]] = ("initial_mean", "initial_scale")
    is_bounded: ClassVar[bool] = False
    mean: Parameter
    persistence: Parameter
    scale: Parameter
    initial_mean: Parameter | None
    initial_scale: Parameter | None

    def law(self, values: Mapping[str, Array]) -> tuple[Array, Array, Array, Array, Array]:
        """(mean, persistence, scale, mean and scale at the first time), each () or (K, 1)."""
        mean, persistence, scale = (part.resolve(values) for part in (self.mean, self.persistence, self.scale))
        if self.initial_mean is None or self.initial_scale is None:
            return mean, persistence, scale, mean, scale / np.sqrt(1 - persistence**2)
        return mean, persistence, scale, self.initial_mean.resolve(values), self.initial_scale.resolve(values)

    def draw_next(self, last: Array, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
        mean, persistence, scale, _, _ = of_each(last, self.law(values))
        return np.exp(mean + persistence * (np.log(last) - mean) + scale * rng.standard_normal(len(last)))

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        if not np.all(factor > 0):
            return -np.inf
        mean, persistence, scale, first_mean, first_scale = self.law(values)
        z = np.log(factor)
        first = _log_normal(z[:, :1], first_mean, first_scale)
        steps = _log_normal(z[:, 1:], mean + persistence * (z[:, :-1] - mean), scale)
        return float(np.sum(first) + np.sum(steps) - np.sum(z))

    def typical(self, values: Mapping[str, Array]) -> Array:
        """e^mean"""
        return np.asarray(np.exp(self.law(values)[0]))


def _log_normal(v: Array, mean: Array, scale: Array) -> Array:
    return -0.5 * ((v - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)

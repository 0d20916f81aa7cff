"""Exponential data: powers |s|^2 of a spectrogram of complex normal coefficients; the Itakura-Saito divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.kernels.random.predictions import draw_powers_at
from nmf_zoo.structure.likelihoods.base import Likelihood, Values
from nmf_zoo.structure.parameters import Array


@dataclass(frozen=True, kw_only=True)
class Exponential(Likelihood):
    """-log m - x / m."""

    family: ClassVar[str] = "exponential"
    is_spectral: ClassVar[bool] = True
    least_total: ClassVar[float] = 0.0  # powers are at any scale

    def log_kernel(self, x: Array, mean: Array, values: Values) -> Array:
        return -np.log(mean) - x / mean

    def slopes(self, x: Array, mean: Array, values: Values) -> tuple[Array, Array]:
        return x / mean / mean, 1.0 / mean

    def draw(self, mean: Array, values: Values, rng: np.random.Generator) -> Array:
        return rng.exponential(mean)

    def draw_cells(self, out: Array, mean: Array, values: Values, rows: Array, cols: Array, key: np.uint64) -> None:
        draw_powers_at(out, mean, rows, cols, key)

    def interval(self, shares: tuple[float, float], mean: Array, values: Values) -> tuple[Array, Array, Array]:
        low, high = (-mean * np.log1p(-share) for share in shares)
        return low, high, np.full(np.shape(mean), shares[1] - shares[0])

    def sd(self, mean: Array, values: Values) -> Array:
        return mean

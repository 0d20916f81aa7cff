"""Poisson counts of samples in batches: each feature has a multiplier of its own in each batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.kernels.random.predictions import draw_counts_at
from nmf_zoo.structure.cell_parameters import CellParameter
from nmf_zoo.structure.likelihoods.base import Likelihood, Values
from nmf_zoo.structure.multipliers import Multipliers
from nmf_zoo.structure.parameters import Array, Unknown


@dataclass(frozen=True, kw_only=True)
class BatchedPoisson(Likelihood):
    """x log(u m) - u m - log Gamma(x + 1), m the mean that other laws have, u the multiplier.

    Attributes
    ----------
    multipliers : :class:`~nmf_zoo.structure.Multipliers` of the whole matrix, or their part at some cells
    """

    family: ClassVar[str] = "batched poisson"
    is_discrete: ClassVar[bool] = True
    has_free_zeros: ClassVar[bool] = True

    multipliers: CellParameter

    @property
    def parameters(self) -> dict[str, CellParameter]:
        return {"multipliers": self.multipliers}

    @property
    def unknowns(self) -> list[Unknown]:
        return [self.multipliers.variable] if isinstance(self.multipliers, Multipliers) else []

    @property
    def of_batches(self) -> Multipliers | None:
        return self.multipliers if isinstance(self.multipliers, Multipliers) else None

    @property
    def more_spread(self) -> str:
        return "a law of counts with more spread, nz.negative_binomial_nmf, which has no batches"

    def expected(self, mean: Array, values: Values) -> Array:
        return self.multipliers.resolve(values) * mean

    def log_kernel(self, x: Array, mean: Array, values: Values) -> Array:
        expected = self.expected(mean, values)
        return self.nonzero_part(x, expected) - expected

    def log_constant(self, x: Array) -> Array | float:
        return gammaln(x + 1)

    def nonzero_part(self, x: Array, mean: Array) -> Array:
        return xlogy(x, mean)

    def draw(self, mean: Array, values: Values, rng: np.random.Generator) -> Array:
        expected = self.expected(mean, values)
        self.require_drawable(expected)
        return rng.poisson(expected)

    def draw_cells(self, out: Array, mean: Array, values: Values, rows: Array, cols: Array, key: np.uint64) -> None:
        expected = self.expected(mean, values)
        self.require_drawable(expected)
        draw_counts_at(out, expected, rows, cols, key)

    def sd(self, mean: Array, values: Values) -> Array:
        return np.sqrt(self.expected(mean, values))

    def point(self, mean: Array) -> Array:
        return np.floor(mean)

    def data_words(self, is_integer: bool) -> str:
        return "counts" if is_integer else "real values"

    def needs_mean(self, x: Array) -> tuple[Array, str]:
        return x > 0, "positive"

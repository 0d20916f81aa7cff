"""Poisson counts, and non-negative real data under the same density: the Kullback-Leibler divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln, ndtri, pdtr, xlogy

from nmf_zoo.kernels.random.predictions import draw_counts_at
from nmf_zoo.structure.likelihoods.base import Likelihood, Values
from nmf_zoo.structure.parameters import Array

LOG_FACTORIALS = gammaln(np.arange(4096) + 1.0)


def log_factorial(x: Array) -> Array:
    """log x! = log Gamma(x + 1) of x >= 0, the same bits from a table where all are small whole numbers."""
    x = np.asarray(x)
    if x.size and np.min(x) >= 0 and np.max(x) < len(LOG_FACTORIALS):
        whole = x.astype(np.int64)
        if np.array_equal(whole, x):
            return LOG_FACTORIALS[whole]
    return gammaln(x + 1.0)


def poisson_quantile(share: float, mean: Array) -> Array:
    """The least count that P(X <= count) >= share holds of: Cornish and Fisher's, which is off by one at the most."""
    z = ndtri(share)
    count = np.maximum(np.floor(mean + z * np.sqrt(mean) + (z * z - 1.0) / 6.0), 0.0)
    count += pdtr(count, mean) < share
    return count - ((count > 0.0) & (pdtr(np.maximum(count - 1.0, 0.0), mean) >= share))


@dataclass(frozen=True, kw_only=True)
class Poisson(Likelihood):
    """x log m - m - log Gamma(x + 1), on integers and on real x >= 0 alike."""

    family: ClassVar[str] = "poisson"
    is_discrete: ClassVar[bool] = True
    has_free_zeros: ClassVar[bool] = True
    is_log_concave: ClassVar[bool] = True
    varies_as_redrawn: ClassVar[bool] = True

    @property
    def more_spread(self) -> str:
        return "a law of counts with more spread, nz.negative_binomial_nmf"

    def log_kernel(self, x: Array, mean: Array, values: Values) -> Array:
        return self.nonzero_part(x, mean) - mean

    def log_constant(self, x: Array) -> Array | float:
        return gammaln(x + 1)

    def nonzero_part(self, x: Array, mean: Array) -> Array:
        return xlogy(x, mean)

    def slopes(self, x: Array, mean: Array, values: Values) -> tuple[Array, Array]:
        return x / mean, np.ones_like(mean)

    def draw(self, mean: Array, values: Values, rng: np.random.Generator) -> Array:
        return rng.poisson(mean)

    def draw_cells(self, out: Array, mean: Array, values: Values, rows: Array, cols: Array, key: np.uint64) -> None:
        draw_counts_at(out, mean, rows, cols, key)

    def interval(self, shares: tuple[float, float], mean: Array, values: Values) -> tuple[Array, Array, Array]:
        low, high = (poisson_quantile(share, mean) for share in shares)
        below = np.where(low > 0.0, pdtr(np.maximum(low - 1.0, 0.0), mean), 0.0)
        return low, high, pdtr(high, mean) - below

    def sd(self, mean: Array, values: Values) -> Array:
        return np.sqrt(mean)

    def point(self, mean: Array) -> Array:
        return np.floor(mean)

    def data_words(self, is_integer: bool) -> str:
        return "counts" if is_integer else "real values"

    def needs_mean(self, x: Array) -> tuple[Array, str]:
        return x > 0, "positive"

"""Overdispersed counts: Poisson about a mean that a gamma multiplier of each cell moves, summed over the multiplier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.kernels.random.predictions import draw_overdispersed_at
from nmf_zoo.structure.cell_parameters import CellParameter
from nmf_zoo.structure.likelihoods.base import Likelihood, Values
from nmf_zoo.structure.parameters import Array, Unknown

LEAST, MOST = 1e-6, 1e8  # of an estimate of alpha: beyond, counts are Poisson's to rounding
LARGE = 1e4  # shapes from which on Stirling's series has all digits, and differences of log Gamma have lost some


@dataclass(frozen=True, kw_only=True)
class NegativeBinomial(Likelihood):
    """x | g ~ Poisson(g m), g ~ Gamma(alpha, alpha): Var X = m + m^2 / alpha. Poisson as alpha goes to infinity.

    log p(x | m) = x log m - (x + alpha) log(1 + m / alpha) + [log Gamma(alpha + x) - log Gamma(alpha) - x log alpha]
    - log x!

    Attributes
    ----------
    alpha : inverse dispersion, which broadcasts to (F, N)
    """

    family: ClassVar[str] = "negative binomial"
    is_discrete: ClassVar[bool] = True
    largest_mean: ClassVar[float] = 2.0**40  # the multiplier may be many times 1

    alpha: CellParameter

    @property
    def parameters(self) -> dict[str, CellParameter]:
        return {"alpha": self.alpha}

    @property
    def more_spread(self) -> str:
        return "a smaller alpha, or one that is learnt: leave alpha= out, or give it a prior per feature or sample"

    def end_of(self, values: Values) -> str:
        if not isinstance(self.alpha, Unknown) or not self.alpha.prior.is_flat:
            return ""
        alpha = self.alpha.resolve(values)
        most, least, name = alpha >= MOST / 2.0, alpha <= LEAST * 2.0, self.alpha.name
        which = "" if alpha.size == 1 else f"{int(most.sum() or least.sum())} of {alpha.size} values of "
        if most.any():
            return f"{which}{name} went to {MOST:g}, the largest there is: there Poisson counts are wide enough"
        if least.any():
            return (
                f"{which}{name} went to {LEAST:g}, the least there is: the data are wilder than any gamma multiplier "
                "makes them; look for cells that are far off, or give it a prior"
            )
        return ""

    def log_kernel(self, x: Array, mean: Array, values: Values) -> Array:
        alpha = self.alpha.resolve(values)
        return xlogy(x, mean) - (x + alpha) * np.log1p(mean / alpha) + log_rising(alpha, x)

    def log_constant(self, x: Array) -> Array | float:
        return gammaln(x + 1)

    def slopes(self, x: Array, mean: Array, values: Values) -> tuple[Array, Array]:
        alpha = self.alpha.resolve(values)
        return x / mean, (x + alpha) / (mean + alpha)

    def draw(self, mean: Array, values: Values, rng: np.random.Generator) -> Array:
        alpha = np.broadcast_to(self.alpha.resolve(values), np.shape(mean))
        return rng.poisson(mean * (rng.gamma(alpha) / alpha))

    def draw_cells(self, out: Array, mean: Array, values: Values, rows: Array, cols: Array, key: np.uint64) -> None:
        alpha = np.array(np.broadcast_to(self.alpha.resolve(values), np.shape(mean)))
        draw_overdispersed_at(out, mean, alpha, rows, cols, key)

    def sd(self, mean: Array, values: Values) -> Array:
        return np.sqrt(mean + np.square(mean) / self.alpha.resolve(values))

    def point(self, mean: Array) -> Array:
        return np.floor(mean)

    @classmethod
    def refusal_of(cls, values: Array) -> tuple[str, str, str] | None:
        refusal = super().refusal_of(values)
        if refusal is None and np.any(values != np.floor(values)):
            first = values[values != np.floor(values)].flat[0]
            refusal = f"the value {first:g}", "integers", "round the data, or use nz.gamma_nmf, which takes real values"
        return refusal

    def data_words(self, is_integer: bool) -> str:
        return "counts"

    def needs_mean(self, x: Array) -> tuple[Array, str]:
        return x > 0, "positive"


def log_rising(alpha: Array, x: Array) -> Array:
    """log Gamma(alpha + x) - log Gamma(alpha) - x log alpha, elementwise: 0 at x = 0, and as alpha goes to infinity.

    By Stirling's series where alpha is large: its terms are differences, of which none loses digits.
    """
    is_large = np.asarray(alpha) > LARGE
    large, small = np.where(is_large, alpha, LARGE), np.where(is_large, LARGE, alpha)
    total = large + x
    by_series = (total - 0.5) * np.log1p(x / large) - x + (1.0 / total - 1.0 / large) / 12.0
    return np.where(is_large, by_series, gammaln(small + x) - gammaln(small) - x * np.log(small))

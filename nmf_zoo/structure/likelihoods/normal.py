"""Normal data, whose standard deviations are one for all cells, or differ between them: squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtri

from nmf_zoo.kernels.random.predictions import draw_normals_at
from nmf_zoo.structure.cell_parameters import CellParameter, KnownAtCells, is_shared
from nmf_zoo.structure.likelihoods.base import Likelihood, Values
from nmf_zoo.structure.parameters import Array, Known

ENDS = (("smallest", np.min), ("largest", np.max))


@dataclass(frozen=True, kw_only=True)
class Normal(Likelihood):
    """-((x - m) / sigma)^2 / 2 - log sigma - log(2 pi) / 2.

    Attributes
    ----------
    sigma : standard deviation, which broadcasts to (F, N)
    """

    family: ClassVar[str] = "normal"
    is_log_concave: ClassVar[bool] = True

    sigma: CellParameter

    @property
    def parameters(self) -> dict[str, CellParameter]:
        return {"sigma": self.sigma}

    @property
    def known_scales(self) -> list[tuple[str, float]]:
        if not isinstance(self.sigma, Known | KnownAtCells):
            return []
        if is_shared(self.sigma):
            return [("sigma", float(self.sigma.value.reshape(())))]
        return [(f"the {word} sigma", float(end(self.sigma.value))) for word, end in ENDS]

    @property
    def more_spread(self) -> str:
        return (
            "a larger sigma, or one that is learnt, sigma=nz.free() for EM, a prior for draws"
            if self.known_scales
            else super().more_spread
        )

    def log_kernel(self, x: Array, mean: Array, values: Values) -> Array:
        sigma = self.sigma.resolve(values)
        return -0.5 * ((x - mean) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)

    def slopes(self, x: Array, mean: Array, values: Values) -> tuple[Array, Array]:
        variance = np.square(self.sigma.resolve(values))
        return np.maximum(x, 0.0) / variance, (mean + np.maximum(-x, 0.0)) / variance

    def draw(self, mean: Array, values: Values, rng: np.random.Generator) -> Array:
        return rng.normal(mean, self.sigma.resolve(values))

    def draw_cells(self, out: Array, mean: Array, values: Values, rows: Array, cols: Array, key: np.uint64) -> None:
        sigma = np.array(np.broadcast_to(self.sigma.resolve(values), mean.shape), dtype=np.float64)
        draw_normals_at(out, mean, sigma, rows, cols, key)

    def interval(self, shares: tuple[float, float], mean: Array, values: Values) -> tuple[Array, Array, Array]:
        low, high = (mean + ndtri(share) * self.sigma.resolve(values) for share in shares)
        return low, high, np.full(np.shape(mean), shares[1] - shares[0])

    def sd(self, mean: Array, values: Values) -> Array:
        return np.array(np.broadcast_to(self.sigma.resolve(values), np.shape(mean)))

    @classmethod
    def refusal_of(cls, values: Array) -> None:
        return None

    def needs_mean(self, x: Array) -> None:
        return None

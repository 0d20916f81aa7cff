"""Beta-gamma autoregressions: a part of h stays, a gamma draw is added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.kernels.hmm.bgar import log_bgar_rows
from nmf_zoo.structure.chains.base import POSITIVE, PROBABILITY, ChainPrior, Support, of_each
from nmf_zoo.structure.parameters import Array, Parameter


@dataclass(frozen=True, kw_only=True)
class BGARPrior(ChainPrior):
    """Positive chains of which a share stays: h = b h' + e, b ~ Beta(alpha rho, alpha (1 - rho)), e gamma.

    Attributes
    ----------
    alpha, beta : shape and rate of the stationary gamma law, which the first time has
    rho : correlation of neighbours, inside (0, 1)
    """

    family: ClassVar[str] = "beta-gamma autoregression"
    distribution: ClassVar[str] = "BGAR"
    supports: ClassVar[Mapping[str, Support]] = {"alpha": POSITIVE, "beta": POSITIVE, "rho": PROBABILITY}
    is_bounded: ClassVar[bool] = False
    never: ClassVar[str] = "near 0 at all times"
    no_gradient: ClassVar[str] = (
        "is a beta-gamma autoregression, whose density is an integral without a gradient: use Gibbs sampling"
    )
    alpha: Parameter
    beta: Parameter
    rho: Parameter

    @property
    def is_stationary(self) -> bool:
        return True

    def law(self, values: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """(alpha, beta, rho), each () or (K, 1)."""
        return self.alpha.resolve(values), self.beta.resolve(values), self.rho.resolve(values)

    def draw_next(self, last: Array, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
        alpha, beta, rho = of_each(last, self.law(values))
        return last * rng.beta(alpha * rho, alpha * (1 - rho)) + rng.gamma(alpha * (1 - rho)) / beta

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        if not np.all(factor > 0):
            return -np.inf
        parameters = (np.array(np.broadcast_to(own, (len(factor), 1))[:, 0]) for own in self.law(values))
        out = np.empty(len(factor))
        log_bgar_rows(out, np.ascontiguousarray(factor), *parameters)
        return float(np.sum(out))

    def typical(self, values: Mapping[str, Array]) -> Array:
        """The stationary mean."""
        return np.asarray(self.alpha.resolve(values) / self.beta.resolve(values))

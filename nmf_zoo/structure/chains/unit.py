"""Chains inside (0, 1) that move towards the nearer end with probability alpha."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.chains.base import PROBABILITY, ChainPrior, Support, of_each
from nmf_zoo.structure.parameters import Array, Parameter


@dataclass(frozen=True, kw_only=True)
class UnitChainPrior(ChainPrior):
    """Chains inside (0, 1) that move towards the nearer end with probability alpha.

    Attributes
    ----------
    alpha : inside (0, 1)
    """

    family: ClassVar[str] = "bounded chain"
    distribution: ClassVar[str] = "UnitChain"
    supports: ClassVar[Mapping[str, Support]] = {"alpha": PROBABILITY}
    never: ClassVar[str] = "near 0 at all times"
    no_gradient: ClassVar[str] = "has a density that jumps: use slice or Metropolis steps of pm.sample"
    alpha: Parameter

    def draw_next(self, last: Array, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
        (alpha,) = of_each(last, (self.alpha.resolve(values),))
        is_down, u = rng.random(len(last)) < np.where(last <= 0.5, alpha, 1 - alpha), rng.random(len(last))
        return np.where(is_down, last * u, last + (1 - last) * u)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        if not np.all((factor > 0) & (factor < 1)):
            return -np.inf
        alpha, before, after = self.alpha.resolve(values), factor[:, :-1], factor[:, 1:]
        down, towards_0 = after < before, np.where(before <= 0.5, alpha, 1 - alpha)
        chance, rest = np.where(down, towards_0, 1 - towards_0), np.where(down, before, 1 - before)
        return float(np.sum(np.log(chance) - np.log(rest)))

"""Binary chains: components are switched on and off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.chains.base import PROBABILITY, ChainPrior, Support, of_each
from nmf_zoo.structure.parameters import Array, Parameter


@dataclass(frozen=True, kw_only=True)
class BasisChainPrior(ChainPrior):
    """Binary chains: components are switched on and off.

    Attributes
    ----------
    p, q : probabilities of staying off and of staying on, inside (0, 1)
    initial : P(on) at the first time; None: stationary, (1 - p) / (2 - p - q)
    """

    family: ClassVar[str] = "binary chain"
    distribution: ClassVar[str] = "BasisChain"
    supports: ClassVar[Mapping[str, Support]] = {"p": PROBABILITY, "q": PROBABILITY, "initial": PROBABILITY}
    of_first: ClassVar[tuple[str, ...]] = ("initial",)
    is_binary: ClassVar[bool] = True
    never: ClassVar[str] = "off at all times"
    no_gradient: ClassVar[str] = "is discrete"
    p: Parameter
    q: Parameter
    initial: Parameter | None

    def law(self, values: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """(p, q, initial), each () or (K, 1), given the values of the unknowns."""
        p, q = self.p.resolve(values), self.q.resolve(values)
        return p, q, (1 - p) / (2 - p - q) if self.initial is None else self.initial.resolve(values)

    def draw_next(self, last: Array, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
        p, q, _ = of_each(last, self.law(values))
        return (rng.random(len(last)) < np.where(last == 1, q, 1 - p)).astype(np.float64)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        if not np.all((factor == 0) | (factor == 1)):
            return -np.inf
        p, q, initial = self.law(values)
        on, before, after = factor == 1, factor[:, :-1] == 1, factor[:, 1:] == 1
        stay = np.where(before, q, p)
        first = np.where(on[:, :1], initial, 1 - initial)
        return float(np.sum(np.log(first)) + np.sum(np.log(np.where(before == after, stay, 1 - stay))))

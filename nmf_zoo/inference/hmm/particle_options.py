"""Options that everything with a particle filter shares, and the plan the kernels take from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nmf_zoo.structure import Factorisation, LogNormalARPrior

PROPOSALS = ("bootstrap", "guided", "auxiliary")  # in the order of the kernels' codes
RESAMPLING = ("systematic", "stratified", "residual", "multinomial")
FEW = 5  # components of chains in [0, 1]: up to there more particles are cheaper than better ones
MOST_PARTICLES = 10_000_000


@dataclass(frozen=True, kw_only=True)
class ParticleOptions:
    """Options of a particle filter.

    Attributes
    ----------
    particles : how many. The error of what the filter estimates falls as particles^-1/2, its time and memory grow
        with them
    proposal : how particles move on: "bootstrap" by the chain's law alone; "guided" by that law and the counts they
        must explain; "auxiliary" is guided, and resamples by how well each can explain them first. These two take
        some ten times as long, and keep most particles alive where samples say so much that "bootstrap" is left with
        a few. "auto": "auxiliary" for log-normal chains, and for others of more than 5 components, else "bootstrap"
    resampling : "systematic", "stratified", "residual" or "multinomial"
    ess : particles are resampled once their effective number falls below this share of them; 1: at every step, 0: never
    """

    particles: int = 1000
    proposal: Literal["auto", "bootstrap", "guided", "auxiliary"] = "auto"
    resampling: Literal["systematic", "stratified", "residual", "multinomial"] = "systematic"
    ess: float = 0.5

    def __post_init__(self):
        require_integer("particles", self.particles, 2, MOST_PARTICLES)
        require_word("proposal", self.proposal, ("auto", *PROPOSALS))
        require_word("resampling", self.resampling, RESAMPLING)
        require_number("ess", self.ess, 0.0, 1.0)

    def proposal_for(self, structure: Factorisation) -> str:
        """The proposal's name, "auto" replaced by what serves the chain of H best."""
        if self.proposal != "auto":
            return self.proposal
        is_hard = structure.rank > FEW or isinstance(structure.H.prior, LogNormalARPrior)
        return "auxiliary" if is_hard else "bootstrap"


def require_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: got {value!r}; expected one of {list(allowed)}")


def require_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        upper = "" if most is None else f" and <= {most}"
        raise ValueError(f"{name}: got {value!r}; expected an integer >= {least}{upper}")


def require_number(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not low <= float(value) <= high:  # type: ignore[arg-type]
        raise ValueError(f"{name}: got {value!r}; expected a number from {low:g} to {high:g}")

"""Options that everything with a particle filter shares, and the plan the kernels take from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.hmm.m_step import keep_inside
from nmf_zoo.inference.shared.layout import Weights
from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.inference.shared.start import SPREAD, start_hyperparameters
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.options import check_types
from nmf_zoo.structure import Array, BasisChainPrior, Factorisation, Fixed, LogNormalARPrior

PROPOSALS = ("bootstrap", "guided", "auxiliary")  # in the order of the kernels' codes
RESAMPLING = ("systematic", "stratified", "residual", "multinomial")
# Chains in [0, 1]: up to FEW components, more particles are cheaper than better ones, unless a sample says much, or its
# few states have particles anyway.
FEW, MANY_COUNTS, MOST_COVERED = 5, 50, 3
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
        a few. "auto": "auxiliary" for log-normal chains, for more than 5 components, and where the counts of a sample
        average more than 50 for each component (unless there are at most 3 binary ones), else "bootstrap"
    resampling : "systematic", "stratified", "residual" or "multinomial"
    ess : particles are resampled once their effective number falls below this share of them; 1: at every step, 0: never
    """

    particles: int = 1000
    proposal: Literal["auto", "bootstrap", "guided", "auxiliary"] = "auto"
    resampling: Literal["systematic", "stratified", "residual", "multinomial"] = "systematic"
    ess: float = 0.5

    def __post_init__(self):
        check_types(self)
        require_integer("particles", self.particles, 2, MOST_PARTICLES)
        require_word("proposal", self.proposal, ("auto", *PROPOSALS))
        require_word("resampling", self.resampling, RESAMPLING)
        require_number("ess", self.ess, 0.0, 1.0)

    def proposal_for(self, structure: Factorisation) -> str:
        """The proposal's name, "auto" replaced by what serves the chain of H best."""
        if self.proposal != "auto":
            return self.proposal
        if structure.rank > FEW or isinstance(structure.H.prior, LogNormalARPrior):
            return "auxiliary"
        is_covered = isinstance(structure.H.prior, BasisChainPrior) and structure.rank <= MOST_COVERED
        return "auxiliary" if counts_of_component(structure) > MANY_COUNTS and not is_covered else "bootstrap"


def counts_of_component(structure: Factorisation) -> float:
    """The mean counts of a sample, over the components; 0 where no data are at hand, as in a stream."""
    if structure.data is None:
        return 0.0
    return float(structure.data.observed_values.sum()) / (structure.shape[1] * structure.rank)


def require_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InputError(name, repr(value), f"one of {list(allowed)}")


def require_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        upper = "" if most is None else f" and <= {most}"
        raise InputError(name, repr(value), f"an integer >= {least}{upper}")


def require_number(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not low <= float(value) <= high:  # type: ignore[arg-type]
        raise InputError(name, repr(value), f"a number from {low:g} to {high:g}")


# -- starts ----------------------------------------------------------------------------------------------------------


def start_values(structure: Factorisation, start: Mapping[str, Array]) -> dict[str, Array]:
    """A value of every unknown of the chain, off the ends of its support."""
    return keep_inside(structure.H.prior, start_hyperparameters(structure, start))


def start_weights(
    structure: Factorisation, weights: Weights, values: Mapping[str, Array], key: np.uint64, start: Mapping[str, Array]
) -> Array:
    """W (F, K): known, given, or random with the mean of the data where activations are at their typical size."""
    factor = structure.W
    if isinstance(factor.prior, Fixed):
        return np.array(factor.prior.value, dtype=np.float64, order="C")
    if factor.name in start:
        given = factor.orient(np.asarray(start[factor.name], dtype=np.float64))
        return np.ascontiguousarray(np.maximum(given, FLOOR))
    typical = np.broadcast_to(_typical(structure, values), structure.H.shape).T
    total = max(float(structure.data.observed_values.sum()), 1.0)
    scale = total / max(weights.total(np.ones(factor.shape), typical), FLOOR)
    out = np.empty(factor.shape)
    shape, rate = (np.broadcast_to(number, factor.shape) for number in (SPREAD, SPREAD / scale))
    draw_factor(out, shape, rate, 0, len(out), key)
    return out


def _typical(structure: Factorisation, values: Mapping[str, Array]) -> Array:
    """A typical activation, () or (K, 1): one half where it is at most one, e^mean of a log-normal chain."""
    prior = structure.H.prior
    return np.exp(prior.law(values)[0]) if isinstance(prior, LogNormalARPrior) else np.asarray(0.5)

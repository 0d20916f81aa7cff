"""Options that everything with a particle filter shares, and the plan the kernels take from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from nmf_zoo.errors import InputError
from nmf_zoo.options import check_types
from nmf_zoo.structure import ChainPrior, Factorisation

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
        if not 2 <= self.particles <= MOST_PARTICLES:
            raise InputError("particles", repr(self.particles), f"an integer >= 2 and <= {MOST_PARTICLES}")
        if not 0.0 <= self.ess <= 1.0:
            raise InputError("ess", repr(self.ess), "a number from 0 to 1")

    def proposal_for(self, structure: Factorisation) -> str:
        """The proposal's name, "auto" replaced by what serves the chain of H best."""
        if self.proposal != "auto":
            return self.proposal
        prior = cast(ChainPrior, structure.H.prior)
        if structure.rank > FEW or not prior.is_bounded:
            return "auxiliary"
        is_covered = prior.is_binary and structure.rank <= MOST_COVERED
        return "auxiliary" if counts_of_component(structure) > MANY_COUNTS and not is_covered else "bootstrap"


def counts_of_component(structure: Factorisation) -> float:
    """The mean counts of a sample, over the components; 0 where no data are at hand, as in a stream."""
    if structure.data is None:
        return 0.0
    return float(structure.data.observed_values.sum()) / (structure.shape[1] * structure.rank)

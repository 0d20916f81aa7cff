"""What all restarts share: data laid out for the chains, and the exact likelihood where that is affordable."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from nmf_zoo.errors import NmfZooWarning, RunFailed
from nmf_zoo.inference.driver import available_cores
from nmf_zoo.inference.hyperparameters import untied
from nmf_zoo.inference.mcem.expectations import ExactLikelihood, GivenW, Jointly, Wanted
from nmf_zoo.inference.mcem.options import MCEM
from nmf_zoo.inference.mcem.support import complete_set
from nmf_zoo.inference.sides import two_sides
from nmf_zoo.inference.workers import Workers
from nmf_zoo.memory import require_memory
from nmf_zoo.structure import Factorisation

FEW_SECONDS, MOST_SECONDS = 0.01, 600.0  # of an exact likelihood: worth it unasked; refused


@dataclass(frozen=True)
class Problem:
    """What all restarts share.

    ``complete`` : "C", "H" or "CH", "" where W is not maximised over; ``likelihood`` : the exact one, where affordable
    """

    structure: Factorisation
    options: MCEM
    complete: str
    expect: GivenW | Jointly
    likelihood: ExactLikelihood | None


def prepare(structure: Factorisation, options: MCEM, workers: Workers) -> Problem:
    """Lay out the data for the chains; warn of hyperparameters that nothing holds back."""
    loose = [name for side in two_sides(structure) for name in untied(side.factor)]
    if loose:
        message = "one free value per cell runs away to maximum likelihood; tie it over features or samples"
        warnings.warn(f"{', '.join(loose)}: {message}", NmfZooWarning, stacklevel=5)  # the caller of fit()
    complete, averages = complete_set(structure, options), options.rao_blackwell
    wanted = Wanted(
        options.sweeps,
        options.burn_in,
        expects=averages or complete == "H",
        conditional=averages and complete != "H",
        logs=bool(structure.unknowns) and complete != "C",
        reached=bool(structure.unknowns) and complete == "C",
    )
    W, H = two_sides(structure)
    if W.is_gamma or H.is_fixed:
        return Problem(structure, options, complete, Jointly(structure, workers, wanted), None)
    likelihood = _exact_likelihood(structure, options, workers)
    return Problem(structure, options, complete, GivenW(structure, workers, wanted), likelihood)


def _exact_likelihood(structure: Factorisation, options: MCEM, workers: Workers) -> ExactLikelihood | None:
    """What evaluates log p(X | W) exactly, if it was asked for or costs next to nothing."""
    if options.exact is False:
        return None
    likelihood = ExactLikelihood(structure, workers)
    cost = likelihood.cost
    if options.exact is True:
        if cost.seconds > MOST_SECONDS:
            seconds = f"about {cost.seconds:.2g} s an iteration"
            raise RunFailed(f"mcem: exact=True would take {seconds}, more than {MOST_SECONDS:g}: use exact=False")
        # restarts side by side, each with a table of its own
        require_memory("exact", "exact values, a core each", available_cores() * cost.memory, "use exact=False")
    return likelihood if options.exact is True or cost.seconds < FEW_SECONDS else None

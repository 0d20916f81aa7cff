"""The evidence by Chib's identity: log p(X) = log p(X, point) - log p(point | X), for any point of the posterior.

Two ways to the density of the point::

    "tightening"  the sources summed out, point (W~, H~): :mod:`nmf_zoo.inference.evidence.tightening`
    "sources"     Cemgil's, point (W~, H~, C~): :mod:`nmf_zoo.inference.evidence.clamping`

Cemgil's needs few counts: p(C~ | W, H, X) is averaged over the posterior of W and H, and with more than a few counts in
a cell one draw in astronomically many is near enough to C~ to matter. Its error bar cannot show that, but
``effective_draws`` can.

Chib (1995), Marginal likelihood from the Gibbs output, JASA 90; Cemgil (2009), section 3.4.1.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.inference.engine import Verdict
from nmf_zoo.inference.evidence.clamping import clamp
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method, check_whole, has_evidence
from nmf_zoo.inference.evidence.posterior_runs import Pair, as_variables
from nmf_zoo.inference.evidence.tightening import tighten
from nmf_zoo.options import check_types
from nmf_zoo.structure import Array, Factorisation

WAYS = ("tightening", "sources")
FEW = 100  # effective draws: below it, the average over sources is not to be trusted
TYPICAL_LEVELS = 20  # for the progress bar


@dataclass(frozen=True, kw_only=True)
class Chib:
    """Options of Chib's method.

    By tightening, every draw counts for up to 12 components with equal priors. With more, draws outside the point's
    labelling are left out, and where too few are left the run fails: use :class:`nmf_zoo.SMC` there.

    Attributes
    ----------
    ordinate : how the point's posterior density is found: "tightening", or "sources" as Cemgil has it
    draws : Gibbs sweeps from the posterior, and again from each sharper one, or with the sources clamped
    tune : warm-up sweeps before each of these
    """

    ordinate: Literal["tightening", "sources"] = "tightening"
    draws: int = 4000
    tune: int = 500

    def __post_init__(self):
        check_types(self)
        if self.ordinate not in WAYS:
            raise InputError("ordinate", repr(self.ordinate), f"one of {list(WAYS)}")
        check_whole("draws", self.draws, 100)
        check_whole("tune", self.tune, 0)


def supports(structure: Factorisation, options: Chib) -> Verdict:
    """Counts with gamma priors of known hyperparameters; one factor may be known."""
    return has_evidence(structure)


def estimate(structure: Factorisation, options: Chib, run: EvidenceRun) -> Estimate:
    """One estimate per chain."""
    if options.ordinate == "sources":
        return _by_sources(structure, options, run)
    total = TYPICAL_LEVELS * (options.draws + options.tune)

    def one(job: Job):
        return tighten(structure, options.draws, options.tune, job)

    found = run.each(one, total)
    return Estimate(
        log_evidence=np.array([each.log_evidence for each in found]),
        standard_error=np.array([each.error for each in found]),
        draws=_stack(structure, [each.draws for each in found]),
        statistics={
            "levels": np.array([each.levels for each in found]),
            "sharpness": np.array([each.sharpness for each in found]),
        },
    )


def _by_sources(structure: Factorisation, options: Chib, run: EvidenceRun) -> Estimate:
    def one(job: Job):
        return clamp(structure, options.draws, options.tune, job)

    found = run.each(one, options.draws + options.tune)
    effective = np.array([each.effective_draws for each in found])
    if effective.min() < FEW:
        message = (
            f"p(C~ | X) rests on {effective.min():.3g} effective draws, so that neither it nor its error is to be "
            "trusted: use nz.Chib(ordinate='tightening')"
        )
        warnings.warn(message, NmfZooWarning, stacklevel=4)  # the caller of evidence()
    return Estimate(
        log_evidence=np.array([each.log_evidence for each in found]),
        standard_error=np.array([each.error for each in found]),
        draws=_stack(structure, [each.draws for each in found]),
        statistics={"effective_draws": effective},
    )


def _stack(structure: Factorisation, pairs: list[Pair]) -> dict[str, Array]:
    return as_variables(structure, Pair(*(np.stack(arrays) for arrays in zip(*pairs, strict=True))))


METHOD = Method(name="chib", options=Chib, supports=supports, estimate=estimate)

"""A lower bound of the evidence: the best of variational Bayes' bounds from several starts (Cemgil 2009, eq. 13).

Free hyperparameters are at the bound's peak (type II maximum likelihood). The bound lies below log p(X) by the
divergence of q from the posterior, which grows with the rank: q keeps to one labelling and knows nothing of how W and H
depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Method, check_whole, has_evidence
from nmf_zoo.options import check_types
from nmf_zoo.runtime.driver import FitRun, run_restarts
from nmf_zoo.runtime.engine import Verdict
from nmf_zoo.structure import Factorisation, Flat, Poisson


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Options of the variational bound.

    Attributes
    ----------
    restarts : random starts
    max_iter, tol : of each, as in ``nz.fit``
    draws : draws from the best q that the result holds
    """

    restarts: int = 10
    max_iter: int = 10_000
    tol: float = 1e-4
    draws: int = 200

    def __post_init__(self):
        check_types(self)
        for name in ("restarts", "max_iter", "draws"):
            check_whole(name, getattr(self, name), 1)
        if not self.tol >= 0:
            raise InputError("tol", repr(self.tol), "a number >= 0")


def supports(structure: Factorisation, options: Bound) -> Verdict:
    """What VB runs, of models that have an evidence."""
    is_flat = any(isinstance(factor.prior, Flat) for factor in (structure.W, structure.H))
    return has_evidence(structure) if is_flat else vb.supports(structure, vb.VB())


def estimate(structure: Factorisation, options: Bound, run: EvidenceRun) -> Estimate:
    """One chain: the best restart."""
    fit = FitRun(
        max_iter=options.max_iter, tol=options.tol, draws=options.draws, cores=run.cores, progressbar=run.progressbar
    )
    solutions, early = run_restarts(vb.ENGINE, structure, vb.VB(), fit, run.key, [{}] * options.restarts)
    run.stopped = bool(early)
    return Estimate(
        log_evidence=np.array([solutions[0].objective[-1]]),
        standard_error=np.zeros(1),
        draws={name: value[None] for name, value in solutions[0].values.items()},
        statistics={
            "bound_of_restart": np.array([[solution.objective[-1] for solution in solutions]]),
            "converged": np.array([solutions[0].status == "converged"]),
        },
        dims={"bound_of_restart": ("restart",)},
    )


METHOD = Method(
    name="bound",
    likelihoods=(Poisson,),
    options=Bound,
    supports=supports,
    estimate=estimate,
    is_bound=True,
    runs=1,
)

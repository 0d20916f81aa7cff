"""A lower bound of the evidence: the best of variational Bayes' bounds from several starts (Cemgil 2009, eq. 13).

Free hyperparameters are at the bound's peak (type II maximum likelihood). The bound lies below log p(X) by the
divergence of q from the posterior, which grows with the rank: q keeps to one labelling and knows nothing of how W and H
depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nmf_zoo.inference.batches import vb as batched_vb
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Method, has_evidence
from nmf_zoo.inference.overdispersed import vb as overdispersed_vb
from nmf_zoo.options import check_least, check_types, names_checked
from nmf_zoo.runtime.driver import FitRun, run_restarts
from nmf_zoo.runtime.engine import Engine, Verdict
from nmf_zoo.structure import BatchedPoisson, Factorisation, Flat, NegativeBinomial, Poisson

RESTARTS = 10  # without a search


@names_checked
@dataclass(frozen=True, kw_only=True)
class Bound:
    """Options of the variational bound.

    Attributes
    ----------
    restarts, search : as in :func:`~nmf_zoo.fit`: by default a search of 16 fits that learn from one another, for the
        work of some 12 of them alone, or of 3 fits for each of ``restarts`` where these are given. ``search=None``: the
        best of ``restarts`` random starts, 10 if that is None
    max_iter, tol : of each, as in ``nz.fit``
    draws : draws from the best q that the result holds
    """

    restarts: int | None = None
    search: Any = "auto"
    max_iter: int = 10_000
    tol: float = 1e-4
    draws: int = 200

    def __post_init__(self):
        check_types(self)
        check_least(self, restarts=1, max_iter=1, draws=1, tol=0)


# Of each likelihood; they have the same options.
ENGINES: dict[type, Engine] = {
    Poisson: vb.ENGINE,
    NegativeBinomial: overdispersed_vb.ENGINE,
    BatchedPoisson: batched_vb.ENGINE,
}


def supports(structure: Factorisation, options: Bound) -> Verdict:
    """What VB runs, of models that have an evidence."""
    is_flat = any(isinstance(factor.prior, Flat) for factor in (structure.W, structure.H))
    return has_evidence(structure) if is_flat else engine_of(structure).supports(structure, vb.VB())


def engine_of(structure: Factorisation) -> Engine:
    """Variational Bayes for the model's data."""
    return ENGINES[type(structure.likelihood)]


def estimate(structure: Factorisation, options: Bound, run: EvidenceRun) -> Estimate:
    """One chain: the best of a search, or of restarts."""
    fit = FitRun(
        max_iter=options.max_iter,
        tol=options.tol,
        draws=options.draws,
        cores=run.cores,
        progressbar=run.progressbar,
        executor=run.executor,
    )
    statistics, optima = {}, None
    if run.search is None:
        starts: list[dict] = [{}] * (options.restarts or RESTARTS)
        solutions, early = run_restarts(engine_of(structure), structure, vb.VB(), fit, run.key, starts)
        best, bounds = solutions[0], [solution.objective[-1] for solution in solutions]
        statistics["bound_of_restart"] = np.array([bounds])
    else:
        best, optima, early = run.search(engine_of(structure), structure, vb.VB(), fit, run.key)
    run.stopped = bool(early)
    return Estimate(
        log_evidence=np.array([best.objective[-1]]),
        standard_error=np.zeros(1),
        draws={name: value[None] for name, value in best.values.items()},
        statistics={**statistics, "converged": np.array([best.status == "converged"])},
        dims={"bound_of_restart": ("restart",)},
        optima=optima,
    )


METHOD: Method = Method(
    name="bound",
    likelihoods=tuple(ENGINES),
    takes_known=True,
    options=Bound,
    supports=supports,
    estimate=estimate,
    is_bound=True,
    runs=1,
)

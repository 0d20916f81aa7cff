"""The variational bound as a judge of ranks: the bound, and an estimate of what it lacks to the evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.counts import vb as variational
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.evidence.contract import Estimate, EvidenceRun, Job, Method
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import check_types
from nmf_zoo.runtime.engine import START, Verdict
from nmf_zoo.runtime.run_one import Iterations, run_one
from nmf_zoo.structure import Array, Factorisation, Poisson
from nmf_zoo.workbench.bound_correction import Posterior, shortfall, shortfall_error
from nmf_zoo.workbench.small_bounds import climb_small, is_small


@dataclass(frozen=True, kw_only=True)
class RankBound:
    """Options of the bound where ranks are compared.

    Attributes
    ----------
    vb : options of variational Bayes
    max_iter, tol : of each restart
    corrected : add an estimate of what the bound lacks, where that can be had for every rank. See
        :mod:`nmf_zoo.workbench.bound_correction`; False compares bounds as they are
    """

    vb: VB = field(default_factory=VB)
    max_iter: int = 10_000
    tol: float = 1e-6
    corrected: bool = True

    def __post_init__(self):
        check_types(self)
        if not isinstance(self.vb, VB):
            raise InputError("vb", repr(self.vb), "options of variational Bayes, e.g. nz.VB()")
        if isinstance(self.max_iter, bool) or not isinstance(self.max_iter, int) or self.max_iter < 1:
            raise InputError("max_iter", repr(self.max_iter), "an integer >= 1")
        if not self.tol >= 0.0:
            raise InputError("tol", repr(self.tol), "a number >= 0")


def supports(structure: Factorisation, options: RankBound) -> Verdict:
    return variational.supports(structure, options.vb)


def estimate(structure: Factorisation, options: RankBound, run: EvidenceRun) -> Estimate:
    """The bound of every chain; ``shortfall``, its error and ``status`` beside it."""
    found = run.each(lambda job: climb(structure, options, job), total=options.max_iter)
    bounds, shortfalls, errors, statuses = (np.array(column) for column in zip(*found, strict=True))
    return Estimate(
        log_evidence=bounds,
        standard_error=np.zeros(len(bounds)),
        statistics={"shortfall": shortfalls, "shortfall_error": errors, "status": statuses},
    )


def climb(structure: Factorisation, options: RankBound, job: Job) -> tuple[float, float, float, str]:
    """One restart: (bound, shortfall, its error, status)."""
    problem = variational.prepare(structure, options.vb, job.workers)
    state = variational.init(problem, child(job.key, START), {})
    found = climb_small(problem, state, options.max_iter, options.tol, job) if is_small(problem) else None
    if found is None:
        found = climb_by_steps(problem, state, options, job)
    q, bound, residual = found
    missing = shortfall(structure, q, state.values) if options.corrected else np.nan
    return bound, missing, shortfall_error(q, missing), "converged" if residual < options.tol else "max_iter"


def climb_by_steps(problem: Any, state: Any, options: RankBound, job: Job) -> tuple[Posterior, float, float]:
    """(q, bound, residual) of the engine's own iterations, one by one."""
    for at in run_one(variational.ENGINE, problem, state, Iterations(max_iter=options.max_iter, tol=options.tol), job):
        state, info = at.state, at.step.info
        job.report(at.step.number, f"bound {info['objective']:.6g}")
    return posterior_of(state), state.bound, float(info["residual"])


def posterior_of(state: Any) -> Posterior:
    """What the shortfall needs of a state of variational Bayes."""
    shapes: list[Array | None] = [q.shape for q in (state.W, state.H)]
    return Posterior(state.W.mean, state.H.mean, *shapes)


METHOD = Method(
    name="bound",
    verb="rank",
    likelihoods=(Poisson,),
    options=RankBound,
    supports=supports,
    estimate=estimate,
    is_bound=True,
    runs=1,
)

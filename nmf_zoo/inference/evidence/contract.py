"""What a method that estimates the evidence log p(X) is, and the independent runs that all of them share.

A method's file defines its frozen options and, gathered in a :class:`Method`::

    supports(structure, options)      -> Verdict       has_evidence(structure) and what the method adds
    estimate(structure, options, run) -> Estimate      one estimate per independent run (chain)

``run.each`` gives every chain a stream of its own, its share of the cores and a progress bar::

    def estimate(structure, options, run):
        problem = prepare(structure, options)
        parts = run.each(lambda job: _one_chain(problem, job), total=options.draws)
        ...

    def _one_chain(problem, job):
        for step in range(...):
            if job.is_stopped():
                break
            job.report(step + 1, "temperature 0.3")

An interrupted chain raises KeyboardInterrupt: the chains that had ended count, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from scipy.special import logsumexp

from nmf_zoo.inference.shared.conjugate import why_not
from nmf_zoo.inference.shared.requirements import takes_priors
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.engine import CAN_RUN, Registration, Verdict
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.progress import KERNELS
from nmf_zoo.structure import Array, Factorisation, Fixed, Flat, GammaPrior

Result = TypeVar("Result")
VALUE, ERROR = "log_marginal_likelihood", "log_marginal_likelihood_error"  # in sample_stats, the first as in PyMC's


@dataclass
class EvidenceRun:
    """How many independent runs, with which stream and cores. ``stopped`` tells afterwards whether Ctrl-C ended it.

    ``search`` is what an optimiser's fits go through, or None: an :class:`nmf_zoo.Search` for a method that ranks are
    judged by; for one of the registry, which stands below the searches, a function (engine, structure, options, run,
    key) -> (solution, optima, why it ended early). ``executor`` is where runs are made, or None: threads.
    """

    chains: int
    key: np.uint64
    cores: int = 1
    progressbar: bool = False
    compiles: str = KERNELS
    search: Any = None
    executor: Any = None
    stopped: bool = field(default=False, init=False)

    def each(self, work: Callable[[Job], Result], total: int) -> list[Result]:
        """``work(job)`` for every chain, side by side; ``total`` steps fill a progress bar."""
        chains = range(self.chains)
        bars: dict[str, Any] = {"word": "run", "total": total, "progressbar": self.progressbar}
        bars |= {"compiles": self.compiles, "executor": self.executor}
        with Jobs(self.chains, cores=self.cores, **bars) as jobs:
            found = jobs.run(lambda chain, job: work(job), chains, [child(self.key, chain) for chain in chains])
        self.stopped = bool(jobs.stop)
        if not found:
            raise KeyboardInterrupt
        return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the runs found.

    Attributes
    ----------
    log_evidence : (chains,) log p(X), or a lower bound of it
    standard_error : (chains,) each run's own Monte-Carlo error, from within the run; NaN when it has none, 0 when exact
    draws : variable name -> (chains, draws, *variable) draws from the posterior, in the model's orientation; or None
    statistics : name -> (chains, ...) more to report in ``sample_stats``
    dims : name -> dims of a statistic after the chains, where it has any
    optima : what a search found, or None
    """

    log_evidence: Array
    standard_error: Array
    draws: Mapping[str, Array] | None = None
    statistics: Mapping[str, Array] = field(default_factory=dict)
    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optima: Any = None

    @property
    def sample_stats(self) -> dict[str, tuple[tuple[str, ...], Array]]:
        """All of it but the draws, as (dims, array) by the names in ``sample_stats``."""
        found = {VALUE: self.log_evidence, ERROR: self.standard_error, **self.statistics}
        return {name: (("chain", *self.dims.get(name, ())), array) for name, array in found.items()}


@dataclass(frozen=True, kw_only=True)
class Method(Registration):
    """A way to the evidence, or to judge ranks, under its name.

    Attributes
    ----------
    estimate : see above
    is_bound : it gives a lower bound, not an estimate
    is_unbiased : each run's exp(log_evidence) is an unbiased estimate of p(X), so that runs average on that scale
    runs : how many when the caller does not say; a method without chance takes one
    in_pieces : it makes runs or fits, which an executor can make elsewhere
    """

    verb: Literal["evidence", "rank"] = "evidence"
    estimate: Callable[[Factorisation, Any, EvidenceRun], Estimate]
    is_bound: bool = False
    is_unbiased: bool = False
    runs: int = 4
    in_pieces: bool = True


def combine(estimate: Estimate, is_unbiased: bool) -> tuple[float, float]:
    """(log p(X), its standard error) of all runs together.

    The error is the larger of what the spread between the runs and what the runs' own errors say: few runs know little
    about their spread, and a run that missed part of the posterior knows nothing of it. Of unbiased runs it is the
    spread of the estimates, or of their logarithms where that is larger: of two that are nats apart the lesser hardly
    counts, and the first alone could not exceed one nat.
    """
    values, own = estimate.log_evidence, estimate.standard_error
    n = len(values)
    within = float(np.sqrt(np.mean(own**2) / n))
    if n == 1:
        return float(values[0]), within
    if not is_unbiased:
        return float(np.mean(values)), float(np.nanmax([np.std(values, ddof=1) / np.sqrt(n), within]))
    weights = np.exp(values - values.max())
    spreads = np.std(weights, ddof=1) / np.mean(weights), np.std(values, ddof=1)
    return float(logsumexp(values) - np.log(n)), float(np.nanmax([max(spreads) / np.sqrt(n), within]))


def has_evidence(structure: Factorisation, *families: Any, over_conjugates: bool = False) -> Verdict:
    """Whether p(X) exists and the methods that integrate over W and H alone reach it: of counts.

    ``families`` : of the priors that the method takes, gamma ones if none is given; ``over_conjugates`` : it integrates
    over rates and means with conjugate priors, too
    """
    likelihood, factors = structure.likelihood, (structure.W, structure.H)
    asked = takes_priors(structure, *(families or (GammaPrior,)))
    if not asked:
        return asked
    flat = [factor.name for factor in factors if isinstance(factor.prior, Flat)]
    if flat:
        verb = "has" if len(flat) == 1 else "have"
        return Verdict(
            f"{' and '.join(flat)} {verb} no prior, so that p({likelihood.name}) is known up to a constant only: give "
            "one (nz.gamma_nmf), or compare marginal likelihoods at the maximum (nz.gap, nz.fit(engine='mcem'))"
        )
    if all(isinstance(factor.prior, Fixed) for factor in factors):
        return Verdict("both factors are known: there is nothing to integrate over")
    if not structure.is_integer:
        return Verdict(f"{likelihood.name} holds values that are not integers, and no Poisson density sums to 1 there")
    has_free = any(unknown.prior.is_flat for unknown in structure.unknowns.values())
    if over_conjugates and structure.unknowns and not has_free:
        reason = why_not(structure)
        return Verdict(reason) if reason else CAN_RUN
    if structure.unknowns:
        names, known = ", ".join(structure.unknowns), " and ".join(factor.name for factor in factors)
        return Verdict(f"hyperparameter {names} is unknown, and the method integrates over {known} alone")
    return CAN_RUN

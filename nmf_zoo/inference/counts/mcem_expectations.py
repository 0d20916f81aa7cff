"""

E-steps of Monte-Carlo EM: Gibbs chains that go on where they were, and what is averaged over their sweeps.

Given W the chains are one per sample and independent (:mod:`nmf_zoo.kernels.counts.mcem_sweeps`). Where W has a prior
too, a chain is a sweep of Gibbs sampling over W, H and C (:mod:`nmf_zoo.inference.counts.gibbs`).

The log-likelihood comes from the same sweeps (Chib 1995): for any point h of a sample

    log p(x | W) = log p(x | W, h) + log p(h) - log p(h | x, W),     p(h | x, W) = E[p(h | C, W)]

with that mean taken over the kept sweeps, at the posterior mean h of the iteration before. Its logarithm is too low on
average, and the log-likelihood too high, by about half the mean's relative variance for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, psi, xlogy

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.marginal.exact import activation_prior, estimate, log_likelihoods, observe
from nmf_zoo.inference.shared.factor_view import prior_cells
from nmf_zoo.inference.shared.joint import LogJoint
from nmf_zoo.inference.shared.layout import Layout, compress, turn, weigh
from nmf_zoo.kernels.counts.mcem_sweeps import Chains, make_plan, make_workspace, run_chains
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.memory import require_memory
from nmf_zoo.runtime.engine import STEPS
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factor, Factorisation, GammaPrior, Known


class WantedExpectations(NamedTuple):
    """What to gather: sweeps, the first of which are discarded; expected sources; moments given C; E[log h]; counts."""

    sweeps: int
    burn_in: int
    expects: bool = True
    conditional: bool = True
    logs: bool = False
    reached: bool = False


class MCEMExpectations(NamedTuple):
    """Where the chains are now, the statistics by name, and what the objective is made of.

    objective : -log p(X | W), estimated, or the mean of -log p(X, W, H); error : of it, its standard deviation
    statistics : sources (F, K) sum_n E[C]; H (N, K) E[h], logs of it log_H; W, log_W alike; reached (K, counts)
    """

    W: Array
    Ht: Array
    statistics: dict[str, Array]
    objective: float
    error: float


class GivenW:
    """Chains of the activations, one per sample; ``by_features`` : how the cells lie, as of ``compress``."""

    def __init__(
        self,
        structure: Factorisation,
        workers: Workers,
        wanted: WantedExpectations,
        by_features: bool | None = None,
    ):
        layout, self.weights = compress(structure, by_features), weigh(structure)
        self.structure, self.workers, self.wanted = structure, workers, wanted
        self.log_joint = LogJoint(structure, layout, self.weights, workers)
        self.layout: Layout = turn(layout, structure.shape[1]) if layout.by_features else layout
        totals = np.add.reduceat(np.append(self.layout.values, 0.0), self.layout.indptr[:-1])
        self.most = int(totals.max(initial=0.0)) if wanted.reached else -1
        rank = structure.rank
        tables = 8.0 * rank * (self.most + 1) * (self.layout.n_chunks + 3)  # one for each chunk, and averages
        got, do = f"{self.most} counts in a sample", 'use MCEM(complete="H"), which keeps no table of counts'
        require_memory(structure.likelihood.name, got, tables, do)
        self.plan = make_plan(self.layout, rank, *wanted[:4])

    def __call__(
        self, W: Array, Ht: Array, values: Mapping[str, Array], centre: Array, key: np.uint64, first: int = 0
    ) -> MCEMExpectations:
        """Run the chains at W from Ht on, which is overwritten; ``first`` : the number of its first sample."""
        chains = self._chains(W, Ht, values, centre)
        sources = np.zeros_like(W)
        reached = np.zeros((W.shape[1], self.most + 1))
        failures = 0
        tasks = range(self.layout.n_chunks)
        for failed, part, counted in self.workers.map(lambda chunk: self._run(chunk, W, chains, key, first), tasks):
            failures += failed
            sources += part
            reached += counted
        if failures:
            raise RunFailed(f"mcem: {failures} counts lie where W H is 0: give a start with positive W there")
        kept = self.wanted.sweeps - self.wanted.burn_in
        statistics = {"sources": sources / kept, "H": chains.mean}
        if self.wanted.logs:
            statistics["log_H"] = chains.log
        if self.wanted.reached:
            statistics["reached"] = reached / kept
        error = float(np.sqrt(np.sum(chains.density[:, 1]))) if kept > 1 else np.nan  # one sweep doesn't tell
        return MCEMExpectations(W, Ht, statistics, -self._log_likelihood(W, chains), error)

    def _run(self, chunk: int, W: Array, chains: Chains, key: np.uint64, first: int) -> tuple[int, Array, Array]:
        sources, reached = np.zeros_like(W), np.zeros((W.shape[1], self.most + 1))
        samples = int(self.layout.chunks[chunk]), int(self.layout.chunks[chunk + 1])
        workspace_and_keys = make_workspace(self.layout, W.shape[1]), key, first
        return (
            run_chains(self.layout, W, chains, self.plan, samples, sources, reached, workspace_and_keys),
            sources,
            reached,
        )

    def _chains(self, W: Array, Ht: Array, values: Mapping[str, Array], centre: Array) -> Chains:
        priors = prior_cells(self.structure, values)
        rate = np.ascontiguousarray(priors.rate_h + self.weights.over_features(W))
        log = np.empty_like(Ht) if self.wanted.logs else np.empty((0, 0))
        shape = np.ascontiguousarray(priors.shape_h)
        return Chains(Ht, shape, rate, np.empty_like(Ht), np.empty_like(Ht), log, centre, np.empty((len(Ht), 2)))

    def _log_likelihood(self, W: Array, chains: Chains) -> float:
        """Chib's estimate."""
        h, shape = chains.centre, chains.shape
        prior_rate = chains.rate - self.weights.over_features(W)
        log_prior = float(np.sum(xlogy(shape, prior_rate) - gammaln(shape) + (shape - 1) * np.log(h) - prior_rate * h))
        return self.log_joint.log_likelihood(W, h) + log_prior - float(np.sum(chains.density[:, 0]))


def estimate_log_likelihood(
    structure: Factorisation, W: Array, values: Mapping[str, Array], sweeps: int, key: np.uint64, workers: Workers
) -> tuple[float, float]:
    """(log p(X | W), standard deviation of the estimate): Chib's, from so many sweeps at the posterior mean.

    As many sweeps before them, from the prior mean on, find that mean. Too high on average by half the square of the
    standard deviation, or more where sweeps are much alike.
    """
    priors = prior_cells(structure, values)
    Ht = np.ascontiguousarray(priors.shape_h / priors.rate_h)
    centre = GivenW(structure, workers, WantedExpectations(sweeps, sweeps // 2))(
        W, Ht, values, Ht.copy(), child(key, 0)
    )
    found = GivenW(structure, workers, WantedExpectations(sweeps, 0))(
        W, Ht, values, centre.statistics["H"], child(key, 1)
    )
    return -found.objective, found.error


class ExactLikelihood:
    """log p(X | W) by the dynamic programme of :mod:`nmf_zoo.inference.marginal.exact`, and what a call costs."""

    def __init__(self, structure: Factorisation, workers: Workers):
        self.structure, self.workers, self.samples = structure, workers, observe(structure)
        shape = (structure.shape[1], structure.rank)
        self.cost = estimate(self.samples, np.ones(structure.W.shape), np.ones(shape))

    def __call__(self, W: Array, values: Mapping[str, Array]) -> float:
        return float(np.sum(log_likelihoods(self.samples, W, *activation_prior(self.structure, values), self.workers)))


class Jointly:
    """One chain of W, H and C, whatever of the two factors has a prior."""

    def __init__(self, structure: Factorisation, workers: Workers, wanted: WantedExpectations):
        self.structure, self.wanted = structure, wanted
        known = _with_known(structure, {name: np.ones(u.variable_shape) for name, u in structure.unknowns.items()})
        options = gibbs.Gibbs(moves=("scale",), trajectories="never")  # after a shear C is out of date
        self.problem: Any = gibbs.prepare(known, options, workers)

    def __call__(
        self, W: Array, Ht: Array, values: Mapping[str, Array], centre: Array, key: np.uint64
    ) -> MCEMExpectations:
        """Run the chain from (W, Ht) on; both are overwritten."""
        known = _with_known(self.structure, values)
        problem = replace(self.problem, structure=known, priors=prior_cells(known, {}))
        log_joint = LogJoint(known, problem.layout, problem.weights, problem.workers)
        state = gibbs.GibbsState(W, Ht, {}, np.zeros_like(W), np.zeros_like(Ht), None)
        sums: dict[str, Array] = {}
        log_joints: list[float] = []
        for sweep in range(self.wanted.sweeps):
            state, _ = gibbs.step(problem, state, child(key, STEPS, sweep))
            if sweep >= self.wanted.burn_in:
                for name, value in self._moments(problem, state).items():
                    sums[name] = sums[name] + value if name in sums else value
                log_joints.append(log_joint(state.W, state.Ht, {}))
        statistics = {name: total / len(log_joints) for name, total in sums.items()}
        error = float(np.std(log_joints) / np.sqrt(len(log_joints)))
        return MCEMExpectations(state.W, state.Ht, statistics, -float(np.mean(log_joints)), error)

    def _moments(self, problem: Any, state: gibbs.GibbsState) -> dict[str, Array]:
        """Means of the factors and of their logarithms, given C and each other where that is wanted."""
        found = {"W": state.W.copy(), "H": state.Ht.copy()}
        sides = {
            "W": (self.structure.W, problem.priors[:2], state.of_features, lambda: problem.over_samples(state.Ht)),
            "H": (self.structure.H, problem.priors[2:4], state.of_samples, lambda: problem.over_features(state.W)),
        }
        for name, (factor, (shape, rate), counts, exposure) in sides.items():
            if factor.is_fixed:
                continue
            if self.wanted.conditional:
                shape, rate = shape + counts, rate + exposure()
                found[name], found[f"log_{name}"] = shape / rate, psi(shape) - np.log(rate)
            else:
                found[f"log_{name}"] = np.log(found[name])
        return found


def _with_known(structure: Factorisation, values: Mapping[str, Array]) -> Factorisation:
    """The same model with its unknown hyperparameters known."""
    W, H = (_factor_with_known(factor, values) for factor in (structure.W, structure.H))
    return replace(structure, W=W, H=H)


def _factor_with_known(factor: Factor, values: Mapping[str, Array]) -> Factor:
    if not isinstance(factor.prior, GammaPrior) or not factor.unknowns:
        return factor
    shape, rate = factor.prior.shape_and_rate(values)
    return replace(factor, prior=GammaPrior(shape=Known(value=np.asarray(shape)), rate=Known(value=np.asarray(rate))))

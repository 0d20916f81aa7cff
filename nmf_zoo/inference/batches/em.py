"""EM for counts in batches: an iteration of EM for counts, then the multipliers at their mode, then shared scales.

Given the multipliers M, with the prior Gamma(a, b), the model is that of counts with an exposure more, and an iteration
is one of :mod:`nmf_zoo.inference.counts.em`, Newton steps and momentum included. Given W and H the joint density is
highest, over observed cells, at::

    M_fb = (a - 1 + sum_{n in b} x_fn) / (b + sum_{n in b} e (W H)_fn + background)

with a in the place of a - 1 for the mode of the logarithms. Last, the scales that multipliers share with W and H go to
their best (:mod:`nmf_zoo.inference.batches.scales`). No step loses; the objective is -log p(X, W, H, M).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.batches.scales import best_scales
from nmf_zoo.inference.counts import em
from nmf_zoo.inference.counts.em import EM, EMInfo, EMProblem, EMState
from nmf_zoo.inference.shared.factor_view import as_one_draw
from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.inference.shared.multiplied import (
    BatchData,
    batch_data,
    multipliers_of,
    takes_multipliers,
    takes_proper,
    without_multipliers,
)
from nmf_zoo.inference.shared.start import start_hyperparameters
from nmf_zoo.runtime.engine import CAN_RUN, Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, BatchedPoisson, Factorisation


class BatchedEMState(NamedTuple):
    """The state of EM for counts at these multipliers, (F, B), and -log p of all."""

    counts: EMState
    M: Array
    objective: float = np.inf


@dataclass(frozen=True)
class BatchedEMProblem:
    """What all restarts share.

    ``counts`` : the same model without multipliers; ``prior`` : shape and rate of multipliers, (F, B) each
    """

    structure: Factorisation
    counts: EMProblem
    data: BatchData
    prior: tuple[Array, Array]

    def given(self, M: Array) -> EMProblem:
        """The model of counts with multipliers as exposures."""
        weights = self.data.at(self.data.multipliers.with_reference(M))
        return replace(self.counts, loss=self.counts.loss.with_weights(weights))

    @property
    def is_density(self) -> bool:
        return self.counts.options.mode == "density"


def supports(structure: Factorisation, options: EM) -> Verdict:
    """Counts with priors of both factors, or known ones, and gamma multipliers whose density has a maximum."""
    asked = has_data(structure) and takes_multipliers(structure) and takes_proper(structure)
    asked = asked and em.supports(without_multipliers(structure), options)
    return asked and _takes_mode(structure, options)


def _takes_mode(structure: Factorisation, options: EM) -> Verdict:
    multipliers = multipliers_of(structure)
    shape = multipliers.prior()[0]
    if options.mode == "log" or np.all(shape >= 1.0):
        return CAN_RUN
    counts = batch_data(structure).counts[:, : shape.shape[1]]
    n_empty = int(np.sum((shape < 1.0) & (counts == 0)))
    if not n_empty:
        return CAN_RUN
    return Verdict(
        f"the density of {multipliers.variable.name} has a shape below 1 and is unbounded at 0 where a feature has no "
        f'count in a batch ({n_empty} of {shape.size}): use EM(mode="log")'
    )


def prepare(structure: Factorisation, options: EM, workers: Workers) -> BatchedEMProblem:
    """Lay out the data for the updates, and add up what the multipliers need."""
    data = batch_data(structure)
    counts = em.prepare(without_multipliers(structure), options, workers)
    return BatchedEMProblem(structure, counts, data, data.multipliers.prior())


def init(problem: BatchedEMProblem, key: np.uint64, start: Mapping[str, Array]) -> BatchedEMState:
    """The start given, or a random one at the scale of the data, and multipliers at their prior mean."""
    multipliers = problem.data.multipliers
    name = multipliers.variable.name
    of_counts = {own: value for own, value in start.items() if own != name}
    M = np.maximum(multipliers.by_feature(start_hyperparameters(problem.structure, start)[name]), FLOOR)
    return BatchedEMState(em.init(problem.given(M), key, of_counts), M)


def step(
    problem: BatchedEMProblem, state: BatchedEMState, key: np.uint64 | None = None
) -> tuple[BatchedEMState, EMInfo]:
    """One iteration: W and H, then M, then what they share."""
    given = problem.given(state.M)
    counts, info = em.step(given, state.counts)
    new = _with_multipliers(problem, given, counts)
    moved = np.max(np.abs(new.M - state.M) / np.maximum(new.M.max(axis=0), FLOOR), initial=0.0)
    return new, EMInfo(new.objective, max(info.residual, float(moved)))


def _with_multipliers(problem: BatchedEMProblem, given: EMProblem, counts: EMState) -> BatchedEMState:
    """The best multipliers, and the best scales, at these factors."""
    data, (W, Ht), values = problem.data, counts[:2], counts.values
    log_likelihood = -counts.objective - em.log_priors(given, W, Ht, values)
    log_mean = log_likelihood + given.loss.weights.total(W, Ht) - given.loss.constant
    M = _best_multipliers(problem, data.sums(W, Ht))
    scales = best_scales(data, given.sides, (W, Ht), values, problem.prior, M, problem.is_density)
    by = scales.of_features, scales.of_samples
    M *= scales.of_features * scales.of_batches[: M.shape[1]]
    W, Ht = _divided(W, by[0]), _divided(Ht, by[1])
    other = counts.other and (_divided(counts.other[0], by[0]), _divided(counts.other[1], by[1]))
    log_mean -= scales.log_mean(data.counts)
    table, sums = data.multipliers.with_reference(M), data.sums(W, Ht)
    of_priors = em.log_priors(given, W, Ht, values)
    of_counts = log_mean - float(np.sum(table * (sums - data.background))) + given.loss.constant
    objective = -data.log_likelihood(log_mean, table, sums) - of_priors - _log_prior(problem, M)
    view = None if counts.view is None else counts.view._replace(log_likelihood=of_counts)
    new = counts._replace(W=W, Ht=Ht, other=other, view=view, objective=-of_counts - of_priors)
    return BatchedEMState(new, M, objective)


def _divided(factor: Array, scale: Array) -> Array:
    """The factor itself where nothing changes."""
    return factor if np.all(scale == 1.0) else np.maximum(factor / scale, FLOOR)


def _best_multipliers(problem: BatchedEMProblem, sums: Array) -> Array:
    shape, rate = problem.prior
    own = slice(0, shape.shape[1])
    top = shape - float(problem.is_density) + problem.data.counts[:, own]
    return np.maximum(top, 0.0) / (rate + sums[:, own])


def _log_prior(problem: BatchedEMProblem, M: Array) -> float:
    """Log density of the multipliers, or of their logarithms."""
    shape, rate = problem.prior
    power = shape - float(problem.is_density)
    return float(np.sum(xlogy(power, M) - rate * M + xlogy(shape, rate) - gammaln(shape)))


def finish(
    problem: BatchedEMProblem, state: BatchedEMState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The solution as a posterior of one draw; ``divergence`` of counts from their means, as of EM for counts."""
    multipliers, counts = problem.data.multipliers, state.counts
    values = {**counts.values, multipliers.variable.name: multipliers.as_variable(state.M)}
    of_priors = em.log_priors(problem.counts, counts.W, counts.Ht, counts.values) + _log_prior(problem, state.M)
    lacks = problem.counts.loss.at_data(values) + state.objective + of_priors
    return as_one_draw(problem.structure, counts.W, counts.Ht, values), {"divergence": np.float64(max(lacks, 0.0))}


ENGINE: Engine = Engine(
    name="em",
    verb="fit",
    likelihoods=(BatchedPoisson,),
    takes_known=True,
    options=EM,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
)

"""Variational Bayes for counts in batches: q(W) q(H) q(M) q(C), all conjugate.

A multiplier M_fb ~ Gamma(a, b) is common to all sources of a count, so that q of the sources does not know it. With
E[.] and the notation of :mod:`nmf_zoo.inference.counts.vb`, an iteration for counts at the exposure e E[M], then::

    q(M_fb) = Gamma(a + sum_{n in b} x_fn, b + sum_{n in b} e E[w_f . h_n] + background)

over observed cells, and then the scales that q(M) shares with q(W) and with q(H), of which only the priors know
(:mod:`nmf_zoo.inference.batches.scales`). The bound is that of counts at the exposure e E[M], with

    + sum_fb E[log M_fb] sum_{n in b} x_fn - KL(q(M) || p(M)) - sum_fb (E[M_fb] - 1) sum_{n in b} background

and never falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import digamma

from nmf_zoo.inference.batches.scales import SharedScales, best_scales
from nmf_zoo.inference.counts import vb
from nmf_zoo.inference.counts.vb import VB, Gamma, GammaApproximation, VBInfo, VBProblem, VBState
from nmf_zoo.inference.shared.factor_view import impute
from nmf_zoo.inference.shared.hyperparameters import gamma_divergence
from nmf_zoo.inference.shared.multiplied import (
    BatchData,
    batch_data,
    takes_multipliers,
    takes_proper,
    without_multipliers,
)
from nmf_zoo.inference.shared.start import start_hyperparameters
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.runtime.engine import Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, BatchedPoisson, Factorisation

MULTIPLIERS, IMPUTED = 10, 11  # children of the stream of the final draws, beside those of counts


class BatchedVBState(NamedTuple):
    """The state of VB for counts at E[M], the shape and rate of q(M), (F, B) each, and the bound."""

    counts: VBState
    shape: Array
    rate: Array
    bound: float = -np.inf


@dataclass(frozen=True)
class BatchedVBProblem:
    """What all restarts share.

    ``counts`` : the same model without multipliers; ``prior`` : shape and rate of multipliers, (F, B) each
    """

    structure: Factorisation
    counts: VBProblem
    data: BatchData
    prior: tuple[Array, Array]

    def given(self, M: Array) -> VBProblem:
        """The model of counts with multipliers as exposures."""
        return replace(self.counts, weights=self.data.at(self.data.multipliers.with_reference(M)))


def supports(structure: Factorisation, options: VB) -> Verdict:
    """Counts with gamma factors, or known ones, and gamma multipliers."""
    asked = has_data(structure) and takes_multipliers(structure) and takes_proper(structure)
    return asked and vb.supports(without_multipliers(structure), options)


def prepare(structure: Factorisation, options: VB, workers: Workers) -> BatchedVBProblem:
    """Lay out the data, and add up what the multipliers need."""
    data = batch_data(structure)
    counts = vb.prepare(without_multipliers(structure), options, workers)
    return BatchedVBProblem(structure, counts, data, data.multipliers.prior())


def init(problem: BatchedVBProblem, key: np.uint64, start: Mapping[str, Array]) -> BatchedVBState:
    """As of counts; q(M) has the mean that is given, or that of the prior."""
    multipliers = problem.data.multipliers
    name = multipliers.variable.name
    of_counts = {own: value for own, value in start.items() if own != name}
    M = multipliers.by_feature(start_hyperparameters(problem.structure, start)[name])
    shape = problem.prior[0] + problem.data.counts[:, : M.shape[1]]
    counts = vb.init(problem.given(M), key, of_counts)
    return BatchedVBState(counts, shape, shape / np.maximum(M, np.finfo(float).tiny))


def step(
    problem: BatchedVBProblem, state: BatchedVBState, key: np.uint64 | None = None
) -> tuple[BatchedVBState, VBInfo]:
    """One iteration: q of W and H, then of M, then what they share."""
    M = state.shape / state.rate
    given = problem.given(M)
    counts, info = vb.step(given, state.counts)
    new = _with_multipliers(problem, counts, state.shape)
    mean = new.shape / new.rate
    moved = np.max(np.abs(mean - M) / mean.max(axis=0), initial=0.0)
    return new, VBInfo(new.bound, max(info.residual, float(moved)))


def _with_multipliers(problem: BatchedVBProblem, counts: VBState, shape: Array) -> BatchedVBState:
    """The best q(M), and the best scales, at these factors."""
    data, W, H = problem.data, counts.W, counts.H
    rate = problem.prior[1] + data.sums(W.mean, H.mean)[:, : shape.shape[1]]
    means = W.mean, H.mean
    scales = best_scales(data, problem.counts.sides, means, counts.values, problem.prior, shape / rate, False)
    rate = rate / (scales.of_features * scales.of_batches[: shape.shape[1]])
    counts = _scaled(counts, scales, scales.log_mean(data.counts))
    given = problem.given(shape / rate)
    counts = counts._replace(bound=vb.bound(given, counts))
    return BatchedVBState(counts, shape, rate, counts.bound + _of_multipliers(problem, shape, rate))


def _scaled(state: VBState, scales: SharedScales, less: float) -> VBState:
    """q of the factors divided by their scales; ``less`` is what sum x log mean loses."""
    W, H = (_divided(q, by) for q, by in zip((state.W, state.H), (scales.of_features, scales.of_samples), strict=True))
    updated = state.updated and [
        own if own.shape is None or np.all(by == 1.0) else Gamma(own.shape, own.rate * by)
        for own, by in zip(state.updated, (scales.of_features, scales.of_samples), strict=True)
    ]
    sources = state.sources._replace(log_mean=state.sources.log_mean - less)
    return state._replace(W=W, H=H, updated=updated, sources=sources)


def _divided(q: GammaApproximation, by: Array) -> GammaApproximation:
    """q of v / by, (rows, 1); itself where nothing changes."""
    if np.all(by == 1.0):
        return q
    mean, log = q.mean / by, q.log - np.log(by)
    geometric = None if q.geometric is None else q.geometric / by
    sums = np.stack([mean.sum(axis=0), log.sum(axis=0)])
    return q._replace(mean=mean, log=log, geometric=geometric, rate=q.rate * by, sums=sums)


def _of_multipliers(problem: BatchedVBProblem, shape: Array, rate: Array) -> float:
    """What they add to the bound of counts at E[M]."""
    data, own = problem.data, slice(0, shape.shape[1])
    logs, means = digamma(shape) - np.log(rate), shape / rate
    total = float(np.sum(data.counts[:, own] * logs - (means - 1.0) * data.background[:, own]))
    return total - float(np.sum(gamma_divergence(shape, rate, *problem.prior)))


def finish(
    problem: BatchedVBProblem, state: BatchedVBState, key: np.uint64, draws: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Independent draws from q; the parameters of q for ``fit``."""
    multipliers, structure = problem.data.multipliers, problem.structure
    name = multipliers.variable.name
    values, parameters = vb.finish(problem.counts, state.counts, key, draws)
    generator = generator_of(child(key, MULTIPLIERS))
    drawn = generator.gamma(state.shape, 1.0, (draws, *state.shape.shape)) / state.rate
    values[name] = np.ascontiguousarray(np.swapaxes(drawn, -1, -2)) if multipliers.transposed else drawn
    if structure.imputed is not None:
        values[structure.imputed.name] = _impute(structure, values, draws, generator_of(child(key, IMPUTED)))
    of_M = {"shape": state.shape, "rate": state.rate}
    return values, parameters | {f"{name}_{role}": multipliers.as_variable(own) for role, own in of_M.items()}


def _impute(structure: Factorisation, values: Mapping[str, Array], draws: int, generator: np.random.Generator) -> Array:
    """(draws, cells), missing cells at each draw."""
    cells = []
    for i in range(draws):
        own = {name: array[i] for name, array in values.items()}
        W, H = structure.W.value(own), structure.H.value(own)
        cells.append(impute(structure, W[None], H.T[None], [generator], own)[0])
    return np.stack(cells)


ENGINE: Engine = Engine(
    name="vb",
    verb="fit",
    likelihoods=(BatchedPoisson,),
    takes_known=True,
    options=VB,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    finish=finish,
    maximise=True,
)

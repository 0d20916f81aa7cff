"""Gibbs sampling of counts in batches: a sweep of Gibbs for counts, then the multipliers, then moves of their scales.

With X ~ Poisson(M[f, b(n)] (e (W H) + background)) and M ~ Gamma(a, b), the multipliers are an exposure of every step
that draws W, H and their hyperparameters: of allocation, trajectories and moves alike. Given W and H::

    M_fb ~ Gamma(a + sum_{n in b} x_fn, b + sum_{n in b} e (W H)_fn + background)

over observed cells. What multiplies a feature's row of M and divides its row of W, or a batch's column of M and its
samples' columns of H, leaves the mean alone, and the data say nothing of it. So after the multipliers these scales are
drawn from their conditionals, which are generalised inverse Gaussian, as those of components are::

    c_f ~ c^(sum_b a - sum_k a_w - 1) exp(-c sum_b b M_fb - sum_k r_w w_fk / c)        M_f. -> c M_f., w_f. -> w_f. / c

and alike c_b, with the sums over features, and over components and samples of the batch. A row of M with a reference,
and a factor with known components or half-normal cells, stay as they are; beside a background, which M multiplies, too,
nothing is moved so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.counts import gibbs
from nmf_zoo.inference.counts.gibbs import Gibbs, GibbsInfo, GibbsProblem, GibbsState, TrajectoryInfo, check_finite
from nmf_zoo.inference.counts.sweeps import with_multipliers
from nmf_zoo.inference.shared.factor_view import PriorCells, as_variables, impute, prior_cells, two_sides
from nmf_zoo.inference.shared.joint import followed_means
from nmf_zoo.inference.shared.multiplied import (
    BatchData,
    batch_data,
    log_prior,
    takes_multipliers,
    takes_proper,
    without_multipliers,
)
from nmf_zoo.inference.shared.start import start_hyperparameters
from nmf_zoo.kernels.counts.gibbs import draw_scales
from nmf_zoo.kernels.random.draws import TINY, draw_factor
from nmf_zoo.kernels.random.keyed_rng import child, generator_of
from nmf_zoo.runtime.engine import Engine, Verdict, has_data
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, BatchedPoisson, Factorisation

MULTIPLIERS, SCALES_OF_FEATURES, SCALES_OF_BATCHES = 20, 21, 22  # children of a sweep's stream, beside those of counts


class BatchedGibbsState(NamedTuple):
    """The state of Gibbs for counts, and the multipliers (F, B)."""

    counts: GibbsState
    M: Array


@dataclass(frozen=True)
class BatchedGibbsProblem:
    """What all chains share.

    ``counts`` : the same model without multipliers; ``shape``, ``rate`` : (F, B) of the prior of multipliers
    """

    structure: Factorisation
    counts: GibbsProblem
    data: BatchData
    shape: Array
    rate: Array

    def given(self, M: Array) -> GibbsProblem:
        """The model of counts with multipliers as exposures."""
        table, sweeps = self.data.multipliers.with_reference(M), self.counts.sweeps
        if sweeps is not None:
            sweeps = with_multipliers(sweeps, table, self.data.multipliers.batch)
        return replace(self.counts, weights=self.data.at(table), sweeps=sweeps)


def supports(structure: Factorisation, options: Gibbs) -> Verdict:
    """Counts with proper priors of both factors, or known ones, and gamma multipliers."""
    asked = has_data(structure) and takes_multipliers(structure) and takes_proper(structure)
    asked = asked and gibbs.supports(without_multipliers(structure), options)
    if asked and options.temperatures is not None:
        return Verdict("temperatures=, and replicas are exchanged of poisson counts alone: leave it out")
    return asked


def prepare(structure: Factorisation, options: Gibbs, workers: Workers) -> BatchedGibbsProblem:
    """Lay out the data for the sweeps, and add up what the multipliers need."""
    data = batch_data(structure)
    counts = gibbs.prepare(without_multipliers(structure), options, workers)
    return BatchedGibbsProblem(structure, counts, data, *data.multipliers.prior())


def init(problem: BatchedGibbsProblem, key: np.uint64, start: Mapping[str, Array]) -> BatchedGibbsState:
    """The start given, or a random one of W and H at the scale of the data, and multipliers at their prior mean."""
    multipliers = problem.data.multipliers
    name = multipliers.variable.name
    of_counts = {own: value for own, value in start.items() if own != name}
    M = multipliers.by_feature(start_hyperparameters(problem.structure, start)[name])
    return BatchedGibbsState(gibbs.init(problem.counts, key, of_counts), np.array(np.maximum(M, TINY), order="C"))


def step(
    problem: BatchedGibbsProblem, state: BatchedGibbsState, key: np.uint64
) -> tuple[BatchedGibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep."""
    counts, info = gibbs.step(problem.given(state.M), state.counts, key)
    return _draw_multipliers(problem, BatchedGibbsState(counts, state.M), key), info


def tune(
    problem: BatchedGibbsProblem, state: BatchedGibbsState, key: np.uint64
) -> tuple[BatchedGibbsState, GibbsInfo | TrajectoryInfo]:
    """One sweep of the warm-up, which adapts the trajectories."""
    counts, info = gibbs.tune(problem.given(state.M), state.counts, key)
    return _draw_multipliers(problem, BatchedGibbsState(counts, state.M), key), info


def _draw_multipliers(problem: BatchedGibbsProblem, state: BatchedGibbsState, key: np.uint64) -> BatchedGibbsState:
    """Multipliers from their conditionals, then the scales that they share with W and H; in place."""
    data, (W, Ht), M = problem.data, state.counts[:2], state.M
    of_batches = slice(0, M.shape[1])
    shape = problem.shape + data.counts[:, of_batches]
    rate = problem.rate + data.sums(W, Ht)[:, of_batches]
    draw_factor(M, shape, rate, 0, len(M), child(key, MULTIPLIERS))
    if "scale" in problem.counts.options.moves and data.leaves_scales:
        priors = problem.counts.priors or prior_cells(problem.structure, state.counts.values)
        _move_scales(problem, state, priors, key)
    return state


def _move_scales(problem: BatchedGibbsProblem, state: BatchedGibbsState, priors: PriorCells, key: np.uint64) -> None:
    multipliers, (W, Ht), M = problem.data.multipliers, state.counts[:2], state.M
    of_W, of_H = two_sides(problem.structure)
    if of_W.is_gamma and of_W.factor.known is None and not multipliers.has_reference:
        tilt = problem.shape.sum(axis=1) - priors.shape_w.sum(axis=1)
        rates = (problem.rate * M).sum(axis=1), (priors.rate_w * W).sum(axis=1)
        scale = draw_scales_of(tilt, *rates, child(key, SCALES_OF_FEATURES))[:, None]
        np.maximum(M * scale, TINY, out=M)
        np.maximum(W / scale, TINY, out=W)
    if of_H.has_gamma_cells and of_H.factor.known is None:
        over_samples = multipliers.sum_samples(
            np.stack([priors.shape_h.sum(axis=1), (priors.rate_h * Ht).sum(axis=1)], 1)
        )
        shapes, sums = over_samples[: M.shape[1]].T
        tilt = problem.shape.sum(axis=0) - shapes
        scale = draw_scales_of(tilt, (problem.rate * M).sum(axis=0), sums, child(key, SCALES_OF_BATCHES))
        np.maximum(M * scale, TINY, out=M)
        whole = np.append(scale, 1.0)  # of a reference
        np.maximum(Ht / whole[multipliers.batch][:, None], TINY, out=Ht)


def draw_scales_of(tilt: Array, of_multipliers: Array, of_factor: Array, key: np.uint64) -> Array:
    """c with the density c^(tilt - 1) exp(-c of_multipliers - of_factor / c), one for each entry."""
    scale = np.empty(len(tilt))
    draw_scales(scale, np.array(tilt), 2.0 * of_multipliers, 2.0 * of_factor, key)
    return scale


def draw(
    problem: BatchedGibbsProblem, state: BatchedGibbsState, key: np.uint64
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The variables of the model at this state, and their log joint density with the followed cells of W H."""
    structure, data, (W, Ht) = problem.structure, problem.data, state.counts[:2]
    multipliers = data.multipliers
    values = as_variables(structure, W, Ht) | {name: own.copy() for name, own in state.counts.values.items()}
    values[multipliers.variable.name] = multipliers.as_variable(state.M)
    if structure.imputed is not None:
        generators = [generator_of(key)]
        values[structure.imputed.name] = impute(structure, W[None], Ht[None], generators, values)[0]
    log_mean = problem.counts.log_joint.sources.gather(W, Ht, sides="").log_mean
    lp = data.log_likelihood(log_mean, multipliers.with_reference(state.M), data.sums(W, Ht))
    lp += log_prior(structure, W, Ht.T, values) + structure.log_imputed(W, Ht.T, values)
    check_finite(np.float64(lp), W, Ht)
    return values, {"lp": np.float64(lp), "mean": followed_means(W, Ht, problem.counts.checked)}


ENGINE: Engine = Engine(
    name="gibbs",
    verb="sample",
    likelihoods=(BatchedPoisson,),
    takes_known=True,
    options=Gibbs,
    supports=supports,
    prepare=prepare,
    init=init,
    step=step,
    tune=tune,
    draw=draw,
)

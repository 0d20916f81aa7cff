"""What particles expect at given parameters: an estimate of the likelihood, and the sums that the M-step takes.

Smoothed sums over time come in one pass forward over the samples. ``smoothed_sums(filtering, weights, smoother, key)``
runs a :class:`ParticleFilter` and carries the sums of :mod:`nmf_zoo.kernels.hmm.particles.statistics` along. Its
log-likelihood and the filter's ``track`` are those of ``filtering.run`` with the same key. An online learner makes room
with :func:`make_carried`, steps with the kernels of :mod:`nmf_zoo.kernels.hmm.particles.smoothing_sums` itself, and
:func:`split_sums` says which of the sums is which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.hmm.chains import formulas_of
from nmf_zoo.inference.hmm.laws import after_block, law_of
from nmf_zoo.inference.hmm.m_step import ChainCounts
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, Report, draw_paths, plan_of, require_weight
from nmf_zoo.inference.hmm.samples import CountsBySample, read_samples
from nmf_zoo.inference.shared.layout import Weights
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.filter import FilterPlan
from nmf_zoo.kernels.hmm.particles.laws import FIRSTS, PAIRS
from nmf_zoo.kernels.hmm.particles.smoothing_sums import Backward, Forward, PathSmoother, Smoother, sum_block
from nmf_zoo.kernels.hmm.particles.statistics import Carried, StatisticRows, total_sums
from nmf_zoo.structure import Array, ChainPrior, Factorisation

EXACT = 2e9  # densities of steps: up to there paths are drawn exactly, which takes seconds
STEPS = 8  # of Metropolis for each sample of a path beyond that


class ParticleExpectations(NamedTuple):
    """The E-step of EM by particles.

    Attributes
    ----------
    log_p : the estimate of log p(X)
    sources : (F, K) sum_t E[c_fkt | X]
    activations : (F, K) or (1, K) sum_t weight_ft E[h_kt | X]
    chain : ChainCounts
    """

    log_p: float
    sources: Array
    activations: Array
    chain: Any


@dataclass(frozen=True)
class Particles:
    """A model's data and how they are filtered."""

    structure: Factorisation
    samples: CountsBySample
    options: Any
    plan: FilterPlan

    def filter(self, W: Array, values: Mapping[str, Array], moments: bool = False) -> ParticleFilter:
        """The filter at these parameters."""
        prior = self.structure.H.prior
        assert isinstance(prior, ChainPrior)
        law = law_of(prior, values, self.structure.rank)
        target = Target(self.samples.counts(W), np.ascontiguousarray(W), self.samples.base, law)
        return ParticleFilter(target, self.plan, self.options.particles, moments)

    def log_likelihood(self, filtering: ParticleFilter, key: np.uint64) -> float:
        """An estimate of log p(X)."""
        log_p, impossible, _ = filtering.run(key)
        require_weight(impossible, "particle_em", self.structure.axes[1], self.options)
        return log_p + self.samples.constant

    def expect(self, W: Array, values: Mapping[str, Array], key: np.uint64) -> ParticleExpectations:
        """The E-step at these parameters."""
        filtering, options = self.filter(W, values), self.options
        wanted = WantedSums(
            activations=not self.structure.W.is_fixed,
            sources=not self.structure.W.is_fixed,
            pairs=bool(self.structure.unknowns),
            first=bool(self.structure.unknowns),
        )
        sums = smoothed_sums(filtering, self.samples.weights, SMOOTHERS[options.smoother], key, wanted)
        require_weight(sums.impossible, "particle_em", self.structure.axes[1], options)
        chain = ChainCounts(sums.pairs, sums.first, filtering.n_times - 1)
        return ParticleExpectations(sums.log_likelihood + self.samples.constant, sums.sources, sums.activations, chain)

    def paths(self, W: Array, values: Mapping[str, Array], draws: int, key: np.uint64) -> Array:
        """Draws of H given X, (draws, K, T), all where the chain has a density."""
        n_densities = float(draws) * self.options.particles * self.structure.shape[1] * self.structure.rank
        drawn = draw_paths(self.filter(W, values), draws, key, steps=0 if n_densities <= EXACT else STEPS)
        require_weight(drawn.impossible, "particle_em", self.structure.axes[1], self.options)
        return formulas_of(self.structure.H.prior).inside(drawn.h)


def read_particles(structure: Factorisation, options: Any) -> Particles:
    """Lay out the data for particles."""
    return Particles(structure, read_samples(structure), options, plan_of(options, structure))


# -- smoothed sums ---------------------------------------------------------------------------------------------------


SMOOTHERS = {
    "path": PathSmoother(),
    "forward": Forward(),
    "backward": Backward(),
}


class WantedSums(NamedTuple):
    """Which sums are carried: each row costs time."""

    activations: bool = True
    sources: bool = True
    pairs: bool = True
    first: bool = True


ALL = WantedSums()


class SmoothedSums(NamedTuple):
    """What a pass says. Of a part that was not wanted there is nothing: an array of no rows.

    Attributes
    ----------
    log_likelihood : the estimate of log p(X), up to the terms without particles (``CountsBySample.constant``); -inf
        where all particles lost their weight
    impossible : WITHOUT_DATA (-1), or the time at which they did: then the sums say nothing
    activations : (F, K) sum_t w_ft E[h_kt | X], w = mask * exposure, or (1, K) where that is the same for all features
    sources : (F, K) sum_t E[c_fkt | X]
    pairs : (K, P) over times 2..T, see PAIRS of ``laws``
    first : (K, D) see FIRSTS
    """

    log_likelihood: float
    impossible: int
    activations: Array
    sources: Array
    pairs: Array
    first: Array


def smoothed_sums(
    filtering: ParticleFilter,
    weights: Weights,
    smoother: Smoother,
    key: np.uint64,
    wanted: WantedSums = ALL,
    report: Report = lambda done: None,
) -> SmoothedSums:
    """Filter all times and smooth on the way; ``weights`` are those of the samples, ``smoother`` one of SMOOTHERS."""
    target, shape = filtering.target, filtering.target.W.shape
    weight_rows = 1 if weights.matrix is None else shape[0]
    carried = make_carried(target.law.kind, shape, filtering.n_particles, smoother, weight_rows, wanted)
    population = filtering.make_population()
    how, track, impossible = (filtering.steps, smoother), filtering.track, WITHOUT_DATA
    for span in filtering.spans():
        rows = _weights_of(weights, *span)
        impossible = sum_block(population, carried, target, how, rows, track, span, key)
        population = after_block(population, *span)
        if impossible != WITHOUT_DATA:
            break
        report(span[1])
    sums = np.zeros(len(carried.table))
    total_sums(sums, carried, population.weights)
    activations, *rest = split_sums(sums, carried.rows, shape)
    if weights.matrix is None and wanted.activations:
        activations = weights.of_features * activations
    total = filtering.log_likelihood if impossible == WITHOUT_DATA else -math.inf
    return SmoothedSums(total, impossible, activations, *rest)


def _weights_of(weights: Weights, first: int, last: int) -> Array:
    """What the samples of a block weigh, (last - first, R) or (1, R); features' own weights come later if R = 1."""
    if weights.matrix is None:
        of_samples = weights.of_samples
        return of_samples[first:last] if len(of_samples) > 1 else of_samples
    block = weights.matrix[:, first:last]
    return np.ascontiguousarray((block.toarray() if sp.issparse(block) else block).T, dtype=np.float64)


def make_carried(
    kind: int,
    shape: tuple[int, int],
    n_particles: int,
    smoother: Smoother,
    weight_rows: int = 1,
    wanted: WantedSums = ALL,
) -> Carried:
    """Scratch for the sums of chains of this kind (BASIS, UNIT, LOG_NORMAL).

    ``shape`` is (F, K), of W. ``weight_rows``: 1 where the weight of a sample is the same for all features, or differs
    by a factor that the caller knows; else F.
    """
    n_features, rank = shape
    sizes = (weight_rows * rank, n_features * rank, PAIRS[kind] * rank, FIRSTS[kind] * rank)
    rows = StatisticRows(
        *(int(end) for end in np.cumsum([size if use else 0 for size, use in zip(sizes, wanted, strict=True)]))
    )
    needs_densities, needs_spare = not isinstance(smoother, PathSmoother), isinstance(smoother, Forward)
    return Carried(
        table=np.zeros((rows.end, n_particles)),
        scale=np.ones(1),
        before=np.zeros((2, n_particles)),
        rows=rows,
        ready=np.zeros((2 * rank, n_particles) if needs_densities else (0, 0)),
        spare=np.zeros((rows.end, n_particles) if needs_spare else (0, 0)),
        workspace=np.zeros((4, n_particles)),
        drawn=np.zeros((smoother.draws + 3, n_particles), np.uint64),
    )


def split_sums(sums: Array, rows: StatisticRows, shape: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """(activations (R, K), sources (F, K), pairs (K, P), first (K, D)) of sums; empty where not carried."""
    activations, sources, pairs, first = np.split(sums, (rows.sources, rows.pairs, rows.first))
    rank = shape[1]
    return activations.reshape(-1, rank), sources.reshape(-1, rank), pairs.reshape(rank, -1), first.reshape(rank, -1)

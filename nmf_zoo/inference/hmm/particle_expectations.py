"""What particles expect at given parameters: an estimate of the likelihood, and the sums that the M-step takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.hmm.chain_updates import ChainCounts
from nmf_zoo.inference.hmm.laws import law_of
from nmf_zoo.inference.hmm.particle_filter import ParticleFilter, plan_of, require_weight
from nmf_zoo.inference.hmm.particle_paths import draw_paths
from nmf_zoo.inference.hmm.particle_sums import SMOOTHERS, Wanted, smoothed_sums
from nmf_zoo.inference.hmm.samples import Samples, read_samples
from nmf_zoo.kernels.particles.emission import Target
from nmf_zoo.kernels.particles.filter import Plan
from nmf_zoo.structure import Array, Chain, Factorisation

EXACT = 2e9  # densities of steps: up to there paths are drawn exactly, which takes seconds
STEPS = 8  # of Metropolis for each sample of a path beyond that


class Expectations(NamedTuple):
    """The E-step of EM by particles.

    Attributes
    ----------
    log_p : the estimate of log p(X)
    sources : (F, K) sum_t E[c_fkt | X]
    drag : (F, K) or (1, K) sum_t weight_ft E[h_kt | X]
    chain : ChainCounts
    """

    log_p: float
    sources: Array
    drag: Array
    chain: Any


@dataclass(frozen=True)
class Particles:
    """A model's data and how they are filtered."""

    structure: Factorisation
    samples: Samples
    options: Any
    plan: Plan

    def filter(self, W: Array, values: Mapping[str, Array], moments: bool = False) -> ParticleFilter:
        """The filter at these parameters."""
        prior = self.structure.H.prior
        assert isinstance(prior, Chain)
        law = law_of(prior, values, self.structure.rank)
        target = Target(self.samples.counts(W), np.ascontiguousarray(W), self.samples.base, law)
        return ParticleFilter(target, self.plan, self.options.particles, moments)

    def log_likelihood(self, filtering: ParticleFilter, key: np.uint64) -> float:
        """An estimate of log p(X)."""
        log_p, impossible, _ = filtering.run(key)
        require_weight(impossible, "smc", self.structure.axes[1], self.options)
        return log_p + self.samples.constant

    def expect(self, W: Array, values: Mapping[str, Array], key: np.uint64) -> Expectations:
        """The E-step at these parameters."""
        filtering, options = self.filter(W, values), self.options
        wanted = Wanted(
            activations=not self.structure.W.is_fixed,
            sources=not self.structure.W.is_fixed,
            pairs=bool(self.structure.unknowns),
            first=bool(self.structure.unknowns),
        )
        sums = smoothed_sums(filtering, self.samples.weights, SMOOTHERS[options.smoother], key, wanted)
        require_weight(sums.impossible, "smc", self.structure.axes[1], options)
        chain = ChainCounts(sums.pairs, sums.first, filtering.n_times - 1)
        return Expectations(sums.log_likelihood + self.samples.constant, sums.sources, sums.activations, chain)

    def paths(self, W: Array, values: Mapping[str, Array], draws: int, key: np.uint64) -> Array:
        """Draws of H given X, (draws, K, T)."""
        n_densities = float(draws) * self.options.particles * self.structure.shape[1] * self.structure.rank
        drawn = draw_paths(self.filter(W, values), draws, key, steps=0 if n_densities <= EXACT else STEPS)
        require_weight(drawn.impossible, "smc", self.structure.axes[1], self.options)
        return drawn.h


def read_particles(structure: Factorisation, options: Any) -> Particles:
    """Lay out the data for particles."""
    return Particles(structure, read_samples(structure), options, plan_of(options, structure))

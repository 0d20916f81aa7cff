"""A particle filter over a block of times that carries smoothed sums along."""

from __future__ import annotations

from nmf_zoo.kernels.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.particles.additive import carry
from nmf_zoo.kernels.particles.passes import filter_times
from nmf_zoo.kernels.particles.statistics import add_sample, begin_sums
from nmf_zoo.kernels.streams import fold, kernel


@kernel
def sum_block(population, carried, target, how, weights, track, span, key):
    """As `filter_block` over the times of ``span`` (first, last), and add up.

    ``how`` (plan, smoother); ``weights`` (last - first, R) of the samples, or (1, R) of all.
    """
    (plan, smoother), (first, last) = how, span
    for t in range(first, last):
        population, impossible = filter_times(population, target, plan, track, t, t + 1, key)
        if impossible != WITHOUT_DATA:
            return impossible
        if t == 0:
            begin_sums(carried, population, target.law, 1.0)
        else:
            carry(carried, smoother, population, target.law, 1.0, 1.0, fold(key, t))
        add_sample(carried, population, target, weights[t - first if weights.shape[0] > 1 else 0], 1.0, t)
    return WITHOUT_DATA

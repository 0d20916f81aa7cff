"""One step of a particle filter: from the particles of one sample to those of the next, reweighed.

A step resamples where the effective sample size, 1 / sum w^2 of the normalised weights, has fallen below a share of the
particles; then each particle moves on from its ancestor by the proposal q, and weighs::

    w_i  prop. to  w_a f(h_i | h_a) g(x_t | h_i) / q(h_i | h_a, x_t),      w_a = 1 / N after resampling

The sum of these, relative to that of the weights before, estimates p(x_t | x_1, ..., x_{t-1}); the product of the
estimates is an unbiased estimate of the likelihood. An auxiliary filter (Pitt, Shephard 1999) resamples by w_a l_a,
where l_a looks ahead at how well ancestor a explains x_t, and weighs by 1 / l_a.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nmf_zoo.kernels.particles.emission import log_emission
from nmf_zoo.kernels.particles.laws import draw_first, move
from nmf_zoo.kernels.resampling import resample_by
from nmf_zoo.kernels.streams import fold, kernel

BOOTSTRAP, GUIDED, AUXILIARY = range(3)
RESAMPLE, PROPOSE = range(2)  # children of a step's key


class Plan(NamedTuple):
    """How to filter.

    Attributes
    ----------
    proposal : BOOTSTRAP, GUIDED or AUXILIARY
    scheme : of `resampling`
    threshold : resample where the effective sample size is below this share of the particles, inside [0, 1]
    """

    proposal: int
    scheme: int
    threshold: float


class Population(NamedTuple):
    """Weighted particles and room for their step.

    Attributes
    ----------
    cloud : Cloud of the last sample
    other : that of the sample before, which particles moved from; room for the next
    log_weights : (N,) normalised: their exponentials sum to 1
    ancestors : (N,) int64, the particles of ``other`` that those of ``cloud`` came from
    increments : (N,) log f - log q of the last move
    look : (N,) log of how well each particle explains the next sample
    weights, rates : (N,) room
    """

    cloud: Any
    other: Any
    log_weights: Any
    ancestors: Any
    increments: Any
    look: Any
    weights: Any
    rates: Any


@kernel
def begin(population, target, t, plan, key):
    """(log p(x_t), effective sample size): draw and weigh the particles of the first sample."""
    for i in range(population.ancestors.size):
        population.ancestors[i] = i
        population.log_weights[i] = -math.log(population.ancestors.size)
        population.increments[i] = 0.0
    draw_first(population.cloud, target.law, fold(key, PROPOSE))
    return weigh(population, target, t)


@kernel
def advance(population, target, t, plan, key):
    """(population, log p(x_t | the past), effective sample size, resampled 0 or 1): one step, ``cloud`` the new one."""
    look(population, target, t, plan)
    resampled = resample_if_due(population, plan, fold(key, RESAMPLE))
    propose(population, target, t, plan, fold(key, PROPOSE))
    swapped = Population(
        population.other,
        population.cloud,
        population.log_weights,
        population.ancestors,
        population.increments,
        population.look,
        population.weights,
        population.rates,
    )
    log_p, size = weigh(swapped, target, t)
    return swapped, log_p, size, resampled


@kernel
def look(population, target, t, plan):
    """Overwrite ``look``: nothing is seen of the next sample."""
    for i in range(population.look.size):
        population.look[i] = 0.0


@kernel
def resample_if_due(population, plan, key):
    """1 if the particles were resampled; then their weights are what corrects for having looked ahead."""
    n, log_weights, ahead = population.look.size, population.log_weights, population.look
    for i in range(n):
        population.ancestors[i] = i
        log_weights[i] += ahead[i]
    total, size = normalise(population.weights, log_weights)
    if not total > -math.inf:
        return 0
    if not size < plan.threshold * n:
        for i in range(n):
            log_weights[i] += total - ahead[i]
        return 0
    resample_by(population.ancestors, population.weights, plan.scheme, key)
    for i in range(n):
        log_weights[i] = total - math.log(n) - ahead[population.ancestors[i]]
    return 1


@kernel
def propose(population, target, t, plan, key):
    """Move the particles from ``cloud`` to ``other`` by the chain's own law."""
    move(population.other, population.cloud, population.ancestors, target.law, key)
    for i in range(population.increments.size):
        population.increments[i] = 0.0


@kernel
def weigh(population, target, t):
    """(log-likelihood of the sample, effective sample size): reweigh the moved particles by the sample."""
    log_weights, gains = population.log_weights, population.weights
    log_emission(gains, population.rates, population.cloud.h, target, t)
    for i in range(log_weights.size):
        log_weights[i] += population.increments[i] + gains[i]
    return normalise(population.weights, log_weights)


@kernel
def normalise(weights, log_weights):
    """(log of the sum, effective sample size): normalise, and overwrite weights with the normalised ones.

    Where all weights are 0 the sum's logarithm is -inf and the arrays are left as they are.
    """
    peak, total, squares = -math.inf, 0.0, 0.0
    for i in range(log_weights.size):
        peak = max(peak, log_weights[i])
    if not peak > -math.inf:
        return -math.inf, 0.0
    for i in range(log_weights.size):
        weights[i] = math.exp(log_weights[i] - peak)
        total += weights[i]
        squares += weights[i] * weights[i]
    shift = peak + math.log(total)
    for i in range(log_weights.size):
        weights[i] /= total
        log_weights[i] -= shift
    return shift, total * total / squares

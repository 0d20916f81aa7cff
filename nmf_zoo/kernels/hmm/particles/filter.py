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

from nmf_zoo.kernels.compile import chosen_by, in_lanes, inlined, kernel, summing
from nmf_zoo.kernels.compile.apart import call_at
from nmf_zoo.kernels.hmm.basis_states import largest
from nmf_zoo.kernels.hmm.particles.emission import log_emission
from nmf_zoo.kernels.hmm.particles.proposals import AUXILIARY, look_ahead, propose, propose_first
from nmf_zoo.kernels.numerics.special import LARGEST_POWER, fast_exp
from nmf_zoo.kernels.random.keyed_rng import fold
from nmf_zoo.kernels.random.resampling import resample_by

RESAMPLE, PROPOSE = range(2)  # children of a step's key


class FilterPlan(NamedTuple):
    """How to filter.

    Attributes
    ----------
    proposal : BOOTSTRAP, GUIDED or AUXILIARY of `proposals`; the population's ``ahead`` must be of that
    scheme : of `resampling`
    threshold : resample where the effective sample size is below this share of the particles, inside [0, 1]
    guide : Guide of `proposals`, for chains of the target's kind; None with BOOTSTRAP
    """

    proposal: int
    scheme: int
    threshold: float
    guide: Any = None


class AddressedPlan(NamedTuple):
    """A FilterPlan that looks ahead, and the address of `step_in_place` for it: see `next_step`."""

    plan: Any
    step: Any


class Population(NamedTuple):
    """Weighted particles and scratch for their step.

    Attributes
    ----------
    cloud : Cloud of the last sample
    other : that of the sample before, which particles moved from; scratch for the next
    log_weights : (N,) normalised: their exponentials sum to 1
    ancestors : (N,) int64, the particles of ``other`` that those of ``cloud`` came from
    increments : (N,) log f - log q of the last move
    look : (N,) log of how well each particle explains the next sample
    weights, rates : (N,) scratch; after a step ``weights`` are the normalised ones
    ahead : of `proposals`: which proposal, and its scratch
    """

    cloud: Any
    other: Any
    log_weights: Any
    ancestors: Any
    increments: Any
    look: Any
    weights: Any
    rates: Any
    ahead: Any


@kernel
def begin(population, target, t, plan, key):
    """(log p(x_t), effective sample size): draw and weigh the particles of the first sample."""
    population.log_weights[:] = -math.log(population.ancestors.size)
    for i in range(population.ancestors.size):
        population.ancestors[i] = i
    propose_first(population.ahead, plan.guide, population, target, t, fold(key, PROPOSE))
    return weigh(population, target, t)


@kernel
def advance(population, target, t, plan, key):
    """(population, log p(x_t | the past), effective sample size, resampled 0 or 1): one step, ``cloud`` the new one."""
    look_ahead(population.ahead, plan.guide, population, target, t)
    if plan.proposal != AUXILIARY:
        population.look[:] = 0.0
    resampled = resample_if_due(population, plan, fold(key, RESAMPLE))
    propose(population.ahead, plan.guide, population, target, t, fold(key, PROPOSE))
    population = with_clouds(population, population.other, population.cloud)
    log_p, size = weigh(population, target, t)
    return population, log_p, size, resampled


@inlined
def with_clouds(population, cloud, other):
    """The population with these clouds."""
    return Population(
        cloud,
        other,
        population.log_weights,
        population.ancestors,
        population.increments,
        population.look,
        population.weights,
        population.rates,
        population.ahead,
    )


@kernel
def step_in_place(population, target, t, is_first, plan, key):
    """(log p(x_t | the past), effective sample size, resampled 0 or 1): either step, for who changes clouds himself."""
    if is_first:
        log_p, size = begin(population, target, t, plan, key)
        return log_p, size, 0
    _, log_p, size, resampled = advance(population, target, t, plan, key)
    return log_p, size, resampled


@kernel
def begin_by_address(population, target, t, plan, key):
    log_p, size, _ = call_at(plan.step, (population, target, t, True, plan.plan, key))
    return log_p, size


@kernel
def advance_by_address(population, target, t, plan, key):
    log_p, size, resampled = call_at(plan.step, (population, target, t, False, plan.plan, key))
    return with_clouds(population, population.other, population.cloud), log_p, size, resampled


@chosen_by("plan", {FilterPlan: begin, AddressedPlan: begin_by_address})
def first_step(population, target, t, plan, key):
    """`begin`"""


@chosen_by("plan", {FilterPlan: advance, AddressedPlan: advance_by_address})
def next_step(population, target, t, plan, key):
    """`advance`, which all passes share by its address if it looks ahead.

    A blind step of a hundred particles takes 3 us, of which such a call would be a tenth: it is compiled with the pass.
    """


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
    peak = largest(log_weights)
    if not peak > -math.inf:
        return -math.inf, 0.0
    set_likelihoods(weights, log_weights, peak)
    total, squares = sum_and_squares(weights)
    shift = peak + math.log(total)
    scale_both(weights, 1.0 / total, log_weights, shift)
    return shift, total * total / squares


@in_lanes
def set_likelihoods(out, log_weights, peak):
    """out = e^(log_weights - peak), 0 far below."""
    for i in range(out.size):
        below = log_weights[i] - peak
        out[i] = fast_exp(below) if below > -LARGEST_POWER else 0.0


@summing
def sum_and_squares(row):
    """(sum, sum of squares)"""
    total, squares = 0.0, 0.0
    for i in range(row.size):
        total += row[i]
        squares += row[i] * row[i]
    return total, squares


@in_lanes
def scale_both(weights, scale, log_weights, shift):
    """weights *= scale, log_weights -= shift"""
    for i in range(weights.size):
        weights[i] *= scale
        log_weights[i] -= shift

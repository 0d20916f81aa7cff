"""Looking ahead with unit chains: proposals that know the sample to come.

A component goes down, to U(0, x), or up, to U(x, 1), so that the next activations are a regression with a spike and a
slab for each component: most of them stay within the spike at their nearer end, a few cross over. With g close to a
normal, expectation propagation (`guided_sites`) finds for each particle how likely each component
is to go either way, given the sample and all that the others may do; its normalising constant is the look. The proposal
draws the components one after the other, the rest integrated out: which way, then where, from the normal truncated to
that piece. Which way is a function of where, so that the density of the proposal is known.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.particles.guided_sites import (
    LEAST_VARIANCE,
    begin_block,
    condition,
    draw,
    finish_log_z,
    follow,
    hedge,
    is_by_own_law,
    put_in,
    see,
    take_out,
)
from nmf_zoo.kernels.hmm.particles.laws import Law
from nmf_zoo.kernels.hmm.particles.truncated import draw_truncated, integrals, is_even
from nmf_zoo.kernels.hmm.particles.unit import SMALLEST, move
from nmf_zoo.kernels.numerics.special import fast_exp, fast_log
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

CHANCE_UP, DOWN, UP = range(3)  # rows of ``moments`` that set_chances overwrites


@kernel
def look(ahead, population, target, t):
    """Overwrite ``population.look`` with how well each particle explains sample t."""
    see(ahead, population, population.cloud, target, target.law, t, pool, seek)
    if ahead.seen[0] == 1:
        hedge(population.look, population.log_weights)


@kernel
def propose(ahead, population, target, t, key):
    """Move particle i from ancestors[i] of ``cloud`` to ``other``; increments = log f - log q."""
    draw(ahead, population, population.other, population.cloud, target.law, key, move, draw_block)


@kernel
def propose_first(ahead, population, target, t, key):
    """Draw the particles of the first time with the sample in view, into ``cloud``; increments = log f - log q.

    A uniform law is that of a step from 1/2 with both ways as likely.
    """
    new, middle, law = population.cloud, population.other, target.law
    middle.h[:] = 0.5
    middle.aux[:] = 0.5
    even = Law(law.kind, np.full_like(law.parameters, 0.5), law.initial)
    see(ahead, population, middle, target, even, t, pool, seek)
    draw(ahead, population, new, middle, even, key, move, draw_block)


@kernel
def towards_0(below, above, alpha):
    """The chance to go down."""
    return alpha if below <= above else 1.0 - alpha


@kernel
def own_moments(below, above, alpha):
    """(mean, mean square) of the next activation by the chain alone."""
    down = towards_0(below, above, alpha)
    mean = 0.5 * (down * below + (1.0 - down) * (2.0 - above))
    return mean, (down * below * below + (1.0 - down) * (3.0 - 3.0 * above + above * above)) / 3.0


@summing
def pool(vectors, weights, cloud, law):
    """Overwrite rows 0 and 1 of ``vectors`` with mean and variance of the population's next activations."""
    for k in range(cloud.h.shape[0]):
        first, second = 0.0, 0.0
        for i in range(weights.size):
            mean, square = own_moments(cloud.h[k, i], cloud.aux[k, i], law.parameters[0, k])
            first += weights[i] * mean
            second += weights[i] * square
        vectors[0, k], vectors[1, k] = first, max(second - first * first, LEAST_VARIANCE)


@kernel
def seek(block, ahead, law):
    """Overwrite sites and log_z of the block by expectation propagation: from the pooled sites, each twice anew."""
    rank = block.mean.shape[0]
    begin_block(block, ahead.shared[rank : 2 * rank], ahead.vectors[3], ahead.vectors[0:2])
    for k in range(rank):
        begin_site(block, k, ahead.vectors[4, k], law.parameters[0, k])
        follow(block, k)
    block.scale[:] = 0.0
    for k in range(rank):
        take_out(block, k)
        set_moments(block, k, law.parameters[0, k])
        put_in(block, k)
    finish_log_z(block, ahead.vectors[2])


@in_lanes
def begin_site(block, k, bound_shift, alpha):
    """Replace site k by the normal of the component's own mean and variance, shifted to keep within the bounds."""
    for lane in range(block.log_z.size):
        below, above = block.old[0, k, lane], block.old[1, k, lane]
        mean, square = own_moments(below, above, alpha)
        precision = 1.0 / max(square - mean * mean, LEAST_VARIANCE)
        block.change[0, lane] = precision - block.sites[0, k, lane]
        shift = mean * precision + bound_shift
        block.change[1, lane] = shift - block.sites[1, k, lane]
        block.sites[0, k, lane], block.sites[1, k, lane] = precision, shift


@in_lanes
def set_moments(block, k, alpha):
    """Overwrite ``moments`` with those of component k's law times its cavity."""
    moments, log_near, log_far = block.moments, math.log(alpha), math.log(1.0 - alpha)
    for lane in range(block.log_z.size):
        below, above = block.old[0, k, lane], block.old[1, k, lane]
        precision, shift = block.cavity[0, lane], block.cavity[1, lane]
        log_0, mean_0, variance_0 = integrals(0.0, below, precision, shift)
        log_1, mean_1, variance_1 = integrals(below, above, precision, shift)
        log_0 += log_near if below <= above else log_far
        log_1 += log_far if below <= above else log_near
        top = max(log_0, log_1)
        odds = fast_exp(min(log_0, log_1) - top)
        lesser, gap = odds / (1.0 + odds), mean_1 - mean_0
        up = lesser if log_1 < log_0 else 1.0 - lesser
        moments[0, lane] = top + fast_log(1.0 + odds)
        moments[1, lane] = mean_0 + up * gap
        moments[2, lane] = variance_0 + up * (variance_1 - variance_0) + up * (1.0 - up) * gap * gap


@kernel
def draw_block(block, new, law, start, key):
    """Draw the particles from ``start`` on, one component after the other, and set log_z to log q - log f."""
    rank, n = new.h.shape
    block.log_z[:] = 0.0
    for k in range(rank):
        alpha, stream = law.parameters[0, k], fold(key, k)
        condition(block, k, new.h, start)
        set_chances(block, k, alpha)
        for lane in range(min(block.log_z.size, n - start)):
            is_own = is_by_own_law(key, rank, start + lane)
            draw_component(block, new, (k, lane, start + lane), alpha, is_own, fold(stream, start + lane))


@in_lanes
def set_chances(block, k, alpha):
    """Overwrite ``moments``: chance of going up looking ahead, log q - log f of going down and up, as far as known."""
    moments, log_near, log_far = block.moments, math.log(alpha), math.log(1.0 - alpha)
    for lane in range(block.log_z.size):
        below, above = block.old[0, k, lane], block.old[1, k, lane]
        precision, shift = block.cavity[0, lane], block.cavity[1, lane]
        log_0, _, _ = integrals(0.0, below, precision, shift)
        log_1, _, _ = integrals(below, above, precision, shift)
        own_0 = log_near if below <= above else log_far
        own_1 = log_far if below <= above else log_near
        log_odds = log_1 + own_1 - log_0 - own_0
        odds = fast_exp(-abs(log_odds))
        shared = fast_log(1.0 + odds)
        moments[CHANCE_UP, lane] = (1.0 if log_odds > 0.0 else odds) / (1.0 + odds)
        moments[DOWN, lane] = min(-log_odds, 0.0) - shared - own_0
        moments[UP, lane] = min(log_odds, 0.0) - shared - own_1
        moments[DOWN, lane] -= 0.0 if is_even(0.0, below, precision, shift) else log_0
        moments[UP, lane] -= 0.0 if is_even(below, above, precision, shift) else log_1


@kernel
def draw_component(block, new, place, alpha, is_own, key):
    """Draw a component of a particle, by its own law or looking ahead; adds log q - log f of the latter either way."""
    k, lane, i = place
    below, above = block.old[0, k, lane], block.old[1, k, lane]
    precision, shift = block.cavity[0, lane], block.cavity[1, lane]
    is_up = uniform(key, 0) < (1.0 - towards_0(below, above, alpha) if is_own else block.moments[CHANCE_UP, lane])
    low, width = (below, above) if is_up else (0.0, below)
    even = is_even(low, width, precision, shift)
    distance = width * uniform(key, 1) if even or is_own else draw_truncated(low, width, precision, shift, fold(key, 1))
    if is_up:
        new.aux[k, i] = max(above - distance, SMALLEST)
        new.h[k, i] = max(1.0 - new.aux[k, i], below)
    else:
        new.h[k, i] = max(distance, SMALLEST)
        new.aux[k, i] = max(1.0 - new.h[k, i], above)
    block.log_z[lane] += block.moments[UP if is_up else DOWN, lane]
    if not even:
        block.log_z[lane] += (low + distance) * (shift - 0.5 * precision * (low + distance))

"""Looking ahead with binary chains: proposals that know the sample to come.

The next states are a regression on K switches. With g close to a normal, expectation propagation
(`guided_sites`) finds for each particle how likely each switch is to be on, given the sample and all that the others
may do; its normalising constant is the look. The proposal draws the switches one after the other, the rest integrated
out, each with a known probability.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.particles.basis import move
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
from nmf_zoo.kernels.numerics.special import fast_exp, fast_log
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

SWEEPS = 3  # of expectation propagation: states 0 and 1 are further from normal than pieces of an interval


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

    The first law is that of a step from a state that is off.
    """
    new, off, law = population.cloud, population.other, target.law
    off.h[:] = 0.0
    off.aux[:] = 0.0
    parameters = law.parameters.copy()
    parameters[0] = 1.0 - law.initial[0]
    first = Law(law.kind, parameters, law.initial)
    see(ahead, population, off, target, first, t, pool, seek)
    draw(ahead, population, new, off, first, key, move, draw_block)


@summing
def pool(vectors, weights, cloud, law):
    """Overwrite rows 0 and 1 of ``vectors`` with mean and variance of the population's next states."""
    for k in range(cloud.h.shape[0]):
        on, p, q = 0.0, law.parameters[0, k], law.parameters[1, k]
        for i in range(weights.size):
            on += weights[i] * (q if cloud.h[k, i] > 0.5 else 1.0 - p)
        vectors[0, k], vectors[1, k] = on, max(on * (1.0 - on), LEAST_VARIANCE)


@kernel
def seek(block, ahead, law):
    """Overwrite sites and log_z of the block by expectation propagation: from the pooled sites, each twice anew."""
    rank = block.mean.shape[0]
    begin_block(block, ahead.shared[rank : 2 * rank], ahead.vectors[3], ahead.vectors[0:2])
    for k in range(rank):
        begin_site(block, k, ahead.vectors[4, k], law.parameters[0, k], law.parameters[1, k])
        follow(block, k)
    for _ in range(SWEEPS):
        block.scale[:] = 0.0
        for k in range(rank):
            take_out(block, k)
            set_moments(block, k, law.parameters[0, k], law.parameters[1, k])
            put_in(block, k)
    finish_log_z(block, ahead.vectors[2])


@in_lanes
def begin_site(block, k, bound_shift, p, q):
    """Replace site k by the normal of the component's own mean and variance, shifted to keep within the bounds."""
    for lane in range(block.log_z.size):
        on = q if block.old[0, k, lane] > 0.5 else 1.0 - p
        precision = 1.0 / max(on * (1.0 - on), LEAST_VARIANCE)
        block.change[0, lane] = precision - block.sites[0, k, lane]
        shift = on * precision + bound_shift
        block.change[1, lane] = shift - block.sites[1, k, lane]
        block.sites[0, k, lane], block.sites[1, k, lane] = precision, shift


@in_lanes
def set_moments(block, k, p, q):
    """Overwrite ``moments`` with those of component k's law times its cavity."""
    for lane in range(block.log_z.size):
        on = q if block.old[0, k, lane] > 0.5 else 1.0 - p
        log_off, log_on = fast_log(1.0 - on), fast_log(on)
        log_on += block.cavity[1, lane] - 0.5 * block.cavity[0, lane]
        odds = fast_exp(-abs(log_on - log_off))
        chance = (1.0 if log_on > log_off else odds) / (1.0 + odds)
        block.moments[0, lane] = max(log_on, log_off) + fast_log(1.0 + odds)
        block.moments[1, lane] = chance
        block.moments[2, lane] = odds / ((1.0 + odds) * (1.0 + odds))


@kernel
def draw_block(block, new, law, start, key):
    """Draw the particles from ``start`` on, one component after the other, and set log_z to log q - log f."""
    rank, n = new.h.shape
    block.log_z[:] = 0.0
    for k in range(rank):
        p, q, stream = law.parameters[0, k], law.parameters[1, k], fold(key, k)
        condition(block, k, new.h, start)
        set_chances(block, k, p, q)
        for lane in range(min(block.log_z.size, n - start)):
            is_own = is_by_own_law(key, rank, start + lane)
            own = q if block.old[0, k, lane] > 0.5 else 1.0 - p
            is_on = uniform(stream, np.uint64(start + lane)) < (own if is_own else block.moments[0, lane])
            block.log_z[lane] += block.moments[2 if is_on else 1, lane]
            new.h[k, start + lane] = new.aux[k, start + lane] = 1.0 if is_on else 0.0


@in_lanes
def set_chances(block, k, p, q):
    """Overwrite ``moments``: chance of being on looking ahead, log q - log f of being off and on."""
    moments = block.moments
    for lane in range(block.log_z.size):
        on = q if block.old[0, k, lane] > 0.5 else 1.0 - p
        log_off, log_on = fast_log(1.0 - on), fast_log(on)
        log_odds = log_on - log_off + block.cavity[1, lane] - 0.5 * block.cavity[0, lane]
        odds = fast_exp(-abs(log_odds))
        shared = fast_log(1.0 + odds)
        moments[0, lane] = (1.0 if log_odds > 0.0 else odds) / (1.0 + odds)
        moments[1, lane] = min(-log_odds, 0.0) - shared - log_off
        moments[2, lane] = min(log_odds, 0.0) - shared - log_on

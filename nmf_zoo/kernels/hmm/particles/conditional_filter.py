"""Particle Gibbs with ancestor sampling: a new path of some chains that leaves their posterior invariant.

A conditional particle filter has one particle, here always particle 0, that follows the path of before; the others move
as in any filter. At every step that resamples, the old path's past is drawn anew as well: of the particles at the time
before, it is i with probability::

    prop. to  w_{t-1}^i f(path_t | h_{t-1}^i)

In the end a particle is drawn by its weight, and its line of ancestors is the new path. However few the particles (two
are enough), the step leaves p(path | X) invariant; without ancestor sampling it does too, but the path's beginning
hardly ever moves. Lindsten, Jordan, Schoen (2014), Particle Gibbs with ancestor sampling, algorithm 2.

The path is a cloud of which every column is a time.

**Resampling** given where one particle comes from: the ancestors of all others, as the scheme draws them. Of a scheme
that gives particle i n w_i children on average, let one child chosen at random be of particle b, which has probability
w_b. The law of the other n - 1, given that, is what the conditional particle filter needs (Andrieu, Doucet, Holenstein
2010, section 4.3; Chopin, Singh 2015, section 5). The chosen child stands at a level that is uniform on the interval of
b, (c_{b-1}, c_b]; the others are::

    systematic   at the levels that differ from it by a multiple of 1 / n
    stratified   at uniform levels in the other strata
    residual     it is a certain child of b with probability floor(n w_b) / (n w_b), else one of those left over; the
                 other certain ones, and the others left over as they come
    multinomial  independent of it

Systematic and stratified children depend on the order of the particles, one of which is special here: the order is
random, so that no particle has a place of its own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, kernel
from nmf_zoo.kernels.compile.apart import call_at
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA, pick
from nmf_zoo.kernels.hmm.particles import guided_log_normal
from nmf_zoo.kernels.hmm.particles.filter import PROPOSE, RESAMPLE, normalise, weigh, with_clouds
from nmf_zoo.kernels.hmm.particles.guided_sites import block_of, condition, fetch, set_increments, take_apart
from nmf_zoo.kernels.hmm.particles.guided_unit import DOWN, UP, set_chances
from nmf_zoo.kernels.hmm.particles.laws import LOG_NORMAL, UNIT, Cloud, prepare_steps, steps_to
from nmf_zoo.kernels.hmm.particles.proposal_scratch import Ahead
from nmf_zoo.kernels.hmm.particles.proposals import (
    AUXILIARY,
    Blind,
    look_ahead,
    propose,
    propose_first,
)
from nmf_zoo.kernels.hmm.particles.truncated import is_even
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.random.resampling import (
    MULTINOMIAL,
    RESIDUAL,
    SYSTEMATIC,
    add_certain_children,
    add_children,
)

# -- resampling ------------------------------------------------------------------------------------------------------


ORDER, LEVELS, CHOSEN = range(3)  # children of the key


@kernel
def resample_others(ancestors, weights, scheme, order, key):
    """Overwrite ancestors[1:] (n - 1,) given ancestors[0], by the normalised weights (n,); order (n,) is scratch."""
    if scheme in (RESIDUAL, MULTINOMIAL):
        n_children = order
        n_children[:] = 0
        if scheme == RESIDUAL:
            add_residual_others(n_children, weights, ancestors[0], key)
        else:
            add_children(n_children, weights, weights.size - 1, MULTINOMIAL, fold(key, LEVELS))
        list_children(ancestors, n_children)
    else:
        shuffle(order, fold(key, ORDER))
        place_on_levels(ancestors, weights, scheme, order, key)


@kernel
def shuffle(order, key):
    """Overwrite order (n,) with a random permutation."""
    for i in range(order.size):
        j = np.int64(uniform(key, i) * (i + 1))
        order[i] = order[j]
        order[j] = i


@kernel
def place_on_levels(ancestors, weights, scheme, order, key):
    """A child on each level but that of ancestors[0], the particles in this order."""
    n, levels, given = weights.size, fold(key, LEVELS), np.int64(ancestors[0])
    total, below, chosen = 0.0, 0.0, uniform(fold(key, CHOSEN), 0)
    for i in range(n):
        if order[i] == given:
            below = total + chosen * weights[given]
        total += weights[order[i]]
    stratum = min(np.int64(below / total * n), n - 1)
    shift = below / total * n - stratum
    i, reached, place = 0, weights[order[0]], 1
    for j in range(n):
        if j != stratum:
            level = (j + (shift if scheme == SYSTEMATIC else uniform(levels, j))) * total / n
            while reached < level and i < n - 1:
                i += 1
                reached += weights[order[i]]
            ancestors[place] = order[i]
            place += 1


@kernel
def add_residual_others(n_children, weights, given, key):
    """The children of all but the one that is known to be of particle ``given``."""
    n = weights.size
    left = add_certain_children(n_children, weights)
    certain = n_children[given]
    is_certain = uniform(fold(key, CHOSEN), 0) * weights[given] * n < certain or left == 0
    if left > 0:
        chances = np.empty(n)
        for i in range(n):
            chances[i] = weights[i] * n - n_children[i]
        add_children(n_children, chances, left if is_certain else left - 1, MULTINOMIAL, fold(key, LEVELS))
    if is_certain:
        n_children[given] -= 1


@kernel
def list_children(ancestors, n_children):
    """Overwrite ancestors[1:], each particle as often as it has children."""
    place = 1
    for i in range(n_children.size):
        for _ in range(n_children[i]):
            ancestors[place] = i
            place += 1


@kernel
def pick_by_logs(log_weights, workspace, level):
    """The particle at which the running sum of e^log_weights passes ``level`` of the total; workspace (n,)."""
    peak, total = -math.inf, 0.0
    for i in range(log_weights.size):
        peak = max(peak, log_weights[i])
    for i in range(log_weights.size):
        workspace[i] = math.exp(log_weights[i] - peak)
        total += workspace[i]
    left, found = level * total, 0
    for i in range(log_weights.size):
        if workspace[i] > 0.0:
            found = i
            left -= workspace[i]
            if left < 0.0:
                break
    return found


# -- proposals -------------------------------------------------------------------------------------------------------


@kernel
def log_normal_increment(ahead, population, law, t, i):
    return guided_log_normal.increment_given(ahead, population.cloud, i, population.ancestors[i])


@kernel
def unit_increment(ahead, population, law, t, i):
    """Of a unit chain, whose first time is a step from 1/2 with both ways as likely (see `guided_unit`)."""
    if ahead.seen[0] == 0:
        return 0.0
    rank, new = population.cloud.h.shape[0], population.cloud
    block, increment = block_of(rank), np.empty(1)
    fetch(block, ahead, population.other, population.ancestors[i : i + 1])
    if t == 0:
        block.old[:] = 0.5
    take_apart(block, ahead.shared[:rank], ahead.vectors[2])
    block.log_z[:] = 0.0
    for k in range(rank):
        condition(block, k, new.h, i)
        set_chances(block, k, 0.5 if t == 0 else law.parameters[0, k])
        add_log_ratio(block, k, new.h[k, i], new.aux[k, i])
    set_increments(increment, block)
    return increment[0]


INCREMENTS = {UNIT: unit_increment, LOG_NORMAL: log_normal_increment}


@kernel
def no_increment(ahead, increment, population, law, t, i):
    return 0.0


@kernel
def guided_increment(ahead, increment, population, law, t, i):
    return call_at(increment, (ahead, population, law, t, i))


@chosen_by("ahead", {Blind: no_increment, Ahead: guided_increment})
def increment_given(ahead, increment, population, law, t, i):
    """log f - log q of particle i of ``cloud`` from its ancestor in ``other``; at the first time from none."""


@kernel
def add_log_ratio(block, k, h, aux):
    """Add log q - log f of component k at h, aux = 1 - h, in the first lane."""
    below, above = block.old[0, k, 0], block.old[1, k, 0]
    precision, shift = block.cavity[0, 0], block.cavity[1, 0]
    is_up = h > below if below <= above else aux < above
    low, width = (below, above) if is_up else (0.0, below)
    block.log_z[0] += block.moments[UP if is_up else DOWN, 0]
    if not is_even(low, width, precision, shift):
        block.log_z[0] += h * (shift - 0.5 * precision * h)


# -- the filter ------------------------------------------------------------------------------------------------------


ANCESTOR, OTHERS = range(2)  # children of the key of a step's resampling
LAST = 0  # child of the run's key


class FilterHistory(NamedTuple):
    """All particles of all times.

    Attributes
    ----------
    h, aux : (T, K, N) the clouds
    ancestors : (T, N) int32, of the particles at the time before; row 0 is not used
    ready : (2 K, N) scratch for step densities
    order : (N,) int64 scratch
    """

    h: Any
    aux: Any
    ancestors: Any
    ready: Any
    order: Any


@kernel
def renew_path(path, history, population, target, how, key):
    """(times at which the new path is of new particles, 1 if the first is among them, WITHOUT_DATA): overwrite path.

    Where all weights are 0, the path stays and the last number is the time at which they are. ``population`` is
    scratch: its arrays without the clouds. ``how`` (plan, increment): the address of one of INCREMENTS, or None.
    """
    (plan, increment), n_times = how, path.h.shape[1]
    for t in range(n_times):
        new, step_key = Cloud(history.h[t], history.aux[t]), fold(key, t + 1)
        if t == 0:
            here = with_clouds(population, new, new)
            begin_given(here, target, t, plan, fold(step_key, PROPOSE))
        else:
            before = with_clouds(population, Cloud(history.h[t - 1], history.aux[t - 1]), new)
            look_ahead(before.ahead, plan.guide, before, target, t)
            resample_given(before, history, path, target, t, plan, fold(step_key, RESAMPLE))
            propose(before.ahead, plan.guide, before, target, t, fold(step_key, PROPOSE))
            here = with_clouds(population, new, before.cloud)
        put_path(here, path, increment, target.law, t)
        log_p, _ = weigh(here, target, t)
        if not log_p > -math.inf:
            return 0, 0, t
    last = pick(population.weights, uniform(fold(key, LAST), 0))
    renewed, first = trace(path, history, last)
    return renewed, first, WITHOUT_DATA


@kernel
def begin_given(population, target, t, plan, key):
    """Draw the particles of the first time."""
    for i in range(population.ancestors.size):
        population.log_weights[i] = -math.log(population.ancestors.size)
        population.ancestors[i] = i
    propose_first(population.ahead, plan.guide, population, target, t, key)


@kernel
def put_path(population, path, increment, law, t):
    """Particle 0 is on the path, and weighs as if it had been proposed."""
    for k in range(path.h.shape[0]):
        population.cloud.h[k, 0], population.cloud.aux[k, 0] = path.h[k, t], path.aux[k, t]
    population.increments[0] = increment_given(population.ahead, increment, population, law, t, 0)


@kernel
def resample_given(population, history, path, target, t, plan, key):
    """Overwrite the ancestors if resampling is due: particle 0's by ancestor sampling, the others' given that."""
    n, log_weights, ahead = population.look.size, population.log_weights, population.look
    if plan.proposal != AUXILIARY:
        ahead[:] = 0.0
    for i in range(n):
        log_weights[i] += ahead[i]
    _, size = normalise(population.weights, log_weights)
    if plan.threshold < 1.0 and not size < plan.threshold * n:
        for i in range(n):
            population.ancestors[i] = i
            log_weights[i] -= ahead[i]
    else:
        population.ancestors[0] = draw_ancestor(population, history.ready, path, target.law, t, fold(key, ANCESTOR))
        resample_others(population.ancestors, population.weights, plan.scheme, history.order, fold(key, OTHERS))
        for i in range(n):
            log_weights[i] = -math.log(n) - ahead[population.ancestors[i]]
    for i in range(n):
        history.ancestors[t, i] = population.ancestors[i]


@kernel
def draw_ancestor(population, ready, path, law, t, key):
    """Which particle of the time before the path of now comes from; having looked ahead has no part in it."""
    chances = population.increments  # free until the next proposal
    prepare_steps(ready, population.cloud, law)
    steps_to(chances, ready, path, t, population.cloud, law)
    for i in range(chances.size):
        chances[i] += population.log_weights[i] - population.look[i]
    return pick_by_logs(chances, population.rates, uniform(key, 0))


@kernel
def trace(path, history, last):
    """(times at which the line of particle ``last`` is not particle 0's, 1 if the first is): it is the new path."""
    i, renewed = last, 0
    for t in range(path.h.shape[1] - 1, -1, -1):
        for k in range(path.h.shape[0]):
            path.h[k, t], path.aux[k, t] = history.h[t, k, i], history.aux[t, k, i]
        renewed += 1 if i != 0 else 0
        if t > 0:
            i = history.ancestors[t, i]
    return renewed, 1 if i != 0 else 0

"""Particle Gibbs with ancestor sampling: a new path of some chains that leaves their posterior invariant.

A conditional particle filter has one particle, here always particle 0, that follows the path of before; the others move
as in any filter. At every step that resamples, the old path's past is drawn anew as well: of the particles at the time
before, it is i with probability::

    prop. to  w_{t-1}^i f(path_t | h_{t-1}^i)

In the end a particle is drawn by its weight, and its line of ancestors is the new path. However few the particles (two
are enough), the step leaves p(path | X) invariant; without ancestor sampling it does too, but the path's beginning
hardly ever moves. Lindsten, Jordan, Schoen (2014), Particle Gibbs with ancestor sampling, algorithm 2.

The path is a cloud of which every column is a time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nmf_zoo.kernels.basis_chain import WITHOUT_DATA, pick
from nmf_zoo.kernels.particles.conditional_proposals import increment_given
from nmf_zoo.kernels.particles.conditional_resampling import pick_by_logs, resample_others
from nmf_zoo.kernels.particles.filter import PROPOSE, RESAMPLE, Population, normalise, weigh
from nmf_zoo.kernels.particles.laws import Cloud
from nmf_zoo.kernels.particles.proposals import AUXILIARY, look_ahead, propose, propose_first
from nmf_zoo.kernels.particles.step_densities import prepare_steps, steps_to
from nmf_zoo.kernels.streams import fold, kernel, uniform

ANCESTOR, OTHERS = range(2)  # children of the key of a step's resampling
LAST = 0  # child of the run's key


class History(NamedTuple):
    """All particles of all times.

    Attributes
    ----------
    h, aux : (T, K, N) the clouds
    ancestors : (T, N) int32, of the particles at the time before; row 0 is not used
    ready : (2 K, N) room for step densities
    order : (N,) int64 room
    """

    h: Any
    aux: Any
    ancestors: Any
    ready: Any
    order: Any


@kernel
def renew_path(path, history, population, target, plan, key):
    """(times at which the new path is of new particles, 1 if the first is among them, WITHOUT_DATA): overwrite path.

    Where all weights are 0, the path stays and the last number is the time at which they are. ``population`` is room:
    its arrays without the clouds.
    """
    n_times = path.h.shape[1]
    for t in range(n_times):
        new, step_key = Cloud(history.h[t], history.aux[t]), fold(key, t + 1)
        if t == 0:
            here = between(population, new, new)
            begin_given(here, path, target, fold(step_key, PROPOSE))
        else:
            before = between(population, Cloud(history.h[t - 1], history.aux[t - 1]), new)
            look_ahead(before.ahead, before, target, t)
            resample_given(before, history, path, target, t, plan, fold(step_key, RESAMPLE))
            propose(before.ahead, before, target, t, fold(step_key, PROPOSE))
            here = between(population, new, before.cloud)
            put_path(here, path, target.law, t)
        log_p, _ = weigh(here, target, t)
        if not log_p > -math.inf:
            return 0, 0, t
    last = pick(population.weights, uniform(fold(key, LAST), 0))
    renewed, first = trace(path, history, last)
    return renewed, first, WITHOUT_DATA


@kernel
def between(population, cloud, other):
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
def begin_given(population, path, target, key):
    """Draw the particles of the first time, particle 0 apart."""
    for i in range(population.ancestors.size):
        population.log_weights[i] = -math.log(population.ancestors.size)
        population.ancestors[i] = i
    propose_first(population.ahead, population, target, 0, key)
    put_path(population, path, target.law, 0)


@kernel
def put_path(population, path, law, t):
    """Particle 0 is on the path, and weighs as if it had been proposed."""
    for k in range(path.h.shape[0]):
        population.cloud.h[k, 0], population.cloud.aux[k, 0] = path.h[k, t], path.aux[k, t]
    population.increments[0] = increment_given(population.ahead, population, law, t, 0)


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

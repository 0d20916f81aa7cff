"""Online EM by particles (Yildirim, Cemgil, Singh 2012, Algorithm 1): filter, sums and update, sample by sample.

At sample t, with the step size g_t = t^-a and the parameters theta_t of the samples before::

    the filter's step under theta_t                                                         `filter`
    T_t(i) = E[(1 - g_t) T_{t-1}(j) + g_t s_t(h_j, h_i)], i's sources among them            `smoothing_sums`
    S_t = sum_i w_i T_t(i),   W = S2 / S1, the chain's parameters by their own updates      `chain_updates`

with g_1 = 1, so that the weights of all samples sum to 1. With the parameters held, S_t estimates
sum_i v_i E[s_i | x_1:t], v_i = g_i prod_{j > i} (1 - g_j). As printed, Algorithm 1 goes on with the sums from before
the resampling beside the particles from after it; here they stay together. The sources of a sample are expected under
the W of its time (eq. 15).

**Recentring** a log-normal chain of known mean, with W taking the scale, makes steps of EM that are not small. With w_k
h_k known and both of them not, EM moves the scale between them by a small share of what is wrong at each step, the
smaller the better the counts say what w_k h_k is, and the steps of online EM shrink. In the model with a free mean m',
(W, m') says the same of X as (W e^(m' - m), m), so that EM may maximise over m' too and then move on to the latter
(parameter expansion: Liu, Rubin, Wu 1998)::

    d = m' - m,     w_k <- w_k e^d,  log h_k <- log h_k - d

which leaves the rates as they are. Particles and all that they carry move along; the next W = S2 / S1 is the moved one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.hmm.basis_chain import WITHOUT_DATA
from nmf_zoo.kernels.hmm.basis_online import set_weight_sums
from nmf_zoo.kernels.hmm.particles.filter import first_step, next_step
from nmf_zoo.kernels.hmm.particles.laws import update_parameters
from nmf_zoo.kernels.hmm.particles.log_normal import set_activations
from nmf_zoo.kernels.hmm.particles.smoothing_sums import carry
from nmf_zoo.kernels.hmm.particles.statistics import add_sample, begin_sums, scale_row, total_sums
from nmf_zoo.kernels.numerics.multiplicative import FLOOR
from nmf_zoo.kernels.random.keyed_rng import fold

LARGEST_ERROR = 1.0  # standard error of the mean that is still worth following


@kernel
def recentre(population, carried, law, sums, transitions, samples):
    """Move particles, what they carry and its means ``sums``, for every component whose mean the steps tell.

    ``transitions`` is the weight of the steps in the averages, ``samples`` how many samples make up an average.
    """
    rank = law.parameters.shape[1]
    for k in range(rank):
        mean, persistence, scale = law.parameters[0, k], law.parameters[1, k], law.parameters[2, k]
        if not scale < LARGEST_ERROR * (1.0 - persistence) * math.sqrt(samples) or not transitions > 0.0:
            continue
        first = carried.rows.pairs + 5 * k
        away = (sums[first + 1] - persistence * sums[first]) / (transitions * (1.0 - persistence)) - mean
        take_away(population.cloud.aux[k], away)
        for r in range(carried.rows.sources // rank):
            scale_row(carried.table[r * rank + k], math.exp(-away))
            sums[r * rank + k] *= math.exp(-away)
        move_moments(carried.table[first : first + 5], away, transitions / carried.scale[0])
        move_moments(sums[first : first + 5].reshape(5, 1), away, transitions)
    set_activations(population.cloud)


@in_lanes
def take_away(row, away):
    for i in range(row.size):
        row[i] -= away


@in_lanes
def move_moments(rows, away, n):
    """Sums of z, z', z z, z z', z' z' over steps of the weight n, (5, N), with z and z' less by ``away``."""
    z, after, squares, products, squares_after = rows[0], rows[1], rows[2], rows[3], rows[4]
    for i in range(z.size):
        squares[i] += away * (n * away - 2.0 * z[i])
        products[i] += away * (n * away - z[i] - after[i])
        squares_after[i] += away * (n * away - 2.0 * after[i])
        z[i] -= n * away
        after[i] -= n * away


# -- a step ----------------------------------------------------------------------------------------------------------


RECENTRE_EVERY = 32  # samples: it costs about as much as a step
SEEN, OF_FIRST, LOG_P = range(3)  # of a clock


class StepPlan(NamedTuple):
    """What a step does.

    Attributes
    ----------
    plan : FilterPlan or AddressedPlan of the filter
    smoother : Smoother
    exponent : a, the step size is t^-a
    burn_in : samples before the first update
    """

    plan: Any
    smoother: Any
    exponent: float
    burn_in: float


class Updates(NamedTuple):
    """What becomes of the parameters.

    Attributes
    ----------
    learns_weights : 1 if W is unknown
    recentres : 1 if W takes the scale of a log-normal chain of known mean, see above
    of_features : (F,) the weights of a sample are v_t of_features, ones where they are given for each feature
    prior_power, prior_rate : (F, K) a - 1 and r of W's gamma prior, 0 without
    chain : Rules of `chain_updates`
    sums : (R,) scratch
    nothing : (K, 3) zeros: a stream's first time says nothing of the chain
    """

    learns_weights: int
    recentres: int
    of_features: Any
    prior_power: Any
    prior_rate: Any
    chain: Any
    sums: Any
    nothing: Any


@kernel
def learn(population, carried, target, step, updates, weights, clock, key):
    """Take all samples of a block.

    Overwrites the parameters in ``target``, W and law.parameters, and ``clock`` (3,): the samples so far, the weight
    left of the first of them, and log p of all, each given those before it and under the parameters of its time, up to
    the terms without particles. ``weights`` (T, R) mask * exposure over of_features; ``target.counts.weight_sums`` (1,
    K) is scratch. Returns (1 if the clouds have changed places, WITHOUT_DATA), or the sample of the block at which all
    particles are at zero weight. Numbers only: a NamedTuple is made by Python code, in which Ctrl-C is a crash.
    """
    is_swapped = 0
    for t in range(weights.shape[0]):
        clock[SEEN] += 1.0
        seen = clock[SEEN]
        gain, own_key = seen**-step.exponent, fold(key, np.int64(seen) - 1)
        set_weight_sums(target.counts.weight_sums[0], target.W, weights[t], updates.of_features)
        if seen == 1:
            log_p, _ = first_step(population, target, t, step.plan, own_key)
        else:
            population, log_p, _, _ = next_step(population, target, t, step.plan, own_key)
            is_swapped = 1 - is_swapped
        if not log_p > -math.inf:
            return is_swapped, t
        clock[LOG_P] += log_p
        if seen == 1:
            begin_sums(carried, population, target.law, gain)
            clock[OF_FIRST] = 1.0
        else:
            carry(carried, step.smoother, population, target.law, 1.0 - gain, gain, own_key)
            clock[OF_FIRST] *= 1.0 - gain
        add_sample(carried, population, target, weights[t], gain, t)
        if seen >= step.burn_in:
            total_sums(updates.sums, carried, population.weights)
            if updates.recentres == 1 and seen % RECENTRE_EVERY == 0:
                recentre(population, carried, target.law, updates.sums, 1.0 - clock[OF_FIRST], 1.0 / gain)
            update_weights(target.W, updates, carried.rows, 1.0 / seen)
            update_law(target.law, updates, carried.rows, 1.0 - clock[OF_FIRST], 1.0 / seen)
    return is_swapped, WITHOUT_DATA


@kernel
def update_weights(W, updates, rows, prior_weight):
    """W = sources / activations, a gamma prior beside them at its share of the samples so far."""
    if updates.learns_weights == 0:
        return
    sums, (n_features, rank) = updates.sums, W.shape
    for f in range(n_features):
        active = f * rank if rows.sources > rank else 0
        for k in range(rank):
            numerator = sums[rows.sources + f * rank + k] + prior_weight * updates.prior_power[f, k]
            denominator = updates.of_features[f] * sums[active + k] + prior_weight * updates.prior_rate[f, k]
            if denominator > 0.0:
                W[f, k] = max(numerator / denominator, FLOOR)


@kernel
def update_law(law, updates, rows, transitions, prior_weight):
    """Overwrite the chain's parameters; ``transitions`` is the weight of all samples but the first, which has none."""
    if rows.first == rows.pairs:
        return
    rank = law.parameters.shape[1]
    pairs = updates.sums[rows.pairs : rows.first].reshape(rank, (rows.first - rows.pairs) // rank)
    update_parameters(law, pairs, updates.chain, transitions, prior_weight, updates.nothing)

"""Resampling given where one particle comes from: the ancestors of all others, as the scheme draws them.

Of a scheme that gives particle i n w_i children on average, let one child chosen at random be of particle b, which has
probability w_b. The law of the other n - 1, given that, is what the conditional particle filter needs (Andrieu,
Doucet, Holenstein 2010, section 4.3; Chopin, Singh 2015, section 5). The chosen child stands at a level that is uniform
on the interval of b, (c_{b-1}, c_b]; the others are::

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

import numpy as np

from nmf_zoo.kernels.resampling import (
    MULTINOMIAL,
    RESIDUAL,
    SYSTEMATIC,
    add_certain_children,
    add_children,
)
from nmf_zoo.kernels.streams import fold, kernel, uniform

ORDER, LEVELS, CHOSEN = range(3)  # children of the key


@kernel
def resample_others(ancestors, weights, scheme, order, key):
    """Overwrite ancestors[1:] (n - 1,) given ancestors[0], by the normalised weights (n,); order (n,) int64 is room."""
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
        chances = weights * n - n_children
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
def pick_by_logs(log_weights, room, level):
    """The particle at which the running sum of e^log_weights passes ``level`` of the total; room (n,)."""
    peak, total = -math.inf, 0.0
    for i in range(log_weights.size):
        peak = max(peak, log_weights[i])
    for i in range(log_weights.size):
        room[i] = math.exp(log_weights[i] - peak)
        total += room[i]
    left, found = level * total, 0
    for i in range(log_weights.size):
        if room[i] > 0.0:
            found = i
            left -= room[i]
            if left < 0.0:
                break
    return found

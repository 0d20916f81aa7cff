"""Resampling: which particles a population goes on from.

With c_i the cumulative normalised weights, particle i gets as many children as there are levels in (c_{i-1}, c_i], its
weight's share on average. Of n levels the j-th is, with u and u_j uniform on (0, 1)::

    systematic   (j + u) / n            floor or ceiling of n w_i children
    stratified   (j + u_j) / n
    multinomial  the j-th smallest of n uniforms
    residual     floor(n w_i) children are certain; those that are left over are multinomial

Kitagawa (1996); Liu, Chen (1998); Douc, Cappe, Moulines (2005), Comparison of resampling schemes for particle
filtering.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.streams import kernel, uniform

SYSTEMATIC, STRATIFIED, RESIDUAL, MULTINOMIAL = range(4)


@kernel
def resample(ancestors, log_weights, key):
    """Overwrite ancestors (m,) int64, in rising order, with draws of the particles by their log weights (n,)."""
    peak, total = -np.inf, 0.0
    for i in range(log_weights.size):
        peak = max(peak, log_weights[i])
    for i in range(log_weights.size):
        total += math.exp(log_weights[i] - peak)
    shift, i, last = uniform(key, 0), 0, log_weights.size - 1
    reached = math.exp(log_weights[0] - peak) / total
    for j in range(ancestors.size):
        level = (j + shift) / ancestors.size
        while reached < level and i < last:
            i += 1
            reached += math.exp(log_weights[i] - peak) / total
        ancestors[j] = i


@kernel
def resample_by(ancestors, weights, scheme, key):
    """Overwrite ancestors (n,) int64 by the normalised weights (n,), by one of the schemes above.

    A particle with children stays where it is, and its others go to places of particles without any: little moves.
    """
    n_children = np.zeros(weights.size, np.int64)
    if scheme == RESIDUAL:
        left = add_certain_children(n_children, weights)
        if left > 0:
            add_children(n_children, weights * weights.size - n_children, left, MULTINOMIAL, key)
    else:
        add_children(n_children, weights, weights.size, scheme, key)
    place_children(ancestors, n_children)


@kernel
def add_certain_children(n_children, weights):
    """floor(n w_i) children for each; returns how many are left over."""
    left = weights.size
    for i in range(weights.size):
        n_children[i] = min(np.int64(math.floor(weights[i] * weights.size)), left)
        left -= n_children[i]
    return left


@kernel
def add_children(n_children, weights, n_levels, scheme, key):
    """A child for the particle that each level falls to; the weights need not sum to 1."""
    total, last = 0.0, 0
    for i in range(weights.size):
        total += weights[i]
        last = i if weights[i] > 0.0 else last
    reached, i, level = weights[0], 0, 0.0
    for j in range(n_levels):
        level = next_level(level, j, n_levels, scheme, key)
        while reached < level * total and i < last:
            i += 1
            reached += weights[i]
        n_children[i] += 1


@kernel
def next_level(level, j, n_levels, scheme, key):
    """The j-th level from below, given the one before it."""
    if scheme == SYSTEMATIC:
        return (j + uniform(key, 0)) / n_levels
    if scheme == STRATIFIED:
        return (j + uniform(key, j)) / n_levels
    return 1.0 - (1.0 - level) * uniform(key, j) ** (1.0 / (n_levels - j))


@kernel
def place_children(ancestors, n_children):
    """Overwrite ancestors; n_children is used up."""
    giver = 0
    for i in range(ancestors.size):
        if n_children[i] > 0:
            ancestors[i] = i
            n_children[i] -= 1
        else:
            ancestors[i] = -1
    for i in range(ancestors.size):
        if ancestors[i] < 0:
            while n_children[giver] == 0:
                giver += 1
            ancestors[i] = giver
            n_children[giver] -= 1

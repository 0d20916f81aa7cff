"""Resampling: which particles a population goes on from.

With c_i the cumulative normalised weights, particle i gets as many children as there are levels in (c_{i-1}, c_i], its
weight's share on average. Of n levels the j-th is, with u and u_j uniform on (0, 1)::

    systematic   (j + u) / n            floor or ceiling of n w_i children
    stratified   (j + u_j) / n
    multinomial  the j-th smallest of n uniforms, which is E_1 + ... + E_j over E_1 + ... + E_{n + 1}, E exponential
    residual     floor(n w_i) children are certain; those that are left over are multinomial

Kitagawa (1996); Liu, Chen (1998); Douc, Cappe, Moulines (2005), Comparison of resampling schemes for particle
filtering.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.random.keyed_rng import uniform

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
    if scheme == MULTINOMIAL:
        add_sorted(n_children, weights, total, last, n_levels, key)
        return
    reached, before = 0.0, 0
    for i in range(last):
        reached += weights[i]
        upto = levels_below(reached / total * n_levels, n_levels, scheme, key)
        n_children[i] += upto - before
        before = upto
    n_children[last] += n_levels - before


@kernel
def levels_below(reached, n_levels, scheme, key):
    """How many of the levels j + u or j + u_j, j from 0 to n_levels - 1, are at most ``reached``."""
    j = min(np.int64(reached), n_levels - 1)
    u = uniform(key, np.uint64(0) if scheme == SYSTEMATIC else np.uint64(j))
    return j + (1 if j + u <= reached else 0)


@kernel
def add_sorted(n_children, weights, total, last, n_levels, key):
    """A child at each of n_levels uniform levels: the partial sums of n_levels + 1 exponentials over them all."""
    sums, reached, i = np.empty(n_levels + 1), weights[0], 0
    set_exponentials(sums, key)
    for j in range(1, sums.size):
        sums[j] += sums[j - 1]
    for j in range(n_levels):
        level = sums[j] / sums[-1] * total
        while reached < level and i < last:
            i += 1
            reached += weights[i]
        n_children[i] += 1


@in_lanes
def set_exponentials(out, key):
    """Overwrite out (n,) with independent standard exponentials."""
    for i in range(out.size):
        out[i] = -fast_log(uniform(key, np.uint64(i)))


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

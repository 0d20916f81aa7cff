"""What looking ahead does for every chain whose laws are stood for by normal sites (`guided_sites`).

One particle in 64 moves by the chain's own law, and the look at the sample is mixed with its mean over the population:
weights are bounded wherever the approximation fails.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.particles.guided_quadratic import Normals, find_point
from nmf_zoo.kernels.particles.guided_sites import invert
from nmf_zoo.kernels.softplus import LARGEST_POWER
from nmf_zoo.kernels.streams import fold, kernel, uniform

OWN_SHARE = 1.0 / 64.0  # of particles that move by the chain's own law, and of the look that is the same for all
LEAST_VARIANCE = 1e-6  # of a normal in place of a component's own law


@kernel
def is_informative(target, t):
    """Whether sample t says anything."""
    counts = target.counts
    row = t if counts.drag.shape[0] > 1 else 0
    return counts.indptr[t + 1] > counts.indptr[t] or counts.drag[row].max() > 0.0


@kernel
def approximate(ahead, target, t, largest):
    """Overwrite what all particles share: the quadratic of g, and a joint normal to start from.

    Activations are between 0 and ``largest``. Rows of ``vectors``: (0, 1) mean and variance of the population's next
    activations when called, precisions and shifts of the sites that stand for them after; (2) the shift of g; (3) the
    mode of both, where g is expanded; (4) the pull that keeps the mode within the bounds, part of the sites' shifts:
    without it the normals of components that g would have below 0 push the others up.
    """
    rank, vectors = ahead.points.shape[0], ahead.vectors
    precision, covariance = ahead.shared[:rank], ahead.shared[rank : 2 * rank]
    sites, shifts, mode = vectors[0], vectors[1], vectors[3]
    for k in range(rank):
        mode[k] = sites[k]
    find_point(mode, precision, vectors[2], target, t, Normals(vectors[0], vectors[1], largest))
    for k in range(rank):
        mean, variance = vectors[0, k], vectors[1, k]
        sites[k] = 1.0 / variance
        shifts[k] = sites[k] * mode[k] - vectors[2, k]
        for j in range(rank):
            shifts[k] += precision[k, j] * mode[j]
        vectors[4, k] = shifts[k] - mean / variance
    invert(covariance, precision, sites)


@kernel
def keep(ahead, look, block, start):
    """Store what was found of the particles from ``start`` on."""
    count = min(block.log_z.size, look.size - start)
    for lane in range(count):
        look[start + lane] = block.log_z[lane]
    for k in range(block.mean.shape[0]):
        for lane in range(count):
            ahead.spreads[k, start + lane] = block.sites[0, k, lane]
            ahead.points[k, start + lane] = block.sites[1, k, lane]


@kernel
def hedge(look, log_weights):
    """Mix the look with its mean, so that no particle's weight can grow by more than 1 / OWN_SHARE for being unseen."""
    peak, total = -math.inf, 0.0
    for i in range(look.size):
        if not math.isfinite(look[i]):
            look[i] = -math.inf
        peak = max(peak, look[i])
    if not peak > -math.inf:
        look[:] = 0.0
        return
    for i in range(look.size):
        look[i] = math.exp(look[i] - peak)
        total += look[i] * math.exp(log_weights[i])
    for i in range(look.size):
        look[i] = math.log((1.0 - OWN_SHARE) * look[i] + OWN_SHARE * total)


@kernel
def fetch(block, ahead, old, ancestors):
    """Copy the ancestors and their sites, the last one again and again where there are no more."""
    for k in range(block.mean.shape[0]):
        for lane in range(block.log_z.size):
            a = ancestors[min(lane, ancestors.size - 1)]
            block.old[0, k, lane], block.old[1, k, lane] = old.h[k, a], old.aux[k, a]
            block.sites[0, k, lane], block.sites[1, k, lane] = ahead.spreads[k, a], ahead.points[k, a]


@kernel
def is_by_own_law(key, rank, i):
    """Whether particle i moves by the chain's own law."""
    return uniform(fold(key, rank), np.uint64(i)) < OWN_SHARE


@kernel
def set_increments(increments, block):
    """Overwrite increments (L,) with log f - log q of the mixture, from log q - log f of the guided draw in log_z."""
    for lane in range(increments.size):
        ratio = min(block.log_z[lane], LARGEST_POWER)
        increments[lane] = -math.log((1.0 - OWN_SHARE) * math.exp(ratio) + OWN_SHARE)

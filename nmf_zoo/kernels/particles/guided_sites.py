"""Normal approximations of the particles' posteriors, a block of particles at a time, in SIMD lanes.

A particle's next activations have the law prod_k f_k(h_k) g(x_t | h), with g close to a normal (`guided_quadratic`)
that ties all components together. Expectation propagation replaces each f_k in turn by a normal site
exp(shift h_k - precision h_k^2 / 2): take site k out of the joint normal (what is left is its cavity), put f_k in, and
choose the site that gives the same mass, mean and variance. A chain's file knows about f_k; here is what is the same
for all chains: cavities, new sites, and the joint normal taken apart component by component.

Minka (2001), Expectation propagation for approximate Bayesian inference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.basis_states import in_lanes
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import kernel

LANES = 32  # particles of a block: one turn of the compiler's loops over lanes
LEAST_PRECISION = 1e-3  # of cavities and sites, against activations of about 1: no information to speak of
MOST_SHIFT = 1e100  # and precision: its square is far from overflow
TIGHTEST = 1e4  # a site is at most that much tighter than its cavity: taking it out again leaves enough digits


class Block(NamedTuple):
    """L particles, the joint normals of their next activations, and room.

    Attributes
    ----------
    old : (2, K, L) h and aux of the particles
    sites : (2, K, L) precisions and shifts
    covariance : (K, K, L), the lower triangle
    mean : (K, L)
    log_z : (L,) log of the integral of what stands for f g, up to a constant
    scale : (L,) its part that comes from the sites' masses
    cavity : (2, L) precision and shift of the component at hand, all others integrated out
    moments : (3, L) log-integral, mean and variance of f_k times the cavity
    change : (2, L) of a site; column : (K, L) room
    """

    old: Any
    sites: Any
    covariance: Any
    mean: Any
    log_z: Any
    scale: Any
    cavity: Any
    moments: Any
    change: Any
    column: Any


@kernel
def block_of(rank):
    """Room for a block."""
    return Block(
        np.empty((2, rank, LANES)),
        np.empty((2, rank, LANES)),
        np.empty((rank, rank, LANES)),
        np.empty((rank, LANES)),
        np.empty(LANES),
        np.empty(LANES),
        np.empty((2, LANES)),
        np.empty((3, LANES)),
        np.empty((2, LANES)),
        np.empty((rank, LANES)),
    )


@kernel
def invert(out, precision, sites):
    """Overwrite out (K, K) with the inverse of precision + diag(sites), symmetric positive definite: Gauss-Jordan."""
    rank = out.shape[0]
    for i in range(rank):
        for j in range(rank):
            out[i, j] = precision[i, j] + (sites[i] if i == j else 0.0)
    for k in range(rank):
        pivot = 1.0 / out[k, k]
        out[k, k] = 1.0
        for j in range(rank):
            out[k, j] *= pivot
        for i in range(rank):
            if i != k:
                factor = out[i, k]
                out[i, k] = 0.0
                for j in range(rank):
                    out[i, j] -= factor * out[k, j]


@in_lanes
def gather(block, cloud, start):
    """Copy the particles from ``start`` on, the last one again and again where there are no more."""
    last = cloud.h.shape[1] - 1
    for k in range(cloud.h.shape[0]):
        for lane in range(block.log_z.size):
            block.old[0, k, lane] = cloud.h[k, min(start + lane, last)]
            block.old[1, k, lane] = cloud.aux[k, min(start + lane, last)]


@in_lanes
def begin_block(block, covariance, mean, sites):
    """All lanes have the same joint normal: covariance (K, K), mean (K,), precisions and shifts of sites (2, K)."""
    lanes = block.log_z.size
    for lane in range(lanes):
        block.log_z[lane] = 0.0
    for i in range(mean.size):
        for lane in range(lanes):
            block.mean[i, lane] = mean[i]
            block.sites[0, i, lane], block.sites[1, i, lane] = sites[0, i], sites[1, i]
        for j in range(i + 1):
            for lane in range(lanes):
                block.covariance[i, j, lane] = covariance[i, j]


@in_lanes
def take_out(block, k):
    """Overwrite ``cavity``: component k's marginal without its own site."""
    variance, mean = block.covariance[k, k], block.mean[k]
    for lane in range(block.log_z.size):
        inverse = 1.0 / variance[lane]
        block.cavity[0, lane] = max(inverse - block.sites[0, k, lane], LEAST_PRECISION)
        block.cavity[1, lane] = mean[lane] * inverse - block.sites[1, k, lane]


@in_lanes
def put_in(block, k):
    """Replace site k by the one that gives its cavity the mass and moments at hand.

    Where f_k times the cavity is wider than the cavity that would be a negative precision: the least one with the
    same mean instead.
    """
    for lane in range(block.log_z.size):
        around = block.cavity[0, lane]
        variance = max(block.moments[2, lane], 1.0 / (TIGHTEST * (around + 1.0)))
        precision = max(1.0 / variance - around, LEAST_PRECISION)
        total = around + precision
        both = block.moments[1, lane] * total
        shift = both - block.cavity[1, lane]
        block.scale[lane] += block.moments[0, lane] + 0.5 * (fast_log(total) - both * block.moments[1, lane])
        block.change[0, lane] = precision - block.sites[0, k, lane]
        block.change[1, lane] = shift - block.sites[1, k, lane]
        block.sites[0, k, lane], block.sites[1, k, lane] = precision, shift
    follow(block, k)


@in_lanes
def follow(block, k):
    """Update the joint normal for the ``change`` of site k: a change of rank one."""
    covariance, mean, column, change = block.covariance, block.mean, block.column, block.change
    lanes, rank = block.log_z.size, mean.shape[0]
    for i in range(rank):
        high, low = max(i, k), min(i, k)
        for lane in range(lanes):
            column[i, lane] = covariance[high, low, lane]
    for lane in range(lanes):
        grown = max(1.0 + change[0, lane] * column[k, lane], 1e-8)
        block.log_z[lane] -= 0.5 * fast_log(grown)
        change[1, lane] = (change[1, lane] - change[0, lane] * mean[k, lane]) / grown
        change[0, lane] /= grown
    for i in range(rank):
        for lane in range(lanes):
            mean[i, lane] += column[i, lane] * change[1, lane]
        for j in range(i + 1):
            for lane in range(lanes):
                covariance[i, j, lane] -= change[0, lane] * column[i, lane] * column[j, lane]


@in_lanes
def finish_log_z(block, shift):
    """Add the masses, and what the exponent of the joint normal is at its mean; shift (K,) that of log g."""
    for lane in range(block.log_z.size):
        block.log_z[lane] += block.scale[lane]
    for k in range(shift.size):
        for lane in range(block.log_z.size):
            block.log_z[lane] += 0.5 * block.mean[k, lane] * (shift[k] + block.sites[1, k, lane])


@in_lanes
def take_apart(block, precision, shift):
    """Factor the joint normal of log g, precision (K, K) and shift (K,), and the sites, from the last component on.

    Given the components before k, and with those after it integrated out under their sites, component k has precision
    covariance[k, k] and shift mean[k] - sum_{j < k} covariance[k, j] h_j, without its own site. These take the place of
    covariance and mean.
    """
    matrix, vector, factor, sites = block.covariance, block.mean, block.column, block.sites
    lanes, rank = block.log_z.size, shift.size
    for i in range(rank):
        for lane in range(lanes):
            vector[i, lane] = shift[i]
        for j in range(i + 1):
            for lane in range(lanes):
                matrix[i, j, lane] = precision[i, j]
    for k in range(rank - 1, 0, -1):
        for lane in range(lanes):
            block.change[0, lane] = 1.0 / (matrix[k, k, lane] + sites[0, k, lane])
            block.change[1, lane] = vector[k, lane] + sites[1, k, lane]
        for i in range(k):
            for lane in range(lanes):
                factor[i, lane] = matrix[k, i, lane] * block.change[0, lane]
                vector[i, lane] -= factor[i, lane] * block.change[1, lane]
            for j in range(i + 1):
                for lane in range(lanes):
                    matrix[i, j, lane] -= factor[i, lane] * matrix[k, j, lane]


@in_lanes
def condition(block, k, h, start):
    """Overwrite ``cavity`` with component k given those before it in h (K, N), particles ``start`` on: finite."""
    last, matrix, cavity = h.shape[1] - 1, block.covariance, block.cavity
    for lane in range(block.log_z.size):
        precision = matrix[k, k, lane]
        cavity[0, lane] = precision if LEAST_PRECISION < precision < MOST_SHIFT else LEAST_PRECISION
        cavity[1, lane] = block.mean[k, lane]
    for j in range(k):
        for lane in range(block.log_z.size):
            cavity[1, lane] -= matrix[k, j, lane] * h[j, min(start + lane, last)]
    for lane in range(block.log_z.size):
        cavity[1, lane] = cavity[1, lane] if abs(cavity[1, lane]) < MOST_SHIFT else 0.0

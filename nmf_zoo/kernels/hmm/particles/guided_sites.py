"""Normal approximations of the particles' posteriors, a block of particles at a time, in SIMD lanes.

A particle's next activations have the law prod_k f_k(h_k) g(x_t | h), with g close to a normal
that ties all components together. Expectation propagation replaces each f_k in turn by a normal site
exp(shift h_k - precision h_k^2 / 2): take site k out of the joint normal (what is left is its cavity), put f_k in, and
choose the site that gives the same mass, mean and variance. A chain's file knows about f_k; here is what is the same
for all chains: cavities, new sites, and the joint normal taken apart component by component.

Minka (2001), Expectation propagation for approximate Bayesian inference.

**The sample.** log g(h) = sum_c x_c log rate_c(h) - weight_sums . h is concave, and close to h' shift - h' precision h
/ 2 around any point, with::

    precision = sum_c x_c w_c w_c' / rate_c^2,      shift = sum_c x_c w_c / rate_c - weight_sums + precision point

Where counts are large that holds over the whole posterior; a proposal built on it stays exact where it does not, for
it is corrected by its weights. The point is the mode of g times independent normals, one for each component, that
the particles' own laws add up to, within 0 and a largest activation.

**Passes over the particles.** One particle in 64 moves by the chain's own law, and the look at the sample is mixed with
its mean over the population: weights are bounded wherever the approximation fails."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, spliced
from nmf_zoo.kernels.numerics.special import LARGEST_POWER, fast_log
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

LANES = 32  # particles of a block: one turn of the compiler's loops over lanes
LEAST_PRECISION = 1e-3  # of cavities and sites, against activations of about 1: no information to speak of
MOST_SHIFT = 1e100  # and precision: its square is far from overflow
TIGHTEST = 1e4  # a site is at most that much tighter than its cavity: taking it out again leaves enough digits


class ParticleBlock(NamedTuple):
    """L particles, the joint normals of their next activations, and scratch.

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
    change : (2, L) of a site; column : (K, L) scratch
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
    """Scratch for a block."""
    return ParticleBlock(
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


# -- the sample's log-likelihood as a quadratic ----------------------------------------------------------------------


STEPS, CYCLES, HALVINGS = 8, 12, 6
SMALLEST_RATE = 1e-100  # its inverse square is far from overflow


class Normals(NamedTuple):
    """means, variances : (K,) of independent normal laws; largest : the largest value, 0 being the smallest."""

    means: Any
    variances: Any
    largest: float


@in_lanes
def expand(precision, shift, point, target, t):
    """Overwrite precision (K, K) and shift (K,) with those of log g around the point (K,)."""
    counts, W, rank = target.counts, target.W, point.size
    row = t if counts.weight_sums.shape[0] > 1 else 0
    precision[:] = 0.0
    for k in range(rank):
        shift[k] = -counts.weight_sums[row, k]
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        f, x = counts.indices[c], counts.values[c]
        rate = rate_at(point, target, c)
        if rate < SMALLEST_RATE:  # no particle can make this count
            continue
        for k in range(rank):
            slope = x * W[f, k] / rate
            shift[k] += slope
            for j in range(k + 1):
                precision[k, j] += slope * (W[f, j] / rate)
    for k in range(rank):
        for j in range(k):
            precision[j, k] = precision[k, j]
    for k in range(rank):
        for j in range(rank):
            shift[k] += precision[k, j] * point[j]


@kernel
def rate_at(point, target, c):
    """The rate of the listed cell c at the activations ``point`` (K,)."""
    counts, f = target.counts, target.counts.indices[c]
    rate = target.base[f] + (counts.offset[c] if counts.offset.size > 0 else 0.0)
    for k in range(point.size):
        rate += target.W[f, k] * point[k]
    return rate


@kernel
def find_point(point, precision, shift, target, t, normals):
    """Move the point (K,), inside its bounds, to the mode of g times the normals, and expand there.

    Newton's method on the bounded quadratic, its steps halved until the target grows.
    """
    trial = np.empty(point.size)
    here = log_target(point, target, t, normals)
    expand(precision, shift, point, target, t)
    for _ in range(STEPS):
        for k in range(point.size):
            trial[k] = point[k]
        solve_bounded(trial, precision, shift, normals)
        there = log_target(trial, target, t, normals)
        for _ in range(HALVINGS):
            if there >= here:
                break
            for k in range(point.size):
                trial[k] = 0.5 * (trial[k] + point[k])
            there = log_target(trial, target, t, normals)
        if not there > here:
            break
        gain, here = there - here, there
        for k in range(point.size):
            point[k] = trial[k]
        expand(precision, shift, point, target, t)
        if gain < 1e-2:
            break


@kernel
def log_target(point, target, t, normals):
    """log g at the point plus the log-density of the normals, up to a constant."""
    counts, total = target.counts, 0.0
    row = t if counts.weight_sums.shape[0] > 1 else 0
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        rate = rate_at(point, target, c)
        if rate < SMALLEST_RATE:
            return -math.inf
        total += counts.values[c] * math.log(rate)
    for k in range(point.size):
        off = point[k] - normals.means[k]
        total -= counts.weight_sums[row, k] * point[k] + 0.5 * off * off / normals.variances[k]
    return total


@kernel
def solve_bounded(point, precision, shift, normals):
    """Move the point to the top of the quadratic plus the normals within the bounds, one coordinate after the other."""
    for _ in range(CYCLES):
        moved = 0.0
        for k in range(point.size):
            tightness = 1.0 / normals.variances[k]
            slope = shift[k] + (normals.means[k] - point[k]) * tightness
            for j in range(point.size):
                slope -= precision[k, j] * point[j]
            step = slope / (precision[k, k] + tightness)
            new = min(max(point[k] + step, 0.0), normals.largest)
            moved = max(moved, abs(new - point[k]) * (precision[k, k] + tightness) ** 0.5)
            point[k] = new
        if moved < 1e-2:
            break


# -- passes over the particles ---------------------------------------------------------------------------------------


OWN_SHARE = 1.0 / 64.0  # of particles that move by the chain's own law, and of the look that is the same for all
LEAST_VARIANCE = 1e-6  # of a normal in place of a component's own law


@kernel
def is_informative(target, t):
    """Whether sample t says anything."""
    counts = target.counts
    row = t if counts.weight_sums.shape[0] > 1 else 0
    return counts.indptr[t + 1] > counts.indptr[t] or counts.weight_sums[row].max() > 0.0


@kernel
def approximate(ahead, target, t, largest):
    """Overwrite what all particles share: the quadratic of g, and a joint normal to start from.

    Activations are between 0 and ``largest``. Rows of ``vectors``: (0, 1) mean and variance of the population's next
    activations when called, precisions and shifts of the sites that stand for them after; (2) the shift of g; (3) the
    mode of both, where g is expanded; (4) what keeps the mode within the bounds, part of the sites' shifts: without it
    the normals of components that g would have below 0 push the others up.
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


# -- the look and the proposal: what chains differ in comes as functions of their files ------------------------------


@spliced
def see(ahead, population, cloud, target, law, t, pool, seek):
    """Overwrite what is ``ahead`` of the particles and, in ``look``, the log of how well they explain sample t."""
    look = population.look
    ahead.seen[0] = 1 if is_informative(target, t) else 0
    if ahead.seen[0] == 0:
        look[:] = 0.0
        return
    pool(ahead.vectors, np.exp(population.log_weights), cloud, law)
    approximate(ahead, target, t, 1.0)
    block = block_of(cloud.h.shape[0])
    for start in range(0, look.size, LANES):
        gather(block, cloud, start)
        seek(block, ahead, law)
        keep(ahead, look, block, start)


@spliced
def draw(ahead, population, new, old, law, key, move, draw_block):
    """Move particle i from ancestors[i] of ``old`` to ``new`` by what was seen; increments = log f - log q."""
    ancestors, increments = population.ancestors, population.increments
    if ahead.seen[0] == 0:
        move(new, old, ancestors, law, key)
        increments[:] = 0.0
        return
    block = block_of(old.h.shape[0])
    for start in range(0, ancestors.size, LANES):
        count = min(LANES, ancestors.size - start)
        fetch(block, ahead, old, ancestors[start : start + count])
        take_apart(block, ahead.shared[: old.h.shape[0]], ahead.vectors[2])
        draw_block(block, new, law, start, key)
        set_increments(increments[start : start + count], block)

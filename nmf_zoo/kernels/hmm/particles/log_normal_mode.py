"""What a sample says about log-normal activations, for all particles at once: a quadratic in h, in fitting coordinates.

Given the past, z_k = log h_k ~ N(m_k, 1 / Q_k), and the sample adds l(h), nearly quadratic in h and not in z: a
Gaussian in z loses most of its effective sample size at 20 components. With h = c softplus(v), v is linear in h where
h >> c and in z where h << c. At c = sqrt(Q / C), C the curvature of -l in h, likelihood and law are equally sharp, so
that both are nearly quadratic in v where they matter, and the curvature is about Q from end to end: all particles can
share it.

`set_expansion` finds the mode of one particle (the mean of all) by Newton's method in z, expands l there in s = h / c,

    l(s) = b.(s - s_0) - (s - s_0)' A (s - s_0) / 2 + a constant,

and factors the curvature in v at that particle's mode in v.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.basis_states import dot, log_or_never
from nmf_zoo.kernels.numerics.special import LARGEST_POWER

LOG_SCALE, ANCHOR, SLOPE, PRECISION, CENTRE, MEAN = range(6)  # rows of Ahead.vectors: log c, s_0, b, Q, v, m
Z, STEP, TRIAL, H, CELLS = range(5)  # rows of the workspace
FEW = 4  # cells that are added at a time
MOST_STEPS, MOST_HALVINGS = 50, 20
LONGEST = 2.0  # of one step in one component
TOLERANCE = 1e-3  # what another step could add to the log-density
LEAST_PIVOTS = (1e-2, 1e-14)  # relative to Q, of the curvature itself, and without what could make it negative
SMALLEST, LARGEST = 1e-3, 1e6  # of s_0
LOWEST = 1e-290  # rates are held above it


@kernel
def set_expansion(ahead, target, t):
    """Overwrite ``vectors`` (of which MEAN and PRECISION are given) and ``shared``: A, L, R.

    L L' is the curvature in v and R = L'^-1. Returns 0 if there is no mode to be found: the sample is impossible, or so
    far out that nothing finite is left.
    """
    rank = ahead.vectors.shape[1]
    A, L = ahead.shared[:rank], ahead.shared[rank : 2 * rank]
    workspace = np.zeros((CELLS + FEW, rank))
    if not find_mode(ahead.vectors, A, L, target, t, workspace):
        return 0
    rescale(ahead.vectors, A, workspace[Z])
    if not settle(ahead.vectors, A, L, workspace[Z]):
        return 0
    set_inverse_transpose(ahead.shared[2 * rank :], L)
    return 1


@kernel
def find_mode(vectors, B, L, target, t, workspace):
    """Overwrite workspace[Z] with the mode in z, SLOPE and B with gradient and curvature of the sample's l.

    Returns 1 if it was found.
    """
    z, step, h = workspace[Z], workspace[STEP], workspace[H]
    slope, precision, mean = vectors[SLOPE], vectors[PRECISION], vectors[MEAN]
    for k in range(z.size):
        z[k] = mean[k]
    here = log_joint(z, h, vectors, target, t)
    for _ in range(MOST_STEPS):
        if not -math.inf < here < math.inf:
            return 0
        set_slopes(slope, B, h, target, t, workspace[CELLS:])
        if not factor_curvature(L, B, slope, precision):
            return 0
        for k in range(z.size):
            step[k] = slope[k] - precision[k] * (z[k] - mean[k])
        if set_step(step, L) < TOLERANCE:
            return 1
        here = search(workspace, here, vectors, target, t)
    return 1


@kernel
def search(workspace, here, vectors, target, t):
    """Move z by the step, cut to LONGEST and halved until that is no loss, and h with it; returns the log-density."""
    z, trial, step, h = workspace[Z], workspace[TRIAL], workspace[STEP], workspace[H]
    share = share_of(step)
    for _ in range(MOST_HALVINGS):
        for k in range(z.size):
            trial[k] = z[k] + share * step[k]
        there = log_joint(trial, h, vectors, target, t)
        if there >= here - 1e-12 * abs(here):
            for k in range(z.size):
                z[k] = trial[k]
            return there
        share *= 0.5
    return log_joint(z, h, vectors, target, t)


@kernel
def share_of(step):
    """What is left of a step that must not be longer than LONGEST in any component."""
    longest = LONGEST
    for k in range(step.size):
        longest = max(longest, abs(step[k]))
    return LONGEST / longest


@kernel
def log_joint(z, h, vectors, target, t):
    """log g(x_t | e^z) and the prior's quadratic; overwrites h with e^z."""
    counts, total = target.counts, 0.0
    row = t if counts.weight_sums.shape[0] > 1 else 0
    for k in range(z.size):
        away = z[k] - vectors[MEAN, k]
        h[k] = math.exp(min(z[k], LARGEST_POWER))
        total -= 0.5 * vectors[PRECISION, k] * away * away + counts.weight_sums[row, k] * h[k]
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        rate = base_of(target, c) + dot(target.W[counts.indices[c]], h)
        total += counts.values[c] * log_or_never(rate)
    return total


@kernel
def base_of(target, c):
    """The rate of the listed cell c without components."""
    counts = target.counts
    return target.base[counts.indices[c]] + (counts.offset[c] if counts.offset.size > 0 else 0.0)


@kernel
def set_slopes(slope, B, h, target, t, shares):
    """Overwrite slope with dl / dz and B with sum_c x_c p_ck p_cl, p_ck = w_fk h_k / rate_c."""
    counts, xs = target.counts, np.zeros(FEW)
    row = t if counts.weight_sums.shape[0] > 1 else 0
    for k in range(h.size):
        slope[k] = -counts.weight_sums[row, k] * h[k]
        for j in range(h.size):
            B[k, j] = 0.0
        for j in range(FEW):
            shares[j, k] = 0.0
    first, last = counts.indptr[t], counts.indptr[t + 1]
    for c in range(first, last):
        row, weights = (c - first) % FEW, target.W[counts.indices[c]]
        rate = max(base_of(target, c) + dot(weights, h), LOWEST)
        for k in range(h.size):
            shares[row, k] = weights[k] * h[k] / rate
        xs[row] = counts.values[c]
        if row == FEW - 1 or c == last - 1:
            for j in range(row + 1, FEW):
                xs[j] = 0.0
            add_cells(slope, B, shares, xs)


@in_lanes
def add_cells(slope, B, shares, xs):
    """Add the terms of FEW cells."""
    for k in range(slope.size):
        a, b, c, d = xs[0] * shares[0, k], xs[1] * shares[1, k], xs[2] * shares[2, k], xs[3] * shares[3, k]
        slope[k] += (a + b) + (c + d)
        for j in range(slope.size):
            B[k, j] += (a * shares[0, j] + b * shares[1, j]) + (c * shares[2, j] + d * shares[3, j])


@kernel
def factor_curvature(L, B, slope, precision):
    """Factor B - diag(slope) + diag(Q), without what makes it less than positive if need be; 1 if done."""
    for attempt in range(2):
        for k in range(precision.size):
            for j in range(k):
                L[k, j] = B[k, j]
            L[k, k] = B[k, k] + precision[k] - (slope[k] if attempt == 0 else min(slope[k], 0.0))
        if factor(L, precision, LEAST_PIVOTS[attempt]):
            return 1
    return 0


@kernel
def factor(L, precision, least):
    """Overwrite a symmetric matrix with its Cholesky factor, the rest with 0; 0 if a pivot is below least * Q."""
    for j in range(L.shape[0]):
        for i in range(j, L.shape[0]):
            L[i, j] -= head_dot(L[i], L[j], j)
        if not least * precision[j] < L[j, j] < math.inf:
            return 0
        root = math.sqrt(L[j, j])
        for i in range(j, L.shape[0]):
            L[i, j] /= root
        for i in range(j + 1, L.shape[0]):
            L[j, i] = 0.0
    return 1


@summing
def head_dot(a, b, n):
    """sum of a_i b_i, i < n"""
    total = 0.0
    for i in range(n):
        total += a[i] * b[i]
    return total


@kernel
def set_step(step, L):
    """Overwrite a gradient with (L L')^-1 gradient; returns their product."""
    gain = 0.0
    for k in range(step.size):
        step[k] = (step[k] - head_dot(L[k], step, k)) / L[k, k]
        gain += step[k] * step[k]
    for k in range(step.size - 1, -1, -1):
        step[k] /= L[k, k]
        for j in range(k):
            step[j] -= L[k, j] * step[k]
    return gain


@kernel
def rescale(vectors, A, z):
    """Choose the scales c, and turn slopes and curvature in z into those in s = h / c."""
    for k in range(z.size):
        anchor = min(max(math.sqrt(A[k, k] / vectors[PRECISION, k]), SMALLEST), LARGEST)
        vectors[ANCHOR, k], vectors[LOG_SCALE, k] = anchor, z[k] - math.log(anchor)
        vectors[SLOPE, k] /= anchor
        vectors[CENTRE, k] = anchor + math.log(-math.expm1(-anchor))
    for k in range(z.size):
        for j in range(z.size):
            A[k, j] /= vectors[ANCHOR, k] * vectors[ANCHOR, j]


@kernel
def settle(vectors, A, L, step):
    """Move CENTRE to the mode in v by a few Newton steps, and factor the curvature there; 1 if done."""
    for _ in range(4):
        if not set_slope_and_factor(step, L, vectors, A):
            return 0
        if set_step(step, L) < TOLERANCE:
            break
        share = share_of(step)
        for k in range(step.size):
            vectors[CENTRE, k] += share * step[k]
    return set_slope_and_factor(step, L, vectors, A)


@kernel
def set_slope_and_factor(slope, L, vectors, A):
    """Overwrite slope with the gradient in v at CENTRE and L with the factor of the curvature; 1 if there is one."""
    rank = slope.size
    s, rise = np.empty(rank), np.empty(rank)
    bend, sure = np.empty(rank), np.empty(rank)
    for k in range(rank):
        v = vectors[CENTRE, k]
        s[k] = max(v, 0.0) + math.log1p(math.exp(-abs(v)))
        rise[k] = -math.expm1(-s[k])
    for k in range(rank):
        left = vectors[SLOPE, k]
        for j in range(rank):
            left -= A[k, j] * (s[j] - vectors[ANCHOR, j])
        precision, up, flat = vectors[PRECISION, k], rise[k] / s[k], rise[k] * (1.0 - rise[k])
        away = math.log(s[k]) + vectors[LOG_SCALE, k] - vectors[MEAN, k]
        twist = flat / s[k] - up * up
        slope[k] = left * rise[k] - precision * away * up + 1.0 - rise[k] - up
        bend[k] = -left * flat + precision * (up * up + away * twist) + flat + twist
        sure[k] = max(-left * flat, 0.0) + precision * up * up + max(flat + twist, 0.0)
    for attempt in range(2):
        for k in range(rank):
            for j in range(rank):
                L[k, j] = A[k, j] * rise[k] * rise[j]
            L[k, k] += bend[k] if attempt == 0 else sure[k]
        if factor(L, vectors[PRECISION], LEAST_PIVOTS[attempt]):
            return 1
    return 0


@kernel
def set_inverse_transpose(R, L):
    """Overwrite R with the inverse of L', upper triangular."""
    for k in range(L.shape[0]):
        for j in range(k):
            R[k, j] = 0.0
        R[k, k] = 1.0 / L[k, k]
        for j in range(k):
            total = 0.0
            for i in range(j, k):
                total += L[k, i] * R[j, i]
            R[j, k] = -total * R[k, k]

"""Where the density of a sample's activations is highest, and how narrow it is there: for the proposals of
:mod:`nmf_zoo.kernels.importance`.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.streams import kernel

STEPS = 40  # of Newton, at most


@kernel
def find_mode(counts, q, prior):
    """h (K,) where prod h^prior exp(-T) prod_f (sum_k q_fk h_k)^x_f is highest: an EM step, then Newton in log h."""
    rank = prior.size
    h = (prior.sum() + counts.sum()) / rank * np.ones(rank)
    sources, slopes = np.empty(rank), np.empty((rank, rank))
    value = climb_sums(counts, q, h, sources, slopes)
    h = prior + sources
    value = climb_sums(counts, q, h, sources, slopes) + np.sum(prior * np.log(h)) - h.sum()
    for _ in range(STEPS):
        gradient = prior + sources - h
        step = solve(cholesky(slopes + np.diag(prior)), gradient)
        if np.max(np.abs(step)) < 1e-4:
            break
        step *= min(1.0, 2.0 / np.max(np.abs(step)))
        for _ in range(12):
            new = h * np.exp(step)
            risen = climb_sums(counts, q, new, sources, slopes) + np.sum(prior * np.log(new)) - new.sum()
            if risen >= value:
                break
            step *= 0.5
        h, value = new, risen
    return h


@kernel
def climb_sums(counts, q, h, sources, slopes):
    """sum_f x_f log mean_f; overwrites sources_k = sum_f x_f r_fk, slopes_kj = sum_f x_f r_fk r_fj; r = q h / mean."""
    rank, total, r = h.size, 0.0, np.empty(h.size)
    sources[:], slopes[:] = 0.0, 0.0
    for f in range(counts.size):
        mean = 0.0
        for k in range(rank):
            r[k] = q[f, k] * h[k]
            mean += r[k]
        total += counts[f] * math.log(mean)
        for k in range(rank):
            r[k] /= mean
            weighted = counts[f] * r[k]
            sources[k] += weighted
            for j in range(k + 1):
                slopes[k, j] += weighted * r[j]
    for k in range(rank):
        for j in range(k):
            slopes[j, k] = slopes[k, j]
    return total


@kernel
def match_spread(counts, q, prior, h):
    """(m, Cholesky factor of minus the second derivative of log f in log h at its mode).

    A Dirichlet distribution of sum a has sum_k d_k Var(log d_k) = (K - 1) / a or so, and T ~ Gamma(a) makes its h
    independent.
    """
    rank, n, d = prior.size, counts.sum(), h / h.sum()
    sources, slopes = np.empty(rank), np.empty((rank, rank))
    climb_sums(counts, q, h, sources, slopes)
    slopes += np.diag(prior)
    lower, spread = cholesky(slopes), 0.0
    for k in range(rank):
        unit = np.zeros(rank)
        unit[k] = 1.0
        spread += d[k] * solve(lower, unit)[k]
    spread -= np.sum(d * solve(lower, d))
    m = min(n, max(0.0, (rank - 1) / spread - prior.sum()))
    for k in range(rank):
        for j in range(rank):
            slopes[k, j] += (m - n) * d[k] * d[j]
    narrowed = cholesky(slopes)
    return (m, narrowed) if np.isfinite(np.sum(narrowed)) else (n, lower)


@kernel
def cholesky(matrix):
    """Its lower factor; NaN where the matrix isn't positive definite."""
    rank = matrix.shape[0]
    lower = np.zeros((rank, rank))
    for i in range(rank):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            lower[i, j] = math.sqrt(total) if i == j else total / lower[j, j]
    return lower


@kernel
def solve(lower, x):
    """(L L^T)^-1 x"""
    y = x.copy()
    for i in range(y.size):
        for k in range(i):
            y[i] -= lower[i, k] * y[k]
        y[i] /= lower[i, i]
    back_substitute(lower, y)
    return y


@kernel
def back_substitute(lower, y):
    """Overwrite y by L^-T y."""
    for i in range(y.size - 1, -1, -1):
        for k in range(i + 1, y.size):
            y[i] -= lower[k, i] * y[k]
        y[i] /= lower[i, i]

"""Slow, obvious twins of the particle filter's kernels: a particle, a level, a step at a time."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from nmf_zoo.kernels.random.keyed_rng import child, uniform


def log_emission(h, W, base, x, offset, weight_sums):
    """(N,) of the particles h (K, N): x (F,) counts, 0 where there is none, offset (F,)."""
    out = []
    for particle in h.T:
        rates = base + offset + W @ particle
        total = -float(weight_sums @ particle)
        for count, rate in zip(x, rates, strict=True):
            if count > 0:
                total += count * np.log(rate) if rate > 0 else -np.inf
        out.append(total)
    return np.array(out)


def normalise(log_weights):
    """(normalised weights, log of their sum, effective sample size)"""
    total = logsumexp(log_weights)
    weights = np.exp(log_weights - total)
    return weights, total, 1.0 / np.sum(weights**2)


def levels(scheme, n, key):
    """Of systematic or stratified resampling, (n,)."""
    return np.array([(j + uniform(key, 0 if scheme == "systematic" else j)) / n for j in range(n)])


def children(weights, levels):
    """How many levels fall to each particle, (N,)."""
    found = np.zeros(len(weights), int)
    cumulative = np.cumsum(weights) / np.sum(weights)
    for level in levels:
        found[min(np.searchsorted(cumulative, level), np.flatnonzero(weights)[-1])] += 1
    return found


def move_basis(h, p, q, key):
    """A step of the states h (K, N)."""
    new = np.empty(h.shape)
    for k, i in np.ndindex(h.shape):
        chance = q[k] if h[k, i] == 1 else 1 - p[k]
        new[k, i] = uniform(child(key, k), i) < chance
    return new


def move_unit(h, alpha, key):
    """A step of the activations h (K, N)."""
    new = np.empty(h.shape)
    for k, i in np.ndindex(h.shape):
        u, down = uniform(child(key, k), i), alpha[k] if h[k, i] <= 0.5 else 1 - alpha[k]
        new[k, i] = h[k, i] * u / down if u < down else 1 - (1 - h[k, i]) * (1 - u) / (1 - down)
    return new

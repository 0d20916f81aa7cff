"""Slow, obvious twins of conditional resampling and of particle Gibbs with ancestor sampling."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

SYSTEMATIC, STRATIFIED, RESIDUAL, MULTINOMIAL = range(4)


def children(weights, scheme, rng):
    """The ancestors of n particles by an unconditional scheme, the particles in a random order."""
    n = len(weights)
    order = rng.permutation(n)
    if scheme == RESIDUAL:
        certain = np.floor(n * weights).astype(int)
        left = n - certain.sum()
        return np.concatenate([np.repeat(np.arange(n), certain), pick(n * weights - certain, rng.random(left))])
    if scheme == MULTINOMIAL:
        return pick(weights, rng.random(n))
    u = rng.random() if scheme == SYSTEMATIC else rng.random(n)
    return order[pick(weights[order], (np.arange(n) + u) / n)]


def pick(weights, levels):
    """The particles at which the running sum of the weights passes these shares of the total."""
    sums = np.cumsum(weights)
    return np.searchsorted(sums, levels * sums[-1] * (1 - 1e-12))


def counts_of_others(weights, scheme, given, draws, rng):
    """(accepted, n) how often each particle is an ancestor of the others, where a child at random is of ``given``."""
    kept = []
    for _ in range(draws):
        found = children(weights, scheme, rng)
        chosen = rng.integers(len(weights))
        if found[chosen] == given:
            kept.append(np.bincount(np.delete(found, chosen), minlength=len(weights)))
    return np.array(kept)


def renew_log_normal(z, x, w, base, law, n_particles, rng):
    """A new path (T,) of the logarithm of one chain: multinomial resampling at every step, bootstrap proposals.

    x (F, T), w (F,), base (F,), law (mean, persistence, scale, first mean, first scale).
    """
    mean, persistence, scale, first, spread = law

    def log_g(t, points):
        rates = base[:, None] + w[:, None] * np.exp(points)
        return np.sum(x[:, [t]] * np.log(rates) - rates, axis=0)

    cloud, log_w, lines = rng.normal(first, spread, n_particles), None, []
    cloud[0] = z[0]
    for t in range(len(z)):
        if t > 0:
            weights = np.exp(log_w - logsumexp(log_w))
            ancestors = rng.choice(n_particles, n_particles, p=weights)
            toward = log_w - 0.5 * ((z[t] - mean - persistence * (cloud - mean)) / scale) ** 2
            ancestors[0] = rng.choice(n_particles, p=np.exp(toward - logsumexp(toward)))
            lines.append((cloud, ancestors))
            cloud = rng.normal(mean + persistence * (cloud[ancestors] - mean), scale)
            cloud[0] = z[t]
        log_w = log_g(t, cloud)
    i = rng.choice(n_particles, p=np.exp(log_w - logsumexp(log_w)))
    path = [cloud[i]]
    for cloud, ancestors in reversed(lines):
        i = ancestors[i]
        path.append(cloud[i])
    return np.array(path[::-1])

"""Slow, obvious twins of the kernels of smoothing by particles: dense matrices over pairs of particles.

A cloud is (h, aux), (K, N) each; a law is the kernels' Law.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from nmf_zoo.kernels.hmm.particles.laws import BASIS, UNIT


def log_steps(new, old, law):
    """log f(h_i | h_j) of all particles i of new and j of old, (N, n)."""
    out = np.zeros((new.h.shape[1], old.h.shape[1]))
    for i, j in np.ndindex(out.shape):
        for k, (a, b, c) in enumerate(law.parameters.T):
            x, log_x, was, log_was = new.h[k, i], new.aux[k, i], old.h[k, j], old.aux[k, j]
            if law.kind == BASIS:
                stay = b if was else a
                out[i, j] += np.log(stay if x == was else 1 - stay)
            elif law.kind == UNIT:
                down, above, was_above = a if was <= 0.5 else 1 - a, log_x, log_was  # 1 - h, exact where h rounds to 1
                is_down = x <= was if was <= 0.5 else above > was_above
                out[i, j] += np.log(down / was if is_down else (1 - down) / was_above)
            else:
                out[i, j] += stats.norm.logpdf(log_x, a + b * (log_was - a), c)
    return out


def backward(new, old, log_weights, law):
    """(N, n) B_ij: how likely particle i of new comes from particle j of old."""
    logs = log_steps(new, old, law) + log_weights
    rows = np.exp(logs - logs.max(axis=1, keepdims=True))
    return rows / rows.sum(axis=1, keepdims=True)


def from_drawn(drawn, n):
    """(N, n) shares of the particles drawn (M, N) for each."""
    return np.mean([np.eye(n)[origins] for origins in drawn], axis=0)


def pairs_of(new, old, law):
    """(K, P, N, n) statistics of the steps between all particles."""
    shape = (len(new.h), new.h.shape[1], old.h.shape[1])
    x, was = np.broadcast_to(new.h[:, :, None], shape), np.broadcast_to(old.h[:, None, :], shape)
    z, z_was = np.broadcast_to(new.aux[:, :, None], shape), np.broadcast_to(old.aux[:, None, :], shape)
    if law.kind == BASIS:
        return np.stack([(was == a) & (x == b) for a in (0, 1) for b in (0, 1)], axis=1).astype(float)
    if law.kind == UNIT:
        towards = np.where(was <= 0.5, x <= was, z <= z_was)  # z = 1 - h, exact where h rounds to 1
        return np.stack([towards, ~towards], axis=1).astype(float)
    return np.stack([z_was, z, z_was * z_was, z_was * z, z * z], axis=1)


def firsts_of(cloud, law):
    """(K, D, N) statistics of the first time."""
    if law.kind == BASIS:
        return cloud.h[:, None, :]
    if law.kind == UNIT:
        return np.zeros((len(cloud.h), 0, cloud.h.shape[1]))
    return np.stack([cloud.aux, cloud.aux**2], axis=1)


def sample_of(cloud, x, weight, base, W):
    """((F, K, N) weighted activations, (F, K, N) expected sources) of counts x (F,); base (F,) over the exposure."""
    rates = base[:, None] + W @ cloud.h
    ratio = (x[:, None] / np.where(rates > 0, rates, 1.0))[:, None, :]
    return weight[:, None, None] * cloud.h[None], W[:, :, None] * cloud.h[None] * ratio


class Sums:
    """T_t of every particle, by part: first (K, D, N), pairs (K, P, N), activations and sources (F, K, N)."""

    def __init__(self, cloud, law, gain):
        self.law, n = law, cloud.h.shape[1]
        self.first = gain * firsts_of(cloud, law)
        self.pairs = np.zeros((*pairs_of(cloud, cloud, law).shape[:2], n))
        self.activations = self.sources = np.zeros((1, len(cloud.h), n))

    def carry(self, new, old, shares, decay, gain):
        """``shares`` (N, n): B, or one row of the identity for each ancestor."""
        for name in ("first", "pairs", "activations", "sources"):
            setattr(self, name, decay * getattr(self, name) @ shares.T)
        self.pairs = self.pairs + gain * np.einsum("kpij,ij->kpi", pairs_of(new, old, self.law), shares)

    def add(self, cloud, x, weight, base, W, gain):
        activations, sources = sample_of(cloud, x, weight, base, W)
        self.activations = self.activations + gain * activations
        self.sources = self.sources + gain * sources

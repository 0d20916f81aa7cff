"""Slow, obvious twins of the kernels of sequential Monte Carlo."""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import gammaln, logsumexp

from nmf_zoo.kernels.hmc.mass import EM_STEPS, RIDGE
from tests.naive.hmc import poisson_rows as naive_rows


def resample(log_weights, n_ancestors, shift):
    """Where equally spaced levels fall among the cumulative weights."""
    cumulative = np.cumsum(np.exp(log_weights - logsumexp(log_weights)))
    return np.minimum(np.searchsorted(cumulative, (np.arange(n_ancestors) + shift) / n_ancestors), len(log_weights) - 1)


def stride(x, u, offset, shape, rate, prior_rate, curve=0.0, known=None):
    """(scale (K,), root (K, K)) of a row with counts x (C,), from everything but the row itself.

    ``curve`` (K,), precisions of a half-normal prior; ``known`` (K,), values of known components, NaN where free
    """
    known = np.full(len(shape), np.nan) if known is None else known
    free = np.isnan(known)

    def settled(top):
        return np.where(free, 2 * top / (rate + np.sqrt(rate**2 + 4 * curve * top)), known)

    v = settled(shape)
    for _ in range(EM_STEPS):
        v = settled(shape + v * naive_rows.gradient_of_counts(x, u, offset, v)[1])
    plain = np.diag(naive_rows.curvature(x, u, offset, v, np.ones(len(v)))) + prior_rate**2 / shape + curve
    scale = 1 / np.sqrt(plain)
    slope = scale * -np.expm1(-v / scale)
    mass = naive_rows.curvature(x, u, offset, v, slope)
    mass = mass + np.diag(np.maximum(shape - 1, 0) * (slope / v) ** 2 + curve * slope**2 + RIDGE)
    root, own = np.zeros(mass.shape), np.ix_(free, free)
    flipped = np.linalg.cholesky(mass[own][::-1, ::-1])[::-1, ::-1]  # U upper triangular, mass = U U^T
    root[own] = np.linalg.inv(flipped).T
    return scale, root


def log_likelihood(x, weight, background, W, H):
    """Poisson log-likelihood of the cells with a weight."""
    mean = weight * (W @ H) + background
    return stats.poisson.logpmf(x, mean)[weight > 0].sum()


def log_evidence_of_rank_one(x, shape_w, rate_w, shape_h, rate_h):
    """log p(X) at K = 1 with one shape and rate for each factor: an integral over the sum s of w.

    w = s d with d Dirichlet and s gamma, independent; h integrates out given s.
    """
    n_features, n_samples = x.shape
    of_features, of_samples, total = x.sum(axis=1), x.sum(axis=0), x.sum()
    t = np.arange(-30.0, 12.0, 0.005)  # log s
    a = n_features * shape_w
    direction = gammaln(a) - gammaln(a + total) + np.sum(gammaln(shape_w + of_features) - gammaln(shape_w))
    log_p = (a + total) * t - rate_w * np.exp(t) + a * np.log(rate_w) - gammaln(a)
    for count in of_samples:
        log_p = log_p - (shape_h + count) * np.log(rate_h + np.exp(t)) + gammaln(shape_h + count) - gammaln(shape_h)
    log_p = log_p + n_samples * shape_h * np.log(rate_h)
    return logsumexp(log_p) + np.log(t[1] - t[0]) + direction - np.sum(gammaln(x + 1))

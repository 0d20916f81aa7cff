"""Slow, obvious twins of the Gibbs kernels and of the layout: dense NumPy, one cell at a time."""

from __future__ import annotations

import numpy as np
from scipy import stats

from nmf_zoo.kernels.random.draws import draw_gamma
from tests.naive.random.draws import allocate, fold


def source_weights(W, H, offset):
    """(F, N, K + 1): shares of the sources of each cell before they are normalised, the background last."""
    return np.concatenate([np.einsum("fk,kn->fnk", W, H), offset[:, :, None]], axis=2)


def allocate_sources(x, W, H, offset, key, by_features):
    """(of_features, of_samples) with the same keys as the kernel; for counts small enough to be drawn unit by unit."""
    weights, rank = source_weights(W, H, offset), W.shape[1]
    C = np.zeros((*x.shape, rank))
    for f, n in np.argwhere(x).tolist():
        major, minor = (f, n) if by_features else (n, f)
        cell = weights[f, n] if offset.any() else weights[f, n, :rank]
        C[f, n] = allocate(int(x[f, n]), cell, fold(fold(key, major), minor))[:rank]
    return C.sum(axis=1), C.sum(axis=0)


def draw_factor(shape, rate, key):
    """Gamma draws, each from the key of its own cell."""
    out = np.empty(shape.shape)
    for i, k in np.ndindex(out.shape):
        out[i, k] = draw_gamma(shape[i, k], np.uint64(fold(fold(key, i), k))) / rate[i, k]
    return out


def log_prior(v, shape, rate):
    return stats.gamma.logpdf(v, shape, scale=1 / rate).sum()


def log_shear_density(step, k, j, W, H, shape_w, rate_w, shape_h, rate_h):
    """log p(W, H) after the shear; W (K, F) and H (K, N) with components as rows."""
    W, H = W.copy(), H.copy()
    W[k] += step * W[j]
    H[j] -= step * H[k]
    return log_prior(W, shape_w, rate_w) + log_prior(H, shape_h, rate_h)


def log_scale_density(log_c, k, W, H, shape_w, rate_w, shape_h, rate_h):
    """log-density of log c along w_k c, h_k / c: the prior, and the Jacobian of the orbit."""
    c = np.exp(log_c)
    log_jacobian = (W.shape[1] - H.shape[1]) * log_c
    return log_prior(W[k] * c, shape_w[k], rate_w[k]) + log_prior(H[k] / c, shape_h[k], rate_h[k]) + log_jacobian


def log_likelihood(x, mask, mean):
    return stats.poisson.logpmf(x, mean)[mask].sum()

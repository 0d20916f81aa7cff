"""Slow, obvious twins of the composite Gibbs kernels: complex amplitudes, one cell at a time."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.powers.frame_splits import exponential_and_cosine
from nmf_zoo.kernels.random.draws import draw_gamma
from nmf_zoo.kernels.random.keyed_rng import random_bits
from tests.naive.random.draws import fold


def conditional(p, variances):
    """Mean (K,) and covariance (K, K) of independent circular complex Gaussians given that their sum is sqrt(p)."""
    total = np.sum(variances)
    return variances / total * np.sqrt(p), np.diag(variances) - np.outer(variances, variances) / total


def moments_of_powers(p, variances):
    """E[|c_k|^2] (K,) and E[|c_j|^2 |c_k|^2] (K, K), given the sum."""
    mean, covariance = conditional(p, variances)
    expected = mean**2 + np.diag(covariance)
    return expected, np.outer(expected, expected) + covariance**2 + 2 * np.outer(mean, mean) * covariance


def correct_prior_draws(p, variances, n, rng):
    """(n, K) draws of |c_k|^2: from the prior, and then corrected for their sum."""
    parts = rng.normal(size=(2, n, len(variances))) * np.sqrt(variances / 2)
    c = parts[0] + 1j * parts[1]
    c += variances / np.sum(variances) * (np.sqrt(p) - c.sum(axis=1, keepdims=True))
    return np.abs(c) ** 2


def split_amplitude(p, variances, exponentials, cosines):
    """Powers |c_k|^2, one complex amplitude after the other split off the sum, with these sizes and angles."""
    left, powers = complex(np.sqrt(p)), []
    for k in range(len(variances) - 1):
        mine, rest = variances[k], np.sum(variances[k:])
        direction = left / abs(left) if left else 1.0
        angle = direction * np.exp(1j * np.arccos(cosines[k]))
        c = mine / rest * left + np.sqrt(mine * (1 - mine / rest) * exponentials[k]) * angle
        powers.append(abs(c) ** 2)
        left -= c
    return np.array([*powers, abs(left) ** 2])


def draw_frame_powers(power, background, W, h, key):
    """|c_fk|^2 (F, K) with the words that the kernel reads; ``background`` (F,) or None."""
    sources, out = len(h) + (background is not None), []
    for f in range(len(W)):
        variances = W[f] * h if background is None else np.append(W[f] * h, background[f])
        words = [random_bits(np.uint64(fold(key, k)), f) for k in range(sources - 1)]
        draws = np.array([exponential_and_cosine.py_func(np.uint64(word)) for word in words]).reshape(-1, 2)
        out.append(split_amplitude(power[f], variances, draws[:, 0], draws[:, 1])[: len(h)])
    return np.array(out)


def sweep(x, seen, background, W, H, prior_w, prior_h, keys):
    """(W, H) after one composite sweep; priors are pairs (shape, scale), or None for a factor that is known."""
    powers_key, weights_key = keys
    W, H, sums = W.copy(), H.copy(), np.zeros(W.shape)
    for n in range(H.shape[1]):
        own, at = fold(powers_key, n), seen[:, n]
        beside = None if background is None else background[:, n]
        C = draw_frame_powers(x[:, n], beside, W, H[:, n], fold(own, 0)) * at[:, None]
        if prior_h is not None:
            for k in range(len(H)):
                gamma = draw_gamma(prior_h[0] + at.sum(), np.uint64(fold(fold(own, 1), k)))
                H[k, n] = (prior_h[1] + np.sum(C[:, k] / W[:, k])) / gamma
        sums += C / H[:, n]
    if prior_w is not None:
        for f, k in np.ndindex(*W.shape):
            gamma = draw_gamma(prior_w[0] + seen[f].sum(), np.uint64(fold(fold(weights_key, f), k)))
            W[f, k] = (prior_w[1] + sums[f, k]) / gamma
    return W, H


def log_scale_density(log_c, w, h, prior_w, prior_h):
    """log-density of log c along w c, h / c under inverse gammas (shape, scale); a flat factor has (-1, 0)."""
    c = np.exp(log_c)
    return (len(w) - len(h)) * log_c + log_prior(w * c, *prior_w) + log_prior(h / c, *prior_h)


def log_prior(v, shape, scale):
    return np.sum(-(shape + 1) * np.log(v) - scale / v)


def log_shear_density(step, k, j, W, H, shape_w, scale_w, shape_h, scale_h):
    """log p(W, H) after the shear, up to a constant; W (K, F) and H (K, N) with components as rows."""
    return log_prior(W[k] + step * W[j], shape_w[k], scale_w[k]) + log_prior(H[j] - step * H[k], shape_h[j], scale_h[j])

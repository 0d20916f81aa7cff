"""Slow, obvious twins of looking ahead with log-normal chains: one particle at a time, in NumPy and SciPy.

A sample is (x (n,), W (n, K), base (n,), weight_sums (K,)) of its listed cells; h = e^log_scale softplus(v).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import expit

from nmf_zoo.kernels.hmm.basis_states import Counts
from nmf_zoo.kernels.hmm.particles.emission import Target
from nmf_zoo.kernels.hmm.particles.laws import LOG_NORMAL, Law


class Sample(NamedTuple):
    x: np.ndarray
    W: np.ndarray
    base: np.ndarray
    weight_sums: np.ndarray


class Expansion(NamedTuple):
    log_scale: np.ndarray
    anchor: np.ndarray
    slope: np.ndarray
    A: np.ndarray
    centre: np.ndarray
    curvature: np.ndarray


def target_of(X, W, base=0.0, scale=0.5, mask=None, offset=None):
    """A target with all the cells of X (F, T) that are not 0."""
    mask = np.ones(X.shape) if mask is None else mask
    samples, features = np.nonzero((X * mask).T)
    ones = np.ones(W.shape[1])
    counts = Counts(
        np.searchsorted(samples, np.arange(X.shape[1] + 1)),
        features.astype(np.int32),
        X[features, samples].astype(float),
        np.zeros(0) if offset is None else offset[features, samples],
        mask.T @ W,
    )
    law = Law(LOG_NORMAL, np.array([0.2 * ones, 0.8 * ones, scale * ones]), np.array([0.3 * ones, 1.2 * scale * ones]))
    return Target(counts, W, np.full(len(W), base), law)


def log_g(sample, h):
    """log g(x | h), up to a constant."""
    return sample.x @ np.log(sample.base + sample.W @ h) - sample.weight_sums @ h


def slopes(sample, h):
    """(dl / dlog h (K,), sum_c x_c p_ck p_cl (K, K))."""
    shares = sample.W * h / (sample.base + sample.W @ h)[:, None]
    return sample.x @ shares - sample.weight_sums * h, (shares.T * sample.x) @ shares


def find_mode(sample, mean, precision):
    """The mode of N(z; mean, 1 / precision) g(x | e^z), by the kernel's damped Newton steps."""
    z, here = mean.copy(), log_g(sample, np.exp(mean))
    for _ in range(50):
        slope, B = slopes(sample, np.exp(z))
        root = factor(B, precision - slope, precision - np.minimum(slope, 0), precision)
        gradient = slope - precision * (z - mean)
        step = solve(root, gradient)
        if gradient @ step < 1e-3:
            break
        share = min(1.0, 2.0 / np.abs(step).max())
        for _ in range(20):
            trial = z + share * step
            there = log_g(sample, np.exp(trial)) - 0.5 * precision @ (trial - mean) ** 2
            if there >= here - 1e-12 * abs(here):
                z, here = trial, there
                break
            share /= 2
    return z


def factor(matrix, diagonal, sure, precision):
    """Cholesky factor of matrix + diag(diagonal), of matrix + diag(sure) where a pivot is below a hundredth of Q."""
    try:
        root = np.linalg.cholesky(matrix + np.diag(diagonal))
        if np.all(np.diag(root) ** 2 > 1e-2 * precision):
            return root
    except np.linalg.LinAlgError:
        pass
    return np.linalg.cholesky(matrix + np.diag(sure))


def solve(root, b):
    return np.linalg.solve(root.T, np.linalg.solve(root, b))


def softplus(v):
    """(softplus(v), its derivative)."""
    return np.logaddexp(0, v), expit(v)


def expand(sample, mean, precision):
    """The expansion around the mode of the particle with this mean."""
    z = find_mode(sample, mean, precision)
    slope, B = slopes(sample, np.exp(z))
    anchor = np.clip(np.sqrt(np.diag(B) / precision), 1e-3, 1e6)
    found = Expansion(z - np.log(anchor), anchor, slope / anchor, B / np.outer(anchor, anchor), np.zeros(len(z)), B)
    v = anchor + np.log(-np.expm1(-anchor))
    for _ in range(4):
        gradient, root = in_v(v, mean, precision, found)
        step = solve(root, gradient)
        if gradient @ step < 1e-3:
            break
        v = v + step * min(1.0, 2.0 / np.abs(step).max())
    root = in_v(v, mean, precision, found)[1]
    return found._replace(centre=v, curvature=root @ root.T)


def in_v(v, mean, precision, expansion):
    """(gradient of the log-density of v, factor of its curvature)."""
    s, rise = softplus(v)
    left = expansion.slope - expansion.A @ (s - expansion.anchor)
    away, up, flat = np.log(s) + expansion.log_scale - mean, rise / s, rise * (1 - rise)
    twist = flat / s - up**2
    gradient = left * rise - precision * away * up + 1 - rise - up
    bend = -left * flat + precision * (up**2 + away * twist) + flat + twist
    sure = np.maximum(-left * flat, 0) + precision * up**2 + np.maximum(flat + twist, 0)
    return gradient, factor(expansion.A * np.outer(rise, rise), bend, sure, precision)


def log_density(v, mean, precision, expansion, sample=None):
    """The log-density of v under the chain's law and the sample, or the quadratic in its place, up to a constant."""
    s, rise = softplus(v)
    e = s - expansion.anchor
    away = np.log(s) + expansion.log_scale - mean
    if sample is None:
        explained = expansion.slope @ e - 0.5 * e @ expansion.A @ e
    else:
        explained = log_g(sample, np.exp(expansion.log_scale) * s)
    return explained - 0.5 * precision @ away**2 + np.sum(np.log(rise / s))


def gradient(v, *given):
    """Of `log_density`, by central differences."""
    return np.array([(log_density(v + d, *given) - log_density(v - d, *given)) / 2e-5 for d in 1e-5 * np.eye(len(v))])


def climb(means, centre_mean, precision, expansion, sample):
    """(centres (K, N), looks (N,)) of particles with these means (K, N); gradients by differences."""
    points, looks = np.empty(means.shape), np.empty(means.shape[1])
    S = np.linalg.inv(expansion.curvature)
    s, rise = softplus(expansion.centre)
    for i, m in enumerate(means.T):
        v = expansion.centre + np.clip(S @ (precision * rise / s * (m - centre_mean)), -2, 2)
        for _ in range(3):
            slope = gradient(v, m, precision, expansion, sample)
            step = S @ slope
            looks[i] = log_density(v, m, precision, expansion, sample) + min(0.5 * slope @ step, 2.0)
            v = v + step * min(1.0, 2.0 / np.abs(step).max())
        points[:, i] = v
    return points, looks


def mix(looks, weights, share):
    """Looks with a share of their mean in each, up to a constant."""
    plain = np.exp(looks - looks.max())
    return np.log((1 - share) * plain + share * weights @ plain)


def log_proposal(z, m, precision, v, expansion, share):
    """log q(z) of one particle with mean m and centre v: the chain's own law, and a normal in coordinates v."""
    s = np.exp(z - expansion.log_scale)
    there = s + np.log(-np.expm1(-s))
    jacobian = np.sum(np.log(s / -np.expm1(-s)))  # dv / dz
    normal = stats.multivariate_normal.logpdf(there, v, np.linalg.inv(expansion.curvature), allow_singular=True)
    own = stats.norm.logpdf(z, m, precision**-0.5).sum()
    return np.logaddexp(np.log(share) + own, np.log1p(-share) + normal + jacobian)

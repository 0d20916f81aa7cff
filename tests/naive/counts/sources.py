"""Slow, obvious twins of the optimisers' kernels: plain NumPy on full (F, K, N) arrays, W (F, K), H (K, N)."""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats
from scipy.special import gammaln, psi


def shares(left, right, offset=0.0):
    """(F, K, N): each component's share of each cell's mean; 0/0 := 0."""
    parts = left[:, :, None] * right[None]
    total = parts.sum(axis=1, keepdims=True) + np.broadcast_to(offset, (len(left), right.shape[1]))[:, None, :]
    return np.divide(parts, total, out=np.zeros_like(parts), where=total > 0)


def expected_sources(x, left, right, offset=0.0):
    """(F, K, N) expected sources of x (F, N)."""
    return x[:, None, :] * shares(left, right, offset)


def sum_x_log_mean(x, left, right, offset=0.0):
    mean = left @ right + offset
    return sum(value * np.log(mean[cell]) for cell, value in np.ndenumerate(x) if value > 0)


def em_step(x, weight, W, H, prior_w, prior_h, offset=0.0, inner=None):
    """One iteration. Priors are (added to the numerator, rate): (0, 0) for none, (a - 1, r) or (a, r) for a gamma."""
    C = expected_sources(x, W, H, offset)
    for _ in range(inner or 1):
        W = (prior_w[0] + C.sum(axis=2)) / (prior_w[1] + weight @ H.T)
        D = expected_sources(x, W, H, offset) if inner is None else C
        H = (prior_h[0] + D.sum(axis=0)) / (prior_h[1] + W.T @ weight)
    return W, H


def gap_step(x, weight, W, H, held, free_w, free_h, prior_h, offset=0.0):
    """One iteration of a flat W whose ``held`` columns sum to one, and of H; each (K,) bool says what is not known."""
    C, old = expected_sources(x, W, H, offset), W
    numerator, denominator = C.sum(axis=2), weight @ H.T
    W = old.copy()
    for k in np.flatnonzero(free_w):
        of_data, pull = numerator[:, k], denominator[:, k]
        root = 0.0
        if held[k]:
            least = -pull.min()
            root = optimize.brentq(_excess, least + 1e-9, 1e9, args=(of_data, pull), xtol=1e-13)
        W[:, k] = of_data / (pull + root)
    new = (prior_h[0] + C.sum(axis=0)) / (prior_h[1] + W.T @ weight)
    return W, np.where(free_h[:, None], new, H)


def _excess(root, numerator, denominator):
    return np.sum(numerator / (denominator + root)) - 1.0


def squared_error_step(x, mask, W, H):
    """One iteration of Lee and Seung's updates for the squared error over the observed cells."""
    W = W * ((mask * x) @ H.T) / ((mask * (W @ H)) @ H.T)
    return W, H * (W.T @ (mask * x)) / (W.T @ (mask * (W @ H)))


def vb_step(x, weight, q_w, q_h, prior_w, prior_h, offset=0.0, order="cemgil"):
    """One iteration of (shape, rate) pairs; ``q`` are (E, L) pairs at first. Returns the new (shape, rate) pairs."""
    C = expected_sources(x, q_w[1], q_h[1], offset)
    new_w = prior_w[0] + C.sum(axis=2), prior_w[1] + weight @ q_h[0].T
    if order == "paisley":
        C = expected_sources(x, geometric(*new_w), q_h[1], offset)
    return new_w, (prior_h[0] + C.sum(axis=0), prior_h[1] + (new_w[0] / new_w[1]).T @ weight)


def geometric(shape, rate):
    return np.exp(psi(shape)) / rate


def gamma_moments(shape, rate):
    """(E[v], E[log v], what the divergence owes to the shapes alone) of gammas (rows, K)."""
    return shape / rate, psi(shape) - np.log(rate), np.sum(shape * psi(shape) - gammaln(shape) - shape)


def largest_change(old, new, smallest):
    return np.max(np.abs(new - old) / np.maximum(new.max(axis=0), smallest))


def multiplicative_update(old, numerator, denominator, power, floor):
    """(the update of a factor, its KKT residual)"""
    denominator = np.broadcast_to(denominator, old.shape)
    new = np.maximum(
        np.where(denominator > 0, (numerator + power) / np.where(denominator > 0, denominator, 1.0), old), floor
    )
    return new, largest_slope(old, new)


def largest_slope(old, new):
    return np.max(np.abs(np.minimum(old / old.max(axis=0), 1.0 - new / old)))


def bound(x, weight, q_w, q_h, prior_w, prior_h, exposure=1.0, background=0.0):
    """E_q[log p(X, C, W, H)] + entropy of q from (shape, rate) pairs, with q(C) multinomial at the newest L.

    The multinomials' log C! cancels against that of the Poisson densities; a background is one more source.
    """
    L_w, L_h = geometric(*q_w), geometric(*q_h)
    offset = np.broadcast_to(background / exposure, x.shape)
    C = expected_sources(x, L_w, L_h, offset)
    rest = x - C.sum(axis=1)
    log_rate = np.log(L_w)[:, :, None] + np.log(L_h)[None] + np.broadcast_to(np.log(exposure), x.shape)[:, None]
    sources = np.sum(C * log_rate) - np.sum(weight * ((q_w[0] / q_w[1]) @ (q_h[0] / q_h[1])))
    seen = weight > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        sources += np.nansum(
            np.where(rest > 1e-14 * (1.0 + x), rest * np.log(np.broadcast_to(background, x.shape)), 0.0)
        )
        p = np.concatenate([C, rest[:, None]], axis=1) / x[:, None]
        entropy = -np.nansum(np.where(p > 1e-300, x[:, None] * p * np.log(p), 0.0))
    constants = -np.sum(gammaln(x + 1)) - np.sum(np.where(seen, background, 0.0))
    factors = sum(
        _expected_log_prior(q, p) + np.sum(stats.gamma.entropy(q[0], scale=1 / q[1]))
        for q, p in ((q_w, prior_w), (q_h, prior_h))
    )
    return sources + entropy + constants + factors


def _expected_log_prior(q, prior):
    shape, rate = (np.broadcast_to(array, q[0].shape) for array in prior)
    log_v = psi(q[0]) - np.log(q[1])
    return np.sum(shape * np.log(rate) - gammaln(shape) + (shape - 1) * log_v - rate * q[0] / q[1])

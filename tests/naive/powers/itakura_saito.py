"""Itakura-Saito updates the slow and obvious way: (F, N) arrays, one cell of a factor at a time."""

from __future__ import annotations

import numpy as np


def divergence(x, seen, W, H, background):
    """sum over observed cells of log l + x / l"""
    mean = W @ H + background
    return float(np.sum(np.where(seen, np.log(mean) + x / mean, 0.0)))


def numerator_and_denominator(x, seen, W, H, background):
    """((F, K), (F, K)) of W; for H hand over everything transposed."""
    mean = W @ H + background
    return np.where(seen, x / mean**2, 0.0) @ H.T, np.where(seen, 1.0 / mean, 0.0) @ H.T


def root(a, b, c):
    """The positive solution of a w^2 + b w = c."""
    if a == 0:
        return c / b
    return max(np.roots([a, b, -c]).real)


def updated(x, seen, W, H, background, terms, rule):
    """A new W; ``terms`` are power, scale and rate, each broadcasting to W."""
    numerator, denominator = numerator_and_denominator(x, seen, W, H, background)
    power, scale, rate = (np.broadcast_to(part, W.shape) for part in terms)
    new = np.empty_like(W)
    for cell in np.ndindex(W.shape):
        w, up, down = W[cell], denominator[cell] + rate[cell], numerator[cell] + scale[cell] / W[cell] ** 2
        if rule == "monotone":
            new[cell] = root(up, power[cell], down * w**2)
        elif power[cell] >= 0:
            new[cell] = w * down / (up + power[cell] / w)
        else:
            new[cell] = w * (down - power[cell] / w) / up
    return new


def step(x, seen, W, H, background, terms, rule):
    """(W, H) after W and then H; ``terms`` of both."""
    W = updated(x, seen, W, H, background, terms[0], rule)
    return W, updated(x.T, seen.T, H.T, W.T, background.T, [part.T for part in terms[1]], rule).T


def sage_step(x, seen, W, H, background, terms):
    """(W, H) after every component's activations and then its profile, from its posterior power (F, N)."""
    W, H = W.copy(), H.copy()
    for k in range(W.shape[1]):
        mean, own = W @ H + background, np.outer(W[:, k], H[k])
        gain = own / mean
        posterior = np.where(seen, gain**2 * x + own * (1.0 - gain), 0.0)
        power, scale, rate = (np.broadcast_to(part, H.shape)[k] for part in terms[1])
        totals = scale + (posterior / W[:, k : k + 1]).sum(axis=0)
        H[k] = [root(*cell) for cell in zip(rate, power + seen.sum(axis=0), totals, strict=True)]
        power, scale, rate = (np.broadcast_to(part, W.shape)[:, k] for part in terms[0])
        totals = scale + (posterior / H[k]).sum(axis=1)
        W[:, k] = [root(*cell) for cell in zip(rate, power + seen.sum(axis=1), totals, strict=True)]
    return W, H

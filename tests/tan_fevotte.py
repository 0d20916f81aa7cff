"""Tan and Fevotte (2013): l1- and l2-ARD under the Kullback-Leibler divergence, beta = 1 and phi = 1, in NumPy."""

from __future__ import annotations

import numpy as np


def tan_fevotte(V, W, H, relevance, a, b, iterations):
    """(W, H, relevance, objective after every iteration) of D(V | W H) + sum_k (|w_k| + |h_k| + b) / r_k + c log r_k.

    Multiplicative updates of H, then of W, then of the relevances r, with c = F + N + a + 1.
    """
    c = sum(V.shape) + a + 1.0
    costs = []
    for _ in range(iterations):
        H = H * (W.T @ (V / (W @ H))) / (W.sum(axis=0)[:, None] + 1.0 / relevance[:, None])
        W = W * ((V / (W @ H)) @ H.T) / (H.sum(axis=1) + 1.0 / relevance)
        size = W.sum(axis=0) + H.sum(axis=1)
        relevance = (size + b) / c
        fit = np.sum(W @ H) - np.sum(V * np.log(W @ H))
        costs.append(fit + np.sum((size + b) / relevance + c * np.log(relevance)))
    return W, H, relevance, np.array(costs)


def tan_fevotte_l2(V, W, H, variance, a, b, iterations):
    """(W, H, variances) of D(V | W H) + sum_k (|w_k|^2 / 2 + |h_k|^2 / 2 + b) / r_k + c log r_k, by exact M steps.

    Their majoriser of the divergence and the penalty as it is, of H, then of W, then of r, with
    c = (F + N) / 2 + a + 1.
    """
    c = sum(V.shape) / 2 + a + 1.0

    def root(numerator, denominator, curve):
        return (-denominator + np.sqrt(denominator**2 + 4 * curve * numerator)) / (2 * curve)

    for _ in range(iterations):
        H = root(H * (W.T @ (V / (W @ H))), W.sum(axis=0)[:, None], 1 / variance[:, None])
        W = root(W * ((V / (W @ H)) @ H.T), H.sum(axis=1), 1 / variance)
        variance = (np.sum(W**2, axis=0) / 2 + np.sum(H**2, axis=1) / 2 + b) / c
    return W, H, variance

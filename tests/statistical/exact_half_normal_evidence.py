"""log p(X) of tiny problems with half-normal factors: all allocations listed, two integrals for each component.

Given the allocation the components are independent, and one with the sums A_f over samples and B_n over features has

    Z(A, B) = integral of prod_f p(w_f) w_f^A_f  prod_n J_n(sum_f w_f)        J_n(s) = integral of p(h) h^B_n e^(-s h)

each by the trapezoid rule in logarithms.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, logsumexp

from tests.statistical.enumeration import list_sources

STEP = 0.25
LOGS = np.arange(-30.0, 5.0, STEP)


def log_prior(sigma):
    """Of the logarithm of a half-normal cell, on the grid."""
    return 0.5 * np.log(2 / np.pi) - np.log(sigma) - 0.5 * (np.exp(LOGS) / sigma) ** 2 + LOGS


def log_evidence(x, sigma_w, sigma_h):
    """Of X (1 or 2, N) and sigmas (K,)."""
    n_features, rank = len(x), len(sigma_w)
    sources = list_sources(x, rank)
    A, B = sources.sum(axis=2), sources.sum(axis=1)  # (ways, F, K), (ways, N, K)
    total = -gammaln(sources + 1.0).sum(axis=(1, 2, 3))
    for k in range(rank):
        total = total + _log_integrals(A[:, :, k], B[:, :, k], sigma_w[k], sigma_h[k], n_features)
    return float(logsumexp(total))


def _log_integrals(A, B, sigma_w, sigma_h, n_features):
    """log Z of every way."""
    grids = np.meshgrid(*[LOGS] * n_features, indexing="ij")
    s = sum(np.exp(grid) for grid in grids).ravel()
    of_h = {b: logsumexp(log_prior(sigma_h) + b * LOGS - s[:, None] * np.exp(LOGS), axis=1) for b in np.unique(B)}
    own = sum(np.meshgrid(*[log_prior(sigma_w)] * n_features, indexing="ij")).ravel()
    sums, place = np.unique(np.hstack([A, B]), axis=0, return_inverse=True)
    out = []
    for row in sums:
        of_A, of_B = row[:n_features], row[n_features:]
        powers = sum(a * grid.ravel() for a, grid in zip(of_A, grids, strict=True))
        out.append(logsumexp(own + powers + sum(of_h[b] for b in of_B)))
    return np.array(out)[place.ravel()] + (n_features + B.shape[1]) * np.log(STEP)

"""The posterior and evidence of two counts of one component in two times, by quadrature.

With w ~ Gamma(a, r) and x_n ~ Poisson(w h_n), w integrated out::

    p(x | h) = r^a / Gamma(a) Gamma(a + x.) / (r + h_1 + h_2)^(a + x.) prod_n h_n^x_n / x_n!

and h_1, h_2 are left, on a grid of their logarithms. The chain's law is written anew.
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import gammaln, logsumexp

COUNTS = np.array([[3.0, 7.0]])
W_LAW = 1.7, 0.6
GRID = np.linspace(-14.0, 12.0, 651)  # of log h


def log_gamma_chain(first, second, alpha_z, alpha_h, beta_z, shape, rate):
    """log p(h_1, h_2), by SciPy's beta prime."""
    return stats.gamma.logpdf(first, shape, scale=1 / rate) + stats.betaprime.logpdf(
        second, alpha_h, alpha_z, scale=beta_z * first
    )


def log_posterior(log_chain):
    """log p(x, h) + log h_1 + log h_2 on the grid of both."""
    first, second = np.exp(GRID)[:, None], np.exp(GRID)[None, :]
    a, r = W_LAW
    x = COUNTS[0]
    log_p = a * np.log(r) - gammaln(a) + gammaln(a + x.sum()) - (a + x.sum()) * np.log(r + first + second)
    log_p = log_p + x[0] * GRID[:, None] + x[1] * GRID[None, :] - gammaln(x + 1).sum()
    return log_p + log_chain(first, second) + GRID[:, None] + GRID[None, :]


def log_evidence(log_chain):
    """log p(x)"""
    return float(logsumexp(log_posterior(log_chain)) + 2 * np.log(GRID[1] - GRID[0]))


def exact_moments(log_chain):
    """Means of log h_1, log h_2, their squares and their product, given x."""
    log_p = log_posterior(log_chain)
    p = np.exp(log_p - logsumexp(log_p))
    u, v = GRID[:, None], GRID[None, :]
    return [float(np.sum(p * of)) for of in (u, v, u * u, v * v, u * v)]


def exact_moments_of_bgar(alpha, beta, rho, n=101):
    """The same where h_1 = u + v_1, h_2 = u + v_2, these three independent gammas: a sum over their logarithms."""
    logs, shapes = np.linspace(-40.0, 4.0, 2 * n), np.linspace(-30.0, 4.0, n)
    log_u, log_v = logs[:, None, None], shapes
    u, first, second = np.exp(log_u), np.exp(log_v)[None, :, None], np.exp(log_v)[None, None, :]
    a, (of_a, r), x = alpha * (1 - rho), W_LAW, COUNTS[0]
    log_p = alpha * rho * log_u + a * log_v[None, :, None] + a * log_v[None, None, :] - beta * (u + first + second)
    h = u + first, u + second
    log_p = log_p + x[0] * np.log(h[0]) + x[1] * np.log(h[1]) - (of_a + x.sum()) * np.log(r + h[0] + h[1])
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    one, two = np.log(h[0]), np.log(h[1])
    return [float(np.sum(p * of)) for of in (one, two, one * one, two * two, one * two)]


def moments_of(log_h):
    """The same quantities of draws (n, 2)."""
    u, v = log_h.T
    return np.column_stack([u, v, u * u, v * v, u * v])

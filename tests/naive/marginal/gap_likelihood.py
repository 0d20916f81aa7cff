"""Slow, obvious twins of the marginal likelihood's kernels: a dictionary over totals, and quadrature over h."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
from scipy.special import gammaln, logsumexp
from scipy.stats import gamma


def sum_over_sources(order, q, shape, slope):
    """{totals: sum} after all counts, in plain floats."""
    state = {(0,) * q.shape[1]: 1.0}
    for cell in order:
        new = defaultdict(float)
        for totals, value in state.items():
            for k, share in enumerate(q[cell]):
                after = tuple(total + (i == k) for i, total in enumerate(totals))
                new[after] += share * (shape[k] + slope[k] * totals[k]) * value
        state = dict(new)
    return state


def source_means(x, W, shape, rate):
    """E[C | x] (F, K) by enumeration of all admissible C; H ~ Gamma(shape, rate), (K,)."""
    p = W / (W.sum(axis=0) + rate)
    ways = [list(compositions(int(count), len(shape))) for count in x]
    components = np.array([np.reshape(C, W.shape) for C in itertools.product(*ways)])
    totals = components.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_cells = np.where(components > 0, components * np.log(p), 0.0) - gammaln(components + 1)
    logs = of_cells.sum(axis=(1, 2)) + np.sum(gammaln(shape + totals) - gammaln(shape), axis=1)
    weights = np.exp(logs - logsumexp(logs))
    return np.tensordot(weights, components, 1)


def compositions(total, parts):
    """All ways to write ``total`` as a sum of ``parts`` numbers."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield first, *rest


def log_integral(x, W, shape, rate, points, width):
    """log of the integral over h of Poisson(x | W h) Gamma(h | shape, rate), by the trapezoid rule in log h.

    ``points`` in each direction, from ``width`` below a rough posterior mean on.
    """
    h = np.full(len(shape), x.sum() / W.sum())
    for _ in range(2000):
        h = (shape + h * (W.T @ (x / (W @ h)))) / (rate + W.sum(axis=0))
    axes = [np.log(value) + np.linspace(-width, 4.0, points) for value in h]
    step = axes[0][1] - axes[0][0]
    grid = np.stack([part.ravel() for part in np.meshgrid(*axes, indexing="ij")])
    log_prior = sum(gamma.logpdf(np.exp(u), a, scale=1 / b) + u for u, a, b in zip(grid, shape, rate, strict=True))
    means = W @ np.exp(grid)
    log_likelihood = x @ np.log(means) - means.sum(axis=0) - gammaln(x + 1).sum()
    return logsumexp(log_prior + log_likelihood) + len(shape) * np.log(step)


def log_beta_integral(x, q, shape):
    """log E[prod_f (q_f0 d + q_f1 (1 - d))^x_f], d ~ Beta(shape), by the trapezoid rule in the logit of d."""
    logit = np.linspace(-60, 60, 200_001)
    log_d, log_rest = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
    log_density = shape[0] * log_d + shape[1] * log_rest + gammaln(sum(shape)) - gammaln(shape).sum()
    with np.errstate(divide="ignore"):
        log_q = np.log(q)
    means = np.logaddexp(log_q[:, :1] + log_d, log_q[:, 1:] + log_rest)
    return logsumexp(log_density + x @ means) + np.log(logit[1] - logit[0])

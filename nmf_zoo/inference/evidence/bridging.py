"""Ratios of normalising constants by bridge sampling, and their Monte-Carlo error.

With draws of two unnormalised densities p and q, the log ratios l = log p - log q at draws of each, and s the share of
p's draws among all (counted as independent ones), the optimal bridge r = log(Z_p / Z_q) solves::

    mean over q's draws of  e^l / (s e^l + (1 - s) e^r)  =  e^r  mean over p's draws of  1 / (s e^l + (1 - s) e^r)

Its error comes from the spread over batches of consecutive draws, each left out in turn, which knows about the
dependence between neighbouring draws.

Meng & Wong (1996), Simulating ratios of normalizing constants via a simple identity, Statistica Sinica 6, eq. 4.1.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import logsumexp

from nmf_zoo.structure import Array

BATCHES = 20
MOST_ROUNDS, SETTLED = 500, 1e-7


def log_ratio(at_p: Array, at_q: Array, share: float = 0.5, start: float | None = None) -> float:
    """log(Z_p / Z_q) from l = log p - log q at p's draws and at q's; -inf where p is 0. ``start``: a guess."""
    if not np.isfinite(at_q).any():
        return -np.inf
    log_share, log_rest = np.log(share), np.log1p(-share)
    estimate = float(np.median(at_p)) if start is None else start
    for _ in range(MOST_ROUNDS):
        over_q = logsumexp(at_q - np.logaddexp(log_share + at_q, log_rest + estimate)) - np.log(len(at_q))
        over_p = logsumexp(-np.logaddexp(log_share + at_p, log_rest + estimate)) - np.log(len(at_p))
        before, estimate = estimate, float(over_q - over_p)
        if abs(estimate - before) < SETTLED:
            break
    return estimate


def batch_deviations(estimates: Array) -> Array:
    """Deviations of leave-one-batch-out estimates (batches,), scaled so that their sum of squares is the variance."""
    n = len(estimates)
    return (estimates - estimates.mean()) * np.sqrt((n - 1) / n)


def without_batch(draws: Array, batch: int) -> Array:
    """The draws but for one of ``BATCHES`` runs of consecutive ones."""
    edges = np.linspace(0, len(draws), BATCHES + 1).astype(int)
    return np.delete(draws, np.s_[edges[batch] : edges[batch + 1]], axis=0)


def error_of_ratio(at_p: Array, at_q: Array, share: float = 0.5) -> tuple[Array, Array]:
    """The batch deviations of :func:`log_ratio` owed to p's draws and to q's."""
    start = log_ratio(at_p, at_q, share)
    of_p = np.array([log_ratio(without_batch(at_p, b), at_q, share, start) for b in range(BATCHES)])
    of_q = np.array([log_ratio(at_p, without_batch(at_q, b), share, start) for b in range(BATCHES)])
    return batch_deviations(of_p), batch_deviations(of_q)


def independent_size(series: Array) -> float:
    """How many independent draws a series is worth, by the spread of its batches' means."""
    edges = np.linspace(0, len(series), BATCHES + 1).astype(int)
    means = np.array([series[a:b].mean() for a, b in itertools.pairwise(edges)])
    spread, of_means = series.var(), means.var(ddof=1)
    if not of_means > 0:
        return float(len(series))
    return float(np.clip(BATCHES * spread / of_means, 1.0, len(series)))


def effective_share(log_weights: Array) -> float:
    """The effective share of importance weights, 1 / (1 + squared coefficient of variation)."""
    top = log_weights.max()
    if not np.isfinite(top):
        return 0.0
    weights = np.exp(log_weights - top)
    return float(weights.sum() ** 2 / np.sum(weights**2) / len(weights))

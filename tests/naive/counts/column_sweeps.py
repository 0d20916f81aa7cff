"""Slow, obvious twins of the kernels of online EM: plain NumPy, one column x (F,) and one W (F, K) at a time."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import gammaln

from nmf_zoo.kernels.counts.column_sweeps import FIXED_POINTS
from nmf_zoo.kernels.random.draws import draw_log_gamma
from nmf_zoo.kernels.random.keyed_rng import child, uniform


def expect_column(x, seen, W, shape, rate, sweeps, keep, key):
    """(E[c | x] (F, K), E[h | x] (K,)) averaged over the kept sweeps; small counts only."""
    below, at = rate + W[seen].sum(axis=0), np.flatnonzero(x)
    listed = np.flatnonzero(seen) if not seen.all() else at
    U = W / W.max(axis=1, keepdims=True)
    h = shape / below
    for _ in range(FIXED_POINTS):
        h = (shape + (x[at, None] * U[at] * h / (U[at] @ h)[:, None]).sum(axis=0)) / below
    sources, active = np.zeros(W.shape), np.zeros(len(h))
    for sweep in range(sweeps):
        stream, counts = child(key, sweep), np.zeros(len(h))
        if sweep >= sweeps - keep:
            sources[at] += x[at, None] * U[at] * h / (U[at] @ h)[:, None] / keep
        for place, f in enumerate(listed):
            edges = np.cumsum(U[f] * (h / h.max()))
            for unit in range(int(x[f])):
                counts[np.searchsorted(edges, uniform(child(stream, place), unit) * edges[-1], side="right")] += 1
        if sweep >= sweeps - keep:
            active += (shape + counts) / below / keep
        key_h = child(stream, len(listed))
        h = np.exp([draw_log_gamma(shape[k] + counts[k], child(key_h, k)) for k in range(len(h))]) / below
    return sources, active


def exact_column(x, seen, W, shape, rate, exposure=1.0):
    """(log p(x | W), E[c | x] (F, K), E[h | x] (K,)) by enumeration of all ways to share the counts out."""
    W = exposure * W
    below = rate + W[seen].sum(axis=0)
    log_total, sources, active = -np.inf, np.zeros(W.shape), np.zeros(len(rate))
    rows = [list(shares_of(int(n), len(rate))) for n in x]
    for C in map(np.array, itertools.product(*rows)):
        L = C.sum(axis=0)
        log_p = np.sum(gammaln(shape + L) - gammaln(shape) + shape * np.log(rate) - (shape + L) * np.log(below))
        log_p += np.sum(C * np.log(W) - gammaln(C + 1))
        new = np.logaddexp(log_total, log_p)
        keep, share = np.exp(log_total - new), np.exp(log_p - new)
        sources, active = keep * sources + share * C, keep * active + share * (shape + L) / below
        log_total = new
    return log_total, sources, active


def shares_of(n, rank):
    """All ways to share n out among so many."""
    if rank == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in shares_of(n - first, rank - 1):
            yield (first, *rest)


def running_means(terms, sizes, average_after):
    """S after each (1 - g) S + g s, and the mean of the S from step ``average_after`` on (counted from 0)."""
    S, all_of_them, mass = 0.0, [], 0.0
    for term, size in zip(terms, sizes, strict=True):
        before = (1 - size) * mass
        S, mass = (before * S + size * term) / (before + size), before + size
        all_of_them.append(S)
    return np.array(all_of_them), np.mean(all_of_them[average_after:], axis=0)


def log_marginal(X, W, shape, rate):
    """log p(x_n | W) of every column, for K = 2: counts are added one at a time, states are totals of component 0."""
    N, most, A = X.shape[1], int(X.sum(axis=0).max()), shape.sum()
    P = W / (W.sum(axis=0) + rate)
    L, m = np.arange(most + 1)[None], np.zeros((N, 1))
    states, logs = np.zeros((N, most + 1)), np.zeros(N)
    states[:, 0] = 1.0
    for f, row in enumerate(X.astype(int)):
        q = P[f] / P[f].sum()
        for i in range(row.max()):
            grows = (row > i)[:, None]
            new = q[1] * (m - L + shape[1]) * states
            new[:, 1:] += (q[0] * (L + shape[0]) * states)[:, :-1]
            states = np.where(grows, new / (m + A), states)
            m = m + grows
        logs += np.log(states.sum(axis=1)) + row * np.log(P[f].sum()) - gammaln(row + 1)
        states /= states.sum(axis=1, keepdims=True)
    n = X.sum(axis=0)
    return logs + gammaln(A + n) - gammaln(A) + np.sum(shape * np.log(rate / (W.sum(axis=0) + rate)))

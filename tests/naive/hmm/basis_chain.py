"""Slow, obvious twins of the kernels of the basis chain: sums over all paths of states, and dense recursions."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats
from scipy.special import logsumexp


def bits(rank):
    """All states as (2^K, K), component 0 first."""
    return np.array([[(s >> k) & 1 for k in range(rank)] for s in range(2**rank)])


def transition(p, q):
    """(2^K, 2^K) P(s -> s'), cell by cell."""
    states = bits(len(p))
    out = np.ones((len(states), len(states)))
    for (i, old), (j, new) in itertools.product(enumerate(states), repeat=2):
        for k in range(len(p)):
            stay = q[k] if old[k] else p[k]
            out[i, j] *= stay if new[k] == old[k] else 1 - stay
    return out


def initial_law(initial):
    return np.array([np.prod(np.where(state, initial, 1 - initial)) for state in bits(len(initial))])


def log_emissions(X, weight, background, W):
    """(T, 2^K) Poisson log-probabilities of every sample in every state; cells of weight 0 are missing."""
    rates = W @ bits(W.shape[1]).T
    out = np.zeros((X.shape[1], rates.shape[1]))
    for t, f in itertools.product(range(X.shape[1]), range(X.shape[0])):
        if weight[f, t] > 0:
            out[t] += stats.poisson.logpmf(X[f, t], weight[f, t] * rates[f] + background[f, t])
    return out


def all_paths(X, weight, background, W, p, q, initial):
    """(paths (n, T), their log p(path, X)), one by one."""
    emissions = log_emissions(X, weight, background, W)
    log_a, log_first = np.log(transition(p, q)), np.log(initial_law(initial))
    paths = np.array(list(itertools.product(range(2 ** len(p)), repeat=X.shape[1])))
    scores = log_first[paths[:, 0]] + emissions[np.arange(X.shape[1]), paths].sum(axis=1)
    return paths, scores + log_a[paths[:, :-1], paths[:, 1:]].sum(axis=1)


def smooth(X, weight, background, W, p, q, initial):
    """(log p(X), marginals (T, K), pairs (K, 4), expected sources (F, K)) by summing over all paths."""
    paths, scores = all_paths(X, weight, background, W, p, q, initial)
    total = logsumexp(scores)
    chance, on = np.exp(scores - total), bits(len(p))[paths]
    steps = 2 * on[:, :-1] + on[:, 1:]
    pairs = np.array([[(chance * (steps == kind).sum(axis=1)[:, k]).sum() for kind in range(4)] for k in range(len(p))])
    sources = np.zeros(W.shape)
    for path, probability in zip(on, chance, strict=True):
        mean = weight * (W @ path.T) + background
        ratio = np.where(weight > 0, weight * X / np.where(mean > 0, mean, 1.0), 0.0)
        sources += probability * W * (ratio @ path)
    return total, np.einsum("p,ptk->tk", chance, on), pairs, sources


def filter_dense(emissions, A, first):
    """log p(X) by the dense recursion in logarithms."""
    law = np.log(first) + emissions[0]
    for row in emissions[1:]:
        law = row + logsumexp(law[:, None] + np.log(A), axis=0)
    return logsumexp(law)


def learn_online(X, weight, background, W, p, q, initial, exponent, burn_in=np.inf, updates=(True, "tied", "tied")):
    """Equations 15 and 16 state by state: (W, p, q, log p, (S1 (F, K), S2 (F, K), S3 (K, 4)))."""
    states, log_p, law = bits(len(p)), 0.0, None
    means = [np.zeros((len(states), *shape)) for shape in (W.shape, W.shape, (len(p), 4))]
    for t in range(X.shape[1]):
        step, A = (t + 1.0) ** -exponent, transition(p, q)
        if t == 0:
            predicted = initial_law(initial)
        else:
            joint = law[:, None] * A
            predicted = joint.sum(axis=0)
            backward = joint / predicted
            kinds = 2 * states[:, None] + states[None]
            moves = np.stack([kinds == kind for kind in range(4)], axis=-1).astype(float)
            means = [np.einsum("ij,i...->j...", backward, (1 - step) * mean) for mean in means]
            means[2] += step * np.einsum("ij,ijkm->jkm", backward, moves)
        emissions = log_emissions(X[:, [t]], weight[:, [t]], background[:, [t]], W)[0]
        log_p += logsumexp(emissions + np.log(predicted))
        law = np.exp(emissions + np.log(predicted) - logsumexp(emissions + np.log(predicted)))
        for s, state in enumerate(states):
            mean = weight[:, t] * (W @ state) + background[:, t]
            means[0][s] += step * weight[:, [t]] * state
            means[1][s] += step * (weight[:, t] * X[:, t] / np.where(mean > 0, mean, 1.0))[:, None] * W * state
        sums = [np.einsum("s,s...->...", law, mean) for mean in means]
        if t + 1 >= burn_in:
            W = sums[1] / sums[0] if updates[0] else W
            p = share_of_stays(sums[2][:, 0], sums[2][:, 1], p, updates[1])
            q = share_of_stays(sums[2][:, 3], sums[2][:, 2], q, updates[2])
    return W, p, q, log_p, tuple(sums)


def share_of_stays(stays, leaves, old, update):
    if update == "tied":
        return np.full(len(old), stays.sum() / (stays.sum() + leaves.sum()))
    return stays / (stays + leaves) if update == "separate" else old

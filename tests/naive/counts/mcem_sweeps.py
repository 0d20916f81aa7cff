"""The formulas of Monte-Carlo EM once more, slowly: what the kernels and updates are compared with."""

import itertools

import numpy as np
from scipy.special import gammaln

from nmf_zoo.kernels.random.draws import draw_gamma
from nmf_zoo.kernels.random.keyed_rng import child, uniform

SOURCES, ACTIVATIONS = 0, 1


def run_chain(x, offset, W, h, shape, rate, sweeps, burn_in, key, n):
    """(sum of C, sum of E[C | h], h's before each kept sweep, shapes of h after C), for counts <= 16 (sources - 1)."""
    drawn, expected, before, shapes = np.zeros_like(W), np.zeros_like(W), [], []
    for sweep in range(sweeps):
        C = np.zeros_like(W)
        for f in np.flatnonzero(x):
            weights = np.append(W[f] * h, offset[f])
            ends = np.cumsum(weights)
            for unit in range(int(x[f])):
                u = uniform(child(key, n, sweep, SOURCES, f), unit) * ends[-1]
                k = int(np.sum(ends[:-1] <= u))
                if k < len(h):
                    C[f, k] += 1
        if sweep >= burn_in:
            drawn += C
            means = (W @ h + offset)[:, None]
            expected += x[:, None] * W * h / np.where(means > 0, means, 1.0)
            before.append(h)
            shapes.append(shape + C.sum(axis=0))
        after, row = shape + C.sum(axis=0), child(key, n, sweep, ACTIVATIONS, n)
        h = np.array([draw_gamma(after[k], child(row, k)) / rate[k] for k in range(len(h))])
    return drawn, expected, np.array(before), np.array(shapes), h


def posterior_means(x, W, shape, rate):
    """(E[c_fk], E[h_k], log p(x | W)) of one sample, by the sum over all C (Filstroff 2018, eq. 28)."""
    K, norm = W.shape[1], W.sum(axis=0)
    splits = [[c for c in itertools.product(range(n + 1), repeat=K) if sum(c) == n] for n in x]
    total, of_C, of_h = 0.0, np.zeros(W.shape), np.zeros(K)
    for cells in itertools.product(*splits):
        C = np.array(cells)
        L = C.sum(axis=0)
        log_p = np.sum(gammaln(shape + L) - gammaln(shape) + shape * np.log(rate / (rate + norm)))
        log_p += np.sum(C * np.log(W / (rate + norm)) - gammaln(C + 1))
        p = np.exp(log_p)
        total += p
        of_C += p * C
        of_h += p * (shape + L) / (rate + norm)
    return of_C / total, of_h / total, np.log(total)

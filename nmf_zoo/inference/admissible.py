"""log p(x_n | W) as the sum over all admissible components (Filstroff et al. 2018, eq. 28), one by one.

The slow and obvious way, for tiny problems: what the dynamic programme is checked against. prod_f binomial(x_f + K - 1,
K - 1) terms for a sample (eq. 25 ff.).
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
from scipy.special import gammaln, logsumexp, xlogy

from nmf_zoo.inference.marginal import Samples, penalties, rates
from nmf_zoo.structure import Array


def n_terms(samples: Samples, rank: int) -> list[int]:
    """The number of admissible components of each sample."""
    sources, indptr = rank + (samples.columns.offset.size > 0), samples.columns.indptr
    counts = [samples.columns.counts[first:last].tolist() for first, last in pairwise(indptr)]
    return [math.prod(math.comb(x + sources - 1, sources - 1) for x in sample) for sample in counts]


def enumerated_log_likelihoods(samples: Samples, W: Array, shape: Array, rate: Array) -> Array:
    """log p(x_n | W) of every sample, (N,); ``W`` (F, K), ``shape`` and ``rate`` (N, K)."""
    total, columns = rates(samples, W, rate), samples.columns
    out = penalties(samples, W, shape, rate) + samples.constant
    for n in range(samples.n_samples):
        cells = slice(columns.indptr[n], columns.indptr[n + 1])
        p = W[columns.features[cells]] / total[n]
        if columns.offset.size > 0:
            p = np.column_stack([p, columns.offset[cells]])
        out[n] += _log_sum(columns.counts[cells].tolist(), p, shape[n])
    return out


def _log_sum(counts: list[int], p: Array, shape: Array) -> float:
    """log sum_C prod_f (x_f! / prod_k c_fk!) p_fk^c_fk prod_k Gamma(alpha_k + L_k) / Gamma(alpha_k)."""
    totals, logs = np.zeros((1, p.shape[1])), np.zeros(1)
    for x, row in zip(counts, p, strict=True):
        ways = _compositions(x, p.shape[1])
        of_cell = gammaln(x + 1) + np.sum(xlogy(ways, row) - gammaln(ways + 1), axis=1)
        totals = (totals[:, None] + ways).reshape(-1, p.shape[1])
        logs = (logs[:, None] + of_cell).ravel()
    of_totals = totals[:, : len(shape)]
    return float(logsumexp(logs + np.sum(gammaln(shape + of_totals) - gammaln(shape), axis=1)))


@cache
def _compositions(x: int, sources: int) -> Array:
    """(ways, sources) all ways to write x as a sum of ``sources`` numbers."""
    if sources == 1:
        return np.array([[x]])
    parts = [np.insert(_compositions(x - first, sources - 1), 0, first, axis=1) for first in range(x + 1)]
    return np.concatenate(parts)

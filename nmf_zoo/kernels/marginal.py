"""The exact marginal likelihood of single samples, with H integrated out (Filstroff et al. 2018, eq. 28).

With p_fk = w_fk / (||w_k|| + beta_k), s_f = sum_k p_fk and q_fk = p_fk / s_f, sample by sample::

    log p(x | W) = sum_k alpha_k log(beta_k / (||w_k|| + beta_k)) + sum_f (x_f log s_f - log x_f!)
                   + log sum_C prod_f Multinomial(c_f; x_f, q_f) prod_k Gamma(alpha_k + L_k) / Gamma(alpha_k)

A count that only one component can have made (q_fk = 1) is no choice: it adds to that component's alpha, and a
component that none of the other counts can come from drops out. What is left is :mod:`nmf_zoo.kernels.totals`' work.
A background b_f (divided by the exposure, as everything here) is one more component, p = b and r(l) = 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.streams import kernel
from nmf_zoo.kernels.totals import golden_order, lay_out, run_forward


class Columns(NamedTuple):
    """The non-zero observed cells, sample by sample.

    Attributes
    ----------
    indptr : (N + 1,) int64
    features : (non-zeros,) int32
    counts : (non-zeros,) int64
    offset : (non-zeros,) background / exposure, or (0,) when there is no background
    """

    indptr: np.ndarray
    features: np.ndarray
    counts: np.ndarray
    offset: np.ndarray


class Open(NamedTuple):
    """The counts of a sample that several components can have made.

    Attributes
    ----------
    cells : (open,) positions among the sample's cells
    components : (K',) the components they can come from
    counts : (open,)
    q : (open, K') shares, each row of sum 1
    shape, slope : (K',) r_k(l) = shape_k + slope_k l, the other counts of each component added to its shape
    known : (K,) those other counts
    log_known : the log of their r_k(0) r_k(1) ...
    """

    cells: np.ndarray
    components: np.ndarray
    counts: np.ndarray
    q: np.ndarray
    shape: np.ndarray
    slope: np.ndarray
    known: np.ndarray
    log_known: float


@kernel
def log_sums(columns, W, rate, shape, first, last, out):
    """out[n] = sum_f x_f log s_f + log sum_C ..., as above, for the samples first, ..., last - 1.

    ``W`` (F, K); ``rate`` (N, K) = ||w_k|| + beta_k; ``shape`` (N, K) = alpha.
    """
    for n in range(first, last):
        q, log_total = shares(columns, W, rate, n)
        out[n] = log_total
        if log_total > -np.inf:
            problem = open_counts(columns, n, q, shape[n])
            out[n] += problem.log_known + log_open(problem)


@kernel
def log_open(problem):
    """log of the sum over the sources of the open counts."""
    n = problem.counts.sum()
    if n == 0:
        return 0.0
    rows = lay_out(n, problem.components.size)
    state = np.empty(rows.start[rows.start.size - 1])
    return run_forward(state, rows, golden_order(problem.counts, n), problem.q, problem.shape, problem.slope)


@kernel
def sizes(columns, W, rate, first, last, out):
    """out[n] = (counts, components) of the open problem of each sample; (0, 0) where the likelihood is 0."""
    for n in range(first, last):
        q, log_total = shares(columns, W, rate, n)
        problem = open_counts(columns, n, q, np.ones(W.shape[1]))
        out[n, 0] = problem.counts.sum() if log_total > -np.inf else 0
        out[n, 1] = problem.components.size if log_total > -np.inf else 0


@kernel
def shares(columns, W, rate, n):
    """q (cells, K), the background after the components if there is one, and sum_f x_f log s_f."""
    begin, end, rank = columns.indptr[n], columns.indptr[n + 1], W.shape[1]
    has_offset = columns.offset.size > 0
    q, log_total = np.empty((end - begin, rank + has_offset)), 0.0
    for i in range(end - begin):
        f = columns.features[begin + i]
        for k in range(rank):
            q[i, k] = W[f, k] / rate[n, k]
        if has_offset:
            q[i, rank] = columns.offset[begin + i]
        total = q[i].sum()
        log_total += columns.counts[begin + i] * math.log(total) if total > 0.0 else -np.inf
        for k in range(q.shape[1]):
            q[i, k] /= total
    return q, log_total


@kernel
def open_counts(columns, n, q, shape):
    """The :class:`Open` counts of a sample with shares q."""
    begin, rank = columns.indptr[n], q.shape[1]
    known, is_open, is_used = np.zeros(rank, np.int64), np.zeros(q.shape[0], np.bool_), np.zeros(rank, np.bool_)
    for i in range(q.shape[0]):
        sources = 0
        for k in range(rank):
            sources += q[i, k] > 0.0
        is_open[i] = sources > 1
        for k in range(rank):
            if q[i, k] > 0.0 and is_open[i]:
                is_used[k] = True
            elif q[i, k] > 0.0:
                known[k] += columns.counts[begin + i]
    cells, components = np.flatnonzero(is_open), np.flatnonzero(is_used)
    own, slope, log_known = np.ones(rank), np.zeros(rank), 0.0
    for k in range(shape.size):
        own[k], slope[k] = shape[k] + known[k], 1.0
        log_known += log_rising(shape[k], known[k])
    narrow = np.empty((cells.size, components.size))
    for i in range(cells.size):
        for k in range(components.size):
            narrow[i, k] = q[cells[i], components[k]]
    counts = columns.counts[begin + cells]
    return Open(cells, components, counts, narrow, own[components], slope[components], known, log_known)


@kernel
def log_rising(a, n):
    """log of a (a + 1) ... (a + n - 1)."""
    if n > 64:
        return math.lgamma(a + n) - math.lgamma(a)
    total = 0.0
    for i in range(n):
        total += math.log(a + i)
    return total

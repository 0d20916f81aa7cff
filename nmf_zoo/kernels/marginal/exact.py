"""The exact marginal likelihood of single samples, with H integrated out (Filstroff et al. 2018, eq. 28).

With p_fk = w_fk / (||w_k|| + beta_k), s_f = sum_k p_fk and q_fk = p_fk / s_f, sample by sample::

    log p(x | W) = sum_k alpha_k log(beta_k / (||w_k|| + beta_k)) + sum_f (x_f log s_f - log x_f!)
                   + log sum_C prod_f Multinomial(c_f; x_f, q_f) prod_k Gamma(alpha_k + L_k) / Gamma(alpha_k)

A count that only one component can have made (q_fk = 1) is no choice: it adds to that component's alpha, and a
component that none of the other counts can come from drops out. What is left is
:mod:`nmf_zoo.kernels.marginal.gap_likelihood`'s work. A background b_f (divided by the exposure, as everything here) is
one more component, p = b and r(l) = 1.

**Expectations.** E[c_fk | x] and E[h_k | x] come from the same programme, run forward and backward. With a_m the state
of the first m counts (:mod:`nmf_zoo.kernels.marginal.gap_likelihood`) and b_m(L) what the others add up to when the
first m have the totals L,

    b_m(L) = sum_k q_k r_k(L_k) b_(m+1)(L + e_k),          b_n = 1,

the next count comes from component k with probability proportional to sum_L a_m(L) q_k r_k(L_k) b_(m+1)(L + e_k). The
counts of a cell are alike, so that one of each is enough: the last in the order, before which the forward run is kept.
Then E[h_k | x] = (alpha_k + sum_f E[c_fk | x]) / (||w_k|| + beta_k).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.marginal.gap_likelihood import (
    FULL,
    RESCALE,
    add_count,
    golden_order,
    lay_out,
    run_forward,
    sum_state,
)


class SampleCells(NamedTuple):
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


# -- expectations ----------------------------------------------------------------------------------------------------


@kernel
def expect(data, first, last, sources, activations):
    """Overwrite sources (non-zeros, K or K + 1) with E[c | x] and activations (N, K) with E[h | x].

    ``data`` = (columns, W, rate, shape) as in :func:`nmf_zoo.kernels.marginal.exact.log_sums`; for the samples first,
    ..., last - 1. Sources of the background come last. NaN where the likelihood is 0.
    """
    columns, W, rate, shape = data
    for n in range(first, last):
        q, log_total = shares(columns, W, rate, n)
        cells = sources[columns.indptr[n] : columns.indptr[n + 1]]
        cells[:], activations[n] = np.nan, np.nan
        if log_total == -np.inf:
            continue
        for i in range(q.shape[0]):
            cells[i] = columns.counts[columns.indptr[n] + i] * q[i]  # right where only one component is possible
        problem = open_counts(columns, n, q, shape[n])
        if problem.counts.size > 0:
            expected = expect_open(problem)
            for i in range(problem.cells.size):
                for k in range(problem.components.size):
                    cells[problem.cells[i], problem.components[k]] = problem.counts[i] * expected[i, k]
        for k in range(W.shape[1]):
            activations[n, k] = (shape[n, k] + cells[:, k].sum()) / rate[n, k]


@kernel
def expect_open(problem):
    """(open, K') the probabilities of each component to have made one count of each cell."""
    n, q = problem.counts.sum(), problem.q
    rows, order = lay_out(n, problem.components.size), golden_order(problem.counts, n)
    final = np.zeros(q.shape[0], np.int64)
    for m in range(n):
        final[order[m]] = m
    kept = run_and_keep(rows, order, final, problem)
    later, before = np.ones(kept.shape[1]), np.empty(kept.shape[1])
    out, shares_of_count = np.empty(q.shape), np.empty(q.shape[1])
    for m in range(n - 1, np.min(final) - 1, -1):
        cell = order[m]
        shares_of_count[:] = q[cell] / (problem.shape.sum() + m)
        if final[cell] == m:
            add_pairs(kept[cell], later, rows, m, shares_of_count, problem, out[cell])
            out[cell] /= out[cell].sum()
        take_back(later, rows, m, shares_of_count, problem, before)
        later, before = before, later
        if m % RESCALE == 0:
            later /= np.max(later)
    return out


@kernel
def run_and_keep(rows, order, final, problem):
    """(cells, size) the forward state just before the last count of each cell, each to a scale of its own."""
    size, n, total = rows.start[rows.start.size - 1], order.size, problem.shape.sum()
    kept, state, scale = np.empty((final.size, size)), np.zeros(size), 1.0
    state[rows.start[0] + n] = FULL
    for m in range(n):
        if final[order[m]] == m:
            kept[order[m]] = state
        add_count(state, rows, m, problem.q[order[m]] * (scale / (total + m)), problem.shape, problem.slope)
        scale = FULL / sum_state(state, rows, n, m + 1) if m % RESCALE == RESCALE - 1 else 1.0
    return kept


@kernel
def take_back(later, rows, m, q, problem, out):
    """Overwrite out, the sums b_m, given those of m + 1 counts: every row gives to itself and to the rows below."""
    n, rank = rows.active.size - 1, q.size
    inner, final = rank - 2, rank - 1
    shape, slope = problem.shape, problem.slope
    out[:] = 0.0
    for row in range(rows.active[m + 1]):
        begin, used = rows.start[row], rows.used[row]
        top = begin + n - used  # where the inner total i is 0
        for i in range(m - used + 1):
            gain = q[final] * (shape[final] + slope[final] * (m - used - i)) * later[top - i]
            out[top - i] += gain + q[inner] * (shape[inner] + slope[inner] * i) * later[top - i - 1]
        for d in range(inner):
            below = rows.below[row, d]
            if below >= 0:
                weight = q[d] * (shape[d] + slope[d] * (rows.outer[row, d] - 1))
                shift = rows.start[below] + n - used + 1
                for i in range(m + 1 - used + 1):
                    out[shift - i] += weight * later[top - i]


@kernel
def add_pairs(state, later, rows, m, q, problem, out):
    """Overwrite out (K,) with sum_L a_m(L) q_k r_k(L_k) b_(m+1)(L + e_k)."""
    n, rank = rows.active.size - 1, q.size
    inner, final = rank - 2, rank - 1
    shape, slope = problem.shape, problem.slope
    out[:] = 0.0
    for row in range(rows.active[m + 1]):
        used = rows.used[row]
        top = rows.start[row] + n - used
        for i in range(m - used + 1):
            out[final] += q[final] * (shape[final] + slope[final] * (m - used - i)) * state[top - i] * later[top - i]
            out[inner] += q[inner] * (shape[inner] + slope[inner] * i) * state[top - i] * later[top - i - 1]
        for d in range(inner):
            below = rows.below[row, d]
            if below >= 0:
                weight = q[d] * (shape[d] + slope[d] * (rows.outer[row, d] - 1))
                shift = rows.start[below] + n - used + 1
                for i in range(m + 1 - used + 1):
                    out[d] += weight * state[shift - i] * later[top - i]

"""Exact E[c_fk | x] and E[h_k | x] of single samples: the programme of totals, run forward and backward.

With a_m the state of the first m counts (:mod:`nmf_zoo.kernels.totals`) and b_m(L) what the others add up to when the
first m have the totals L,

    b_m(L) = sum_k q_k r_k(L_k) b_(m+1)(L + e_k),          b_n = 1,

the next count comes from component k with probability proportional to sum_L a_m(L) q_k r_k(L_k) b_(m+1)(L + e_k). The
counts of a cell are alike, so that one of each is enough: the last in the order, before which the forward run is kept.
Then E[h_k | x] = (alpha_k + sum_f E[c_fk | x]) / (||w_k|| + beta_k).
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.marginal import open_counts, shares
from nmf_zoo.kernels.streams import kernel
from nmf_zoo.kernels.totals import FULL, RESCALE, add_count, golden_order, lay_out, sum_state


@kernel
def expect(data, first, last, sources, activations):
    """Overwrite sources (non-zeros, K or K + 1) with E[c | x] and activations (N, K) with E[h | x].

    ``data`` = (columns, W, rate, shape) as in :func:`nmf_zoo.kernels.marginal.log_sums`; for the samples first, ...,
    last - 1. Sources of the background come last. NaN where the likelihood is 0.
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

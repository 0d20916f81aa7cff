"""The 2^K states of K independent binary chains: their rates, how likely they make a sample, and how they move on.

State s switches component k on where bit k of s is set, so that the rate of feature f is lambda_f(s) = sum_k w_fk s_k,
plus a background that is the same at all times: two states that differ in one bit share all other terms, and each
state costs one addition (:func:`set_rates`).

The transition is a Kronecker product of K matrices [[p, 1 - p], [1 - q, q]], applied one after the other in K 2^K work.
Each pass takes the component at the *top* bit and leaves it at the *bottom*: it reads two contiguous halves, writes
pairs, looks the same for every component, and after K passes the bits are back where they were. On the way
``stages[j]`` has seen the transitions of the j top components, which is what the pairs of one chain's states need.

Likelihoods are held as e^(log-likelihood - peak), the peak on the side, so that nothing over- or underflows. States
more than e^700 below the peak count as impossible; with p and q away from 0 and 1 they are out of reach anyway.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import comparing, in_lanes, kernel, spliced, summing
from nmf_zoo.kernels.numerics.special import LARGEST_POWER, fast_exp, fast_log
from nmf_zoo.kernels.simd.unowned_views import borrowed

MOST_COMPONENTS = 20  # 2^20 states: a row of them is 8 MB


class Counts(NamedTuple):
    """The non-zero observed cells, sample by sample, and what the observed cells weigh.

    Attributes
    ----------
    indptr : (T + 1,) int64; indices : (non-zeros,) int32 features; values : (non-zeros,) float64
    offset : (non-zeros,) background / exposure beside that in the tables, or (0,) without one
    weight_sums : (T, K) or (1, K) sum_f weight_ft w_fk, weight = mask * exposure: 0 at a time without data
    """

    indptr: Any
    indices: Any
    values: Any
    offset: Any
    weight_sums: Any


class RateTables(NamedTuple):
    """rates : (F, 2^K) lambda_f(s); logs : (F, 2^K) their logarithms, -inf at 0."""

    rates: Any
    logs: Any


class BinaryChain(NamedTuple):
    """The law of the binary chains, each (K,): p = P(0 -> 0), q = P(1 -> 1), initial = P(h_1 = 1), inside (0, 1)."""

    p: Any
    q: Any
    initial: Any


@spliced
def borrowed_counts(counts):
    """The same counts for a loop over the samples, see :mod:`~nmf_zoo.kernels.simd.unowned_views`."""
    indptr, indices, values = borrowed(counts.indptr), borrowed(counts.indices), borrowed(counts.values)
    return Counts(indptr, indices, values, borrowed(counts.offset), borrowed(counts.weight_sums))


@in_lanes
def set_rates(tables, W, base):
    """Overwrite the tables with the rates of W (F, K), on top of ``base`` (F,), and their logarithms."""
    rates, logs = tables
    for f in range(W.shape[0]):
        rates[f, 0] = base[f]
        for k in range(W.shape[1]):
            half = 1 << k
            for s in range(half):
                rates[f, half + s] = rates[f, s] + W[f, k]
        for s in range(rates.shape[1]):
            logs[f, s] = log_or_never(rates[f, s])


@spliced
def log_or_never(rate):
    """log(rate), -inf at 0 (and below the smallest normal number)."""
    return fast_log(rate) if rate > 2.3e-308 else -math.inf


@kernel
def log_emission(out, counts, t, tables):
    """Overwrite out (2^K,) with log p(x_t | s), up to a term that is the same for all states."""
    set_rate_terms(out, counts.weight_sums[t if counts.weight_sums.shape[0] > 1 else 0])
    add_counts(out, counts, t, tables)


@in_lanes
def set_rate_terms(out, weight_sums):
    """Overwrite out (2^K,) with what the rates alone take from log p(x_t | s): -weight_sums . s; weight_sums (K,)."""
    out[0] = 0.0
    for k in range(weight_sums.size):
        half = 1 << k
        for s in range(half):
            out[half + s] = out[s] - weight_sums[k]


@spliced  # a call would pass 50 numbers
def add_counts(out, counts, t, tables):
    """out += sum_f x_ft log(rate of f in state s)"""
    first, last = counts.indptr[t], counts.indptr[t + 1]
    if counts.offset.size > 0:
        add_logs_with_offset(out, counts, first, last, tables.rates)
    else:
        add_logs(out, counts.indices, counts.values, first, last, tables.logs)


@in_lanes
def add_logs_with_offset(out, counts, first, last, rates):
    """out += sum_c x_c log(rate + offset_c)"""
    for c in range(first, last):
        f, x = counts.indices[c], counts.values[c]
        for s in range(out.size):
            out[s] += x * log_or_never(rates[f, s] + counts.offset[c])


@in_lanes
def add_logs(out, indices, values, first, last, logs):
    """out += sum_c x_c logs[f_c], four cells at a time: with few states a pass over them costs more than its sums."""
    c = first
    while (last - c) % 4 != 0:
        f, x = indices[c], values[c]
        for s in range(out.size):
            out[s] += x * logs[f, s]
        c += 1
    while c < last:
        (f0, f1), (f2, f3) = (indices[c], indices[c + 1]), (indices[c + 2], indices[c + 3])
        (x0, x1), (x2, x3) = (values[c], values[c + 1]), (values[c + 2], values[c + 3])
        for s in range(out.size):
            out[s] += (x0 * logs[f0, s] + x1 * logs[f1, s]) + (x2 * logs[f2, s] + x3 * logs[f3, s])
        c += 4


@comparing
def largest(row):
    """The largest entry."""
    top = row[0]
    for s in range(row.size):
        top = max(top, row[s])
    return top


@in_lanes
def to_likelihood(row, peak):
    """Overwrite log-likelihoods with e^(. - peak)."""
    for s in range(row.size):
        below = row[s] - peak
        row[s] = fast_exp(below) if below > -LARGEST_POWER else 0.0


@kernel
def emission(out, counts, t, tables):
    """Overwrite out with p(x_t | s) e^-peak and return the peak; -inf where no state can make x_t."""
    set_rate_terms(out, counts.weight_sums[t if counts.weight_sums.shape[0] > 1 else 0])
    return weigh_counts(out, counts, t, tables)


@spliced  # a call would pass 50 numbers
def weigh_counts(out, counts, t, tables):
    """:func:`emission`, where out holds what :func:`set_rate_terms` writes already."""
    add_counts(out, counts, t, tables)
    peak = largest(out)
    if peak > -math.inf:
        to_likelihood(out, peak)
    return peak


@kernel
def set_initial(out, chain):
    """Overwrite out (2^K,) with the law of the first state."""
    out[0] = 1.0
    for k in range(chain.initial.size):
        half, on = 1 << k, chain.initial[k]
        for s in range(half):
            out[half + s] = out[s] * on
            out[s] *= 1.0 - on


@kernel
def set_leaving(out, chain, target):
    """Overwrite out (2^K,) with P(s -> target) for every s."""
    out[0] = 1.0
    for k in range(chain.p.size):
        half, is_on = 1 << k, (target >> k) & 1
        off = 1.0 - chain.p[k] if is_on else chain.p[k]
        on = chain.q[k] if is_on else 1.0 - chain.q[k]
        for s in range(half):
            out[half + s] = out[s] * on
            out[s] *= off


@in_lanes
def move_on(stages, p, q):
    """From a law over the states in ``stages[0]`` to that of the next step in ``stages[K]``; (K + 1, 2^K)."""
    rank, half = p.size, stages.shape[1] // 2
    for j in range(rank):
        here, after = stages[j], stages[j + 1]
        off, on = p[rank - 1 - j], q[rank - 1 - j]
        up, down = 1.0 - off, 1.0 - on
        for s in range(half):
            a, b = here[s], here[s + half]
            after[2 * s] = off * a + down * b
            after[2 * s + 1] = up * a + on * b


@in_lanes
def subtract(row, number):
    """row -= number"""
    for s in range(row.size):
        row[s] -= number


@summing
def dot(a, b):
    """sum_s a_s b_s"""
    total = 0.0
    for s in range(a.size):
        total += a[s] * b[s]
    return total


@in_lanes
def reweigh(out, row, weights, scale):
    """out = row * weights * scale"""
    for s in range(out.size):
        out[s] = row[s] * weights[s] * scale

"""Exact inference for K binary chains by recursions over their 2^K states (Yildirim, Cemgil, Singh 2012, section 4.1).

::

    filter      alpha_t(s) = p(s | x_1:t),      alpha_t ~ emission_t * A^T alpha_{t-1}
    smoother    beta_t(s) = p(x_{t+1:T} | s) / p(x_{t+1:T} | x_1:t), so that p(s_t | x_1:T) = alpha_t beta_t
    paths       s_T ~ alpha_T,  s_t ~ alpha_t(s) A(s, s_{t+1})          Viterbi's alike, with max in the place of sums

Times are handled in blocks. A first pass keeps the filter at the end of every block; then the blocks are taken from the
last to the first: each is filtered again, from the end of the one before, with its rows kept, and gone through
backwards. With blocks of about sqrt(T) times the memory is 2 sqrt(T) rows of 2^K, for one filter more.
:mod:`nmf_zoo.inference.hmm.recursions` drives it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import comparing, in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.basis_states import (
    RateTables,
    borrowed_counts,
    dot,
    largest,
    log_emission,
    log_or_never,
    move_on,
    reweigh,
    set_initial,
    set_leaving,
    set_rate_terms,
    subtract,
    weigh_counts,
)
from nmf_zoo.kernels.numerics.arrays import copy_row, place_of_largest
from nmf_zoo.kernels.random.keyed_rng import fold, uniform
from nmf_zoo.kernels.simd.unowned_views import borrowed

WITHOUT_DATA = -1  # no time was impossible


class BlockRows(NamedTuple):
    """The rows of one block of at most B times.

    Attributes
    ----------
    filtered : (B + 1, 2^K); row 0 is the filter before the block, row i + 1 that at its i-th time; (1, 2^K): none kept
    emissions : (B, 2^K) e^(log p(x_t | s) - peak_t), or (1, 2^K)
    stages : (K + 1, 2^K) scratch for one transition
    """

    filtered: Any
    emissions: Any
    stages: Any


class SmootherSums(NamedTuple):
    """What the smoother gathers.

    Attributes
    ----------
    marginals : (T, K) P(h_kt = 1 | X), overwritten
    pairs : (K, 4) expected transitions 0->0, 0->1, 1->0, 1->1 over times 2..T, added to
    sources : (F, 2^K) sum_t P(s_t = s | X) x_ft, over lambda_f(s) + offset where there are offsets, added to
    """

    marginals: Any
    pairs: Any
    sources: Any


@kernel
def filter_block(rows, counts, tables, chain, first, last):
    """Filter the times from ``first`` to ``last`` from ``rows.filtered[0]``, the filter at the time before.

    Returns (log p(x_first:last | before) up to the terms without states, the filter's row at last - 1, WITHOUT_DATA);
    where the data are impossible: -inf, and the time at which they are.
    """
    filtered, emissions, stages = borrowed(rows.filtered), borrowed(rows.emissions), borrowed(rows.stages)
    counts, tables = borrowed_counts(counts), RateTables(borrowed(tables.rates), borrowed(tables.logs))
    p, q, rate_terms = borrowed(chain.p), borrowed(chain.q), np.empty(stages.shape[1])
    keeps, shares_sums, law, total = filtered.shape[0] > 1, counts.weight_sums.shape[0] == 1, stages[p.size], 0.0
    for t in range(first, last):
        old, new, at = (t - first, t - first + 1, t - first) if keeps else (0, 0, 0)
        if t == 0:
            set_initial(law, chain)
        else:
            copy_row(stages[0], filtered[old])
            move_on(stages, p, q)
        if t == first or not shares_sums:
            set_rate_terms(rate_terms, counts.weight_sums[0 if shares_sums else t])
        emission = emissions[at]
        copy_row(emission, rate_terms)
        peak = weigh_counts(emission, counts, t, tables)
        mass = dot(law, emission)
        log_mass = log_or_never(mass)
        if not (peak > -math.inf and log_mass > -math.inf):
            return -math.inf, t
        reweigh(filtered[new], law, emission, 1.0 / mass)
        total += peak + log_mass
    return total, WITHOUT_DATA


@kernel
def smooth_block(rows, beta, counts, tables, chain, sums, first, last):
    """Go through a filtered block backwards, from ``beta`` (2^K,) at its last time to that at the time before it."""
    filtered, stages, workspace = rows.filtered, rows.stages, rows.emissions
    for t in range(last - 1, first - 1, -1):
        here = t - first + 1
        gather_sources(sums.sources, filtered[here], beta, counts, t, tables)
        if t == 0:
            reweigh(beta, beta, filtered[here], 1.0)
            set_marginals(sums.marginals[0], beta)
        else:
            copy_row(stages[0], filtered[here - 1])
            move_on(stages, chain.p, chain.q)
            message = workspace[here - 1]
            scale = 1.0 / dot3(stages[chain.p.size], message, beta)
            reweigh(message, message, beta, scale)
            move_back(beta, message, stages, chain, sums.pairs, sums.marginals[t])


@summing
def dot3(a, b, c):
    """sum_s a_s b_s c_s"""
    total = 0.0
    for s in range(a.size):
        total += a[s] * b[s] * c[s]
    return total


@kernel
def gather_sources(sources, filtered, beta, counts, t, tables):
    """Add what the counts of time t say about the rates."""
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        f, x = counts.indices[c], counts.values[c]
        if counts.offset.size > 0:
            add_shares(sources[f], filtered, beta, x, tables.rates[f], counts.offset[c])
        else:
            add_weights(sources[f], filtered, beta, x)


@in_lanes
def add_weights(out, filtered, beta, x):
    """out += x p(s)"""
    for s in range(out.size):
        out[s] += x * (filtered[s] * beta[s])


@in_lanes
def add_shares(out, filtered, beta, x, rates, offset):
    """out += x p(s) / mean(s)"""
    for s in range(out.size):
        mean, weight = rates[s] + offset, filtered[s] * beta[s]
        out[s] += x * weight / (mean if mean > 0.0 else 1.0)


@kernel
def set_marginals(out, law):
    """Overwrite out (K,) with P(h_k = 1) under a law over the states."""
    for k in range(out.size):
        total = 0.0
        for s in range(law.size):
            total += law[s] if (s >> k) & 1 else 0.0
        out[k] = total


@kernel
def move_back(beta, message, stages, chain, pairs, marginals):
    """Overwrite beta with A message, message being emission * beta; add the expected transitions to ``pairs``.

    ``stages`` are those of the filter's way forward. Where j components have moved on and the others have not, one more
    splits the joint law of the two times by the old and the new value of that component: message and stage meet there.
    """
    rank, half, source, target = chain.p.size, beta.size // 2, message, beta
    for k in range(rank):
        stage = stages[rank - 1 - k]
        halves = target[:half], target[half:], stage[:half], stage[half:]  # rows of their own go to SIMD lanes
        stay_off, up, down, stay_on = smooth_component(halves, source, chain.p[k], chain.q[k])
        pairs[k, 0] += stay_off
        pairs[k, 1] += up
        pairs[k, 2] += down
        pairs[k, 3] += stay_on
        marginals[k] = up + stay_on
        source, target = target, source
    if rank % 2 == 0:
        copy_row(beta, message)


@summing
def smooth_component(halves, source, p, q):
    """Take one component's transition back; returns the law of its two values (00, 01, 10, 11).

    ``halves``: of the target, and of the stage, where the component is off and where it is on.
    """
    off, on, stage_off, stage_on = halves
    stay_off, up, down, stay_on = 0.0, 0.0, 0.0, 0.0
    for s in range(off.size):
        to_off, to_on = source[2 * s], source[2 * s + 1]
        off[s] = p * to_off + (1.0 - p) * to_on
        on[s] = (1.0 - q) * to_off + q * to_on
        stay_off += stage_off[s] * to_off
        up += stage_off[s] * to_on
        down += stage_on[s] * to_off
        stay_on += stage_on[s] * to_on
    return p * stay_off, (1.0 - p) * up, (1.0 - q) * down, q * stay_on


@kernel
def draw_block(paths, rows, chain, workspace, first, last, n_times, key):
    """Draw the states of a filtered block, backwards, for every path (paths, T) int32, given those that follow.

    ``workspace`` (2^K,). The state at time t of path d reads word t of child d of the key.
    """
    for t in range(last - 1, first - 1, -1):
        filtered = rows.filtered[t - first + 1]
        for d in range(paths.shape[0]):
            if t == n_times - 1:
                copy_row(workspace, filtered)
            else:
                set_leaving(workspace, chain, paths[d, t + 1])
                reweigh(workspace, workspace, filtered, 1.0)
            paths[d, t] = pick(workspace, uniform(fold(key, d), t))


@kernel
def pick(weights, level):
    """The first state at which the running sum of the weights passes ``level`` of their total."""
    total = 0.0
    for s in range(weights.size):
        total += weights[s]
    left = level * total
    found = 0
    for s in range(weights.size):
        if weights[s] > 0.0:
            found = s
            left -= weights[s]
            if left < 0.0:
                break
    return found


@kernel
def best_block(rows, counts, tables, chain, first, last):
    """Viterbi's way forward: as :func:`filter_block`, with log max_s p(s_1:t, x_1:t) in the place of the filter."""
    best, stages, keeps = rows.filtered, rows.stages, rows.filtered.shape[0] > 1
    rank, total = chain.p.size, 0.0
    for t in range(first, last):
        old, new, at = (t - first, t - first + 1, t - first) if keeps else (0, 0, 0)
        if t == 0:
            set_initial(stages[rank], chain)
            to_logs(stages[rank])
        else:
            copy_row(stages[0], best[old])
            move_on_best(stages, chain)
        log_emission(rows.emissions[at], counts, t, tables)
        add_rows(best[new], stages[rank], rows.emissions[at])
        peak = largest(best[new])
        if not peak > -math.inf:
            return -math.inf, t
        subtract(best[new], peak)
        total += peak
    return total, WITHOUT_DATA


@in_lanes
def to_logs(row):
    """Overwrite a row with its logarithms."""
    for s in range(row.size):
        row[s] = log_or_never(row[s])


@in_lanes
def add_rows(out, row, other):
    """out = row + other"""
    for s in range(out.size):
        out[s] = row[s] + other[s]


@comparing
def move_on_best(stages, chain):
    """:func:`move_on` with sums for products and max for sums."""
    rank, half = chain.p.size, stages.shape[1] // 2
    for j in range(rank):
        here, after, k = stages[j], stages[j + 1], rank - 1 - j
        off, up = math.log(chain.p[k]), math.log1p(-chain.p[k])
        on, down = math.log(chain.q[k]), math.log1p(-chain.q[k])
        for s in range(half):
            a, b = here[s], here[s + half]
            after[2 * s] = max(off + a, down + b)
            after[2 * s + 1] = max(up + a, on + b)


@kernel
def trace_block(path, rows, chain, workspace, first, last):
    """Viterbi's way back through a block: the most probable state of each time (T,) int32, given that which follows."""
    for t in range(last - 1, first - 1, -1):
        best = rows.filtered[t - first + 1]
        if t < path.size - 1:
            set_leaving(workspace, chain, path[t + 1])
            to_logs(workspace)
            add_rows(workspace, workspace, best)
            path[t] = place_of_largest(workspace)
        else:
            path[t] = place_of_largest(best)

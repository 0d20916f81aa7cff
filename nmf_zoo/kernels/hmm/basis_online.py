"""Exact online EM for the basis chain (Yildirim, Cemgil, Singh 2012, section 3.2): one sample a step.

For every additive statistic s = sum_t s_t(h_{t-1}, h_t, C_t) and every state the recursion keeps the mean T_t(s) of the
statistic over the paths that end in that state, with the step sizes g_t = t^-a forgetting the beginning (eq. 15, 16)::

    T_t(s') = sum_s r_t(s | s') ((1 - g_t) T_{t-1}(s) + g_t s_t(s, s'))
    r_t(s | s') = alpha_{t-1}(s) A(s, s') / sum_s alpha_{t-1}(s) A(s, s')
    S_t = sum_s alpha_t(s) T_t(s),        W = S2 / S1,   p = S00 / (S00 + S01),   q = S11 / (S10 + S11)

In terms of alpha T the sum over s is the chain's own transition: one row for each state, which holds alpha and all its
statistics times alpha, goes through the K two-state matrices, and where component k moves, its transitions are counted.

The sources' share of a sample is taken under the W that was current when the sample came, as eq. 15 says, not under
the next one (Algorithm 1); the transitions start at t = 2, and their denominators count the states left.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.basis_states import emission, set_initial, set_rates
from nmf_zoo.kernels.hmm.chain_updates import update_shares
from nmf_zoo.kernels.numerics.multiplicative import FLOOR


class Online(NamedTuple):
    """All that the next step needs, overwritten in place; n = 1 + R K + F K + 4 K columns.

    Attributes
    ----------
    table : (2^K, n) alpha(s), and alpha(s) times: R x K weighted activations, F x K sources, K x 4 transitions.
        R is 1 where the weights of a sample are v_t u_f, else F
    W : (F, K)
    parameters : (2, K) p and q
    initial : (K,) P(h_1 = 1)
    tables : of W
    emissions : (2^K,), law : (2^K,), sums : (n,) scratch
    """

    table: Any
    W: Any
    parameters: Any
    initial: Any
    tables: Any
    emissions: Any
    law: Any
    sums: Any


class OnlineRules(NamedTuple):
    """What a step does.

    Attributes
    ----------
    base : (F,) background / exposure that all samples share
    of_features : (F,) u_f, ones where R = F
    exponent : a, the step size is t^-a
    burn_in : samples before the first update
    learns_weights : 1 if W is unknown
    prior_power, prior_rate : (F, K) a - 1 and r of W's gamma prior, 0 without
    chain : ChainRules of `chain_updates`, for p and q
    """

    base: Any
    of_features: Any
    exponent: Any
    burn_in: Any
    learns_weights: int
    prior_power: Any
    prior_rate: Any
    chain: Any


@kernel
def learn(online, counts, weights, rules, before, first, last):
    """Take the samples from ``first`` to ``last`` of a block, ``before`` of which had been seen in all before.

    ``weights`` (T, R) mask * exposure over u_f. ``counts.weight_sums`` (1, K) is scratch. Returns (log p of these
    samples, each given those before it and under the parameters at its time, up to the terms without states; -1); or,
    at a sample that no state can make, (-inf, that sample), which has then not been taken.
    """
    total = 0.0
    for t in range(first, last):
        seen = before + t - first + 1
        step = seen**-rules.exponent
        set_weight_sums(counts.weight_sums[0], online.W, weights[t], rules.of_features)
        peak = emission(online.emissions, counts, t, online.tables)
        if not peak > -math.inf:
            return -math.inf, t
        if seen == 1:
            set_initial(online.law, online)
            online.table[:] = 0.0
            online.table[:, 0] = online.law
        else:
            p, q = online.parameters[0], online.parameters[1]
            move_table(online.table, p, q, step, online.table.shape[1] - 4 * p.size)
        mass = weigh_table(online.table, online.emissions)
        total += peak + math.log(mass)
        add_sample(online, counts, weights[t], step, t)
        if seen >= rules.burn_in:
            sum_rows(online.sums, online.table)
            maximise(online, rules, seen, weights.shape[1])
    return total, -1


@kernel
def set_weight_sums(weight_sums, W, weights, of_features):
    """Overwrite weight_sums (K,) with sum_f weight_f w_fk."""
    weight_sums[:] = 0.0
    for f in range(W.shape[0]):
        weight = of_features[f] * (weights[f] if weights.size > 1 else weights[0])
        for k in range(W.shape[1]):
            weight_sums[k] += weight * W[f, k]


@kernel
def move_table(table, p, q, step, pairs):
    """All rows through the transition, sums over the states before; ``pairs``: first column of the transitions."""
    for k in range(p.size):
        bit, column = 1 << k, pairs + 4 * k
        keep = 1.0 - step if k == 0 else 1.0
        for off in range(table.shape[0]):
            if off & bit == 0:
                on = off | bit
                from_off, from_on = table[off, 0], table[on, 0]
                mix_rows(table[off], table[on], p[k], q[k], keep)
                table[off, column] += step * p[k] * from_off
                table[on, column + 1] += step * (1.0 - p[k]) * from_off
                table[off, column + 2] += step * (1.0 - q[k]) * from_on
                table[on, column + 3] += step * q[k] * from_on


@in_lanes
def mix_rows(off, on, p, q, keep):
    """Rows of the states without and with one component, one transition of it later; statistics times ``keep``."""
    a, b = off[0], on[0]
    stay_off, up, down, stay_on = keep * p, keep * (1.0 - p), keep * (1.0 - q), keep * q
    for c in range(off.size):
        x, y = off[c], on[c]
        off[c] = stay_off * x + down * y
        on[c] = up * x + stay_on * y
    off[0] = p * a + (1.0 - q) * b
    on[0] = (1.0 - p) * a + q * b


@kernel
def weigh_table(table, emissions):
    """Multiply the rows by the likelihood of their state, over its mean, which is returned."""
    mass = 0.0
    for s in range(table.shape[0]):
        mass += table[s, 0] * emissions[s]
    for s in range(table.shape[0]):
        scale_row(table[s], emissions[s] / mass)
    return mass


@in_lanes
def scale_row(row, scale):
    """row *= scale"""
    for c in range(row.size):
        row[c] *= scale


@kernel
def add_sample(online, counts, weights, step, t):
    """Add a sample's activations and expected sources to the rows of the states."""
    table, rates, (n_features, rank) = online.table, online.tables.rates, online.W.shape
    sources = table.shape[1] - (4 + n_features) * rank
    for s in range(1, table.shape[0]):
        row, here = table[s], step * table[s, 0]
        for r in range(weights.size):
            for k in range(rank):
                row[1 + r * rank + k] += here * weights[r] * ((s >> k) & 1)
        for c in range(counts.indptr[t], counts.indptr[t + 1]):
            f = counts.indices[c]
            mean = rates[f, s] + (counts.offset[c] if counts.offset.size > 0 else 0.0)
            share = here * counts.values[c] / mean if mean > 0.0 else 0.0
            first = sources + f * rank
            for k in range(rank):
                row[first + k] += share * online.W[f, k] * ((s >> k) & 1)


@summing
def sum_rows(sums, table):
    """Overwrite sums (n,) with the statistics: the sums over the states."""
    for c in range(sums.size):
        sums[c] = table[0, c]
    for s in range(1, table.shape[0]):
        for c in range(sums.size):
            sums[c] += table[s, c]


@kernel
def maximise(online, rules, seen, weight_rows):
    """The parameters that maximise the expected log joint density, with priors at 1 / seen of their weight."""
    W, sums, (n_features, rank) = online.W, online.sums, online.W.shape
    pairs = sums.size - 4 * rank
    if rules.learns_weights == 1:
        sources = pairs - n_features * rank
        for f in range(n_features):
            active = 1 + (f * rank if weight_rows > 1 else 0)
            for k in range(rank):
                numerator = sums[sources + f * rank + k] + rules.prior_power[f, k] / seen
                denominator = rules.of_features[f] * sums[active + k] + rules.prior_rate[f, k] / seen
                if denominator > 0.0:
                    W[f, k] = max(numerator / denominator, FLOOR)
        set_rates(online.tables, W, rules.base)
    update_shares(online.parameters, sums[pairs:].reshape(rank, 4), rules.chain, 1.0 / seen)

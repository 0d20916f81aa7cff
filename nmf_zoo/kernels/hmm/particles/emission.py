"""How likely each particle makes a sample: log g(x_t | h), up to a term that is the same for all."""

from __future__ import annotations

from typing import Any, NamedTuple

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.hmm.basis_states import log_or_never
from nmf_zoo.kernels.hmm.particles.rows import add_row


class Target(NamedTuple):
    """What the particles are weighed by and how they move.

    Attributes
    ----------
    counts : Counts of `basis_states`: the listed cells, and what a component costs where it is on
    W : (F, K)
    base : (F,) background / exposure that all samples share
    law : Law of the chains
    """

    counts: Any
    W: Any
    base: Any
    law: Any


@kernel
def log_emission(out, rates, h, target, t):
    """Overwrite out (N,) with sum_c x_c log rate_c - weight_sums . h of the activations h (K, N); rates is scratch."""
    counts = target.counts
    row = t if counts.weight_sums.shape[0] > 1 else 0
    out[:] = 0.0
    for k in range(h.shape[0]):
        add_row(out, h[k], -counts.weight_sums[row, k])
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        set_rates(rates, h, target, c)
        add_logs(out, rates, counts.values[c])


@kernel
def set_rates(rates, h, target, c):
    """Overwrite rates (N,) with base_f + offset_c + sum_k w_fk h_k of the listed cell c."""
    counts, f = target.counts, target.counts.indices[c]
    base = target.base[f] + (counts.offset[c] if counts.offset.size > 0 else 0.0)
    add_components(rates, h, target.W[f], base)


@in_lanes
def add_components(rates, h, w, base):
    """rates = base + sum_k w_k h_k, four components at a time: fewer ways to memory and back."""
    for i in range(rates.size):
        rates[i] = base
    k = 0
    while k + 4 <= w.size:
        h0, h1, h2, h3 = h[k], h[k + 1], h[k + 2], h[k + 3]
        w0, w1, w2, w3 = w[k], w[k + 1], w[k + 2], w[k + 3]
        for i in range(rates.size):
            rates[i] += w0 * h0[i] + w1 * h1[i] + w2 * h2[i] + w3 * h3[i]
        k += 4
    while k < w.size:
        row, weight = h[k], w[k]
        for i in range(rates.size):
            rates[i] += weight * row[i]
        k += 1


@in_lanes
def add_logs(out, rates, x):
    """out += x log(rates)"""
    for i in range(out.size):
        out[i] += x * log_or_never(rates[i])


@summing
def add_standing_components(out, counts, W, Ht):
    """out (non-zeros,) += sum_k w_fk h_kt at the listed cells; W (F, K), Ht (T, K)."""
    for t in range(Ht.shape[0]):
        for c in range(counts.indptr[t], counts.indptr[t + 1]):
            f, total = counts.indices[c], 0.0
            for k in range(W.shape[1]):
                total += W[f, k] * Ht[t, k]
            out[c] += total

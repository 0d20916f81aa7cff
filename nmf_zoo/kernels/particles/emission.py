"""How likely each particle makes a sample: log g(x_t | h), up to a term that is the same for all."""

from __future__ import annotations

from typing import Any, NamedTuple

from nmf_zoo.kernels.basis_states import in_lanes, log_or_never


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


@in_lanes
def log_emission(out, rates, h, target, t):
    """Overwrite out (N,) with sum_c x_c log rate_c - sum_k drag_k h_k for the
    activations h (K, N); rates (N,) is room.
    """
    counts = target.counts
    row = t if counts.drag.shape[0] > 1 else 0
    for i in range(out.size):
        out[i] = 0.0
    for k in range(h.shape[0]):
        drag = counts.drag[row, k]
        for i in range(out.size):
            out[i] -= drag * h[k, i]
    for c in range(counts.indptr[t], counts.indptr[t + 1]):
        x = counts.values[c]
        set_rates(rates, h, target, c)
        for i in range(out.size):
            out[i] += x * log_or_never(rates[i])


@in_lanes
def set_rates(rates, h, target, c):
    """Overwrite rates (N,) with base_f + offset_c + sum_k w_fk h_k of the listed cell c."""
    counts, f = target.counts, target.counts.indices[c]
    base = target.base[f] + (counts.offset[c] if counts.offset.size > 0 else 0.0)
    for i in range(rates.size):
        rates[i] = base
    for k in range(h.shape[0]):
        w = target.W[f, k]
        for i in range(rates.size):
            rates[i] += w * h[k, i]

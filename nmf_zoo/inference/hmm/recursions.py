"""The exact recursions of the basis chain over blocks of times: in memory for about 2 sqrt(T) rows of 2^K numbers.

See :mod:`nmf_zoo.kernels.hmm.basis_chain`. All functions are of one (counts, W, chain) at a time, as
:class:`Recursions` holds them; blocks depend on T and K alone, so that results don't depend on anything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from nmf_zoo.kernels.hmm.basis_chain import (
    WITHOUT_DATA,
    BlockRows,
    SmootherSums,
    best_block,
    draw_block,
    filter_block,
    smooth_block,
    trace_block,
)
from nmf_zoo.kernels.hmm.basis_states import BinaryChain, Counts, RateTables, set_rates
from nmf_zoo.structure import Array, spans

KEPT = 1 << 21  # numbers in the rows of a block, unless sqrt(T) rows are more: 16 MB

Forward = Callable[..., tuple[float, int]]


class Recursions:
    """What X says about the states under one W and one law of the chain.

    Parameters
    ----------
    counts : Counts, whose ``weight_sums`` is that of this W
    base : (F,) background / exposure that all times share
    W : (F, K)
    chain : BinaryChain
    block : times of a block, default as many as suit the memory
    """

    def __init__(self, counts: Counts, base: Array, W: Array, chain: BinaryChain, block: int | None = None):
        self.counts, self.chain, (self.n_features, self.rank) = counts, chain, W.shape
        self.n_times, self.n_states = len(counts.indptr) - 1, 1 << self.rank
        self.block = block_length(self.n_times, self.n_states) if block is None else block
        self.tables = RateTables(np.empty((self.n_features, self.n_states)), np.empty((self.n_features, self.n_states)))
        set_rates(self.tables, np.ascontiguousarray(W), base)

    def log_likelihood(self) -> tuple[float, int]:
        """(log p(X) up to the terms without states, -1), or (-inf, the first time whose counts no state can make)."""
        rows, total = self._rows(1), 0.0
        for first, last in self._spans():
            found, impossible = filter_block(rows, self.counts, self.tables, self.chain, first, last)
            total += found
            if impossible != WITHOUT_DATA:
                return -math.inf, impossible
        return total, WITHOUT_DATA

    def filtered(self) -> tuple[float, int, Array]:
        """As :meth:`log_likelihood`, with P(component k is on at t | X up to t), (T, K)."""
        rows, total, marginals = self._rows(self.block), 0.0, np.zeros((self.n_times, self.rank))
        is_on = (np.arange(self.n_states)[:, None] >> np.arange(self.rank) & 1).astype(np.float64)
        for first, last in self._spans():
            found, impossible = filter_block(rows, self.counts, self.tables, self.chain, first, last)
            total += found
            if impossible != WITHOUT_DATA:
                return -math.inf, impossible, marginals
            marginals[first:last] = np.minimum(rows.filtered[1 : last - first + 1] @ is_on, 1.0)
            rows.filtered[0] = rows.filtered[last - first]
        return total, WITHOUT_DATA, marginals

    def smooth(self) -> tuple[float, int, SmootherSums]:
        """As :meth:`log_likelihood`, with the smoother's sums."""
        sums = SmootherSums(
            np.zeros((self.n_times, self.rank)), np.zeros((self.rank, 4)), np.zeros((self.n_features, self.n_states))
        )
        beta = np.ones(self.n_states)

        def back(rows: BlockRows, first: int, last: int) -> None:
            smooth_block(rows, beta, self.counts, self.tables, self.chain, sums, first, last)

        return *self._there_and_back(filter_block, back), sums

    def draw_paths(self, n_paths: int, key: np.uint64) -> tuple[float, int, Array]:
        """As :meth:`log_likelihood`, with draws of the states given X, (n_paths, T) int32."""
        paths, workspace = np.zeros((n_paths, self.n_times), np.int32), np.empty(self.n_states)

        def back(rows: BlockRows, first: int, last: int) -> None:
            draw_block(paths, rows, self.chain, workspace, first, last, self.n_times, key)

        return *self._there_and_back(filter_block, back), paths

    def best_path(self) -> tuple[float, int, Array]:
        """(log p(X, path) up to the terms without states, -1 or an impossible time, the most probable path (T,))."""
        path, workspace = np.zeros(self.n_times, np.int32), np.empty(self.n_states)

        def back(rows: BlockRows, first: int, last: int) -> None:
            trace_block(path, rows, self.chain, workspace, first, last)

        return *self._there_and_back(best_block, back), path

    def sources(self, sums: SmootherSums, W: Array) -> Array:
        """sum_t E[c_fkt | X], (F, K), by the smoother's sums: given s the mean is x w_fk s_k / (lambda_f + offset)."""
        shares = sums.sources
        if not self.counts.offset.size:
            rates = self.tables.rates
            shares = shares / np.where(rates > 0, rates, 1.0)
        return W * np.stack([part[:, 1].sum(axis=(1, 2)) for part in by_component(shares, self.rank)], axis=1)

    def _there_and_back(self, forward: Forward, back: Callable[[BlockRows, int, int], None]) -> tuple[float, int]:
        """Forward over all blocks, keeping the ends; then ``back`` over each block with its rows."""
        spans, ends = list(self._spans()), []
        rows, total = self._rows(self.block), 0.0
        passing = BlockRows(np.empty((1, self.n_states)), rows.emissions[:1], rows.stages)
        for first, last in spans:
            is_last = last == self.n_times
            ends.append(passing.filtered[0].copy())
            rows.filtered[0] = ends[-1]
            found, impossible = forward(rows if is_last else passing, self.counts, self.tables, self.chain, first, last)
            total += found
            if impossible != WITHOUT_DATA:
                return -math.inf, impossible
        back(rows, *spans[-1])
        for (first, last), end in zip(spans[-2::-1], ends[-2::-1], strict=True):
            rows.filtered[0] = end
            forward(rows, self.counts, self.tables, self.chain, first, last)
            back(rows, first, last)
        return total, WITHOUT_DATA

    def _spans(self) -> Iterator[tuple[int, int]]:
        return spans(self.n_times, self.block)

    def _rows(self, kept: int) -> BlockRows:
        """Rows of ``kept`` times; for 1, none are kept."""
        size = self.n_states
        return BlockRows(
            np.zeros((kept + 1 if kept > 1 else 1, size)), np.empty((kept, size)), np.empty((self.rank + 1, size))
        )


def block_length(n_times: int, n_states: int) -> int:
    """Times of a block: at least 2, which :meth:`Recursions._rows` tells from "none kept"."""
    return max(2, math.isqrt(n_times) + 1, min(n_times, KEPT // n_states))


def by_component(array: Array, rank: int) -> Iterator[Array]:
    """For each component k, the last axis 2^K as (..., above, bit k, below): views (rows, 2, above, below)."""
    for k in range(rank):
        yield np.moveaxis(array.reshape(len(array), -1, 2, 1 << k), 2, 1)


def as_activations(states: Array, rank: int) -> Array:
    """States (..., T) as activations (..., K, T) int8."""
    return (states[..., None, :] >> np.arange(rank)[:, None] & 1).astype(np.int8)

"""Counts in blocks of whole samples, as EM and VB over blocks take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from nmf_zoo.inference.shared.layout import DenseSources, SparseSources, Weights, compress, weigh
from nmf_zoo.inference.shared.sample_blocks import BlockProblem, SampleBlock
from nmf_zoo.structure import Array, Dense, Factorisation, slices

MOST_VALUES = 1 << 16  # counts below it are looked up in a table


class CountsOfBlock(NamedTuple):
    """Of :mod:`nmf_zoo.inference.shared.layout`."""

    sources: DenseSources | SparseSources
    weights: Weights


class CountBlocks(BlockProblem):
    """What the passes over counts share."""

    def lay_out(self, structure: Factorisation) -> Any:
        """Listed cells stay in the order in which they are stored, sample by sample: a pass sorts nothing."""
        if isinstance(structure.data, Dense):
            return CountsOfBlock(DenseSources(structure, self.workers, self.options.precision), weigh(structure))
        cells = compress(structure, by_features=False)
        return CountsOfBlock(SparseSources(structure, self.workers, cells, self.options.precision), weigh(structure))

    def log_likelihood(self, block: SampleBlock, W: Array, Ht: Array) -> float:
        found = block.cells.sources.gather(W, Ht, "")
        return float(found.log_mean - block.cells.weights.total(W, Ht) + block.constant)


def log_at_data(block: Factorisation) -> float:
    """The log-likelihood of a block if its mean were X itself."""
    values = block.data.observed_values
    return sum(_log_at(values[part]) for part in slices(values.size, 1 << 18))


def _log_at(x: Array) -> float:
    """Of small whole numbers, how often each is there."""
    whole = x.astype(np.int64) if x.size and x.max() < MOST_VALUES else np.empty(0, np.int64)
    if x.size and np.array_equal(whole, x):
        often = np.bincount(whole)
        return float(often @ _of_each(np.arange(len(often), dtype=np.float64)))
    return float(np.sum(_of_each(x)))


def _of_each(x: Array) -> Array:
    return xlogy(x, x) - x - gammaln(x + 1.0)

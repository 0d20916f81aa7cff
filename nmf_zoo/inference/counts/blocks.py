"""Counts in blocks of whole samples, as EM and VB over blocks take them."""

from __future__ import annotations

from typing import Any, NamedTuple

from nmf_zoo.inference.shared.layout import DenseSources, SparseSources, Weights, compress, weigh
from nmf_zoo.inference.shared.sample_blocks import BlockProblem, SampleBlock
from nmf_zoo.structure import Array, Dense, Factorisation


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

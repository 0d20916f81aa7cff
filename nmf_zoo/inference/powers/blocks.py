"""Powers in blocks of whole samples, as EM and VB over blocks take them."""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.powers.spectra import spectra_of
from nmf_zoo.inference.shared.sample_blocks import BlockProblem, SampleBlock
from nmf_zoo.structure import Array


class PowerBlocks(BlockProblem):
    """What the passes over powers share."""

    lay_out = staticmethod(spectra_of)

    def log_likelihood(self, block: SampleBlock, W: Array, Ht: Array) -> float:
        return block.structure.log_likelihood(W, np.ascontiguousarray(Ht.T), {})

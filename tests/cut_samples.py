"""Blocks of samples with all that may come with them: exposures, masks, labels, and what an unlisted cell means."""

from __future__ import annotations

from typing import Any

from nmf_zoo.verbs.block_source import CutArray, Samples


class CutSamples(CutArray):
    """An array or a sparse matrix in blocks of ``block`` samples; ``exposure`` (samples,), ``mask`` as X."""

    def __init__(
        self, X: Any, block: int = 7, exposure: Any = None, mask: Any = None, observed: Any = None, coords: Any = None
    ):
        super().__init__(X, block)
        self.exposure, self.mask, self.observed, self.coords = exposure, mask, observed, coords

    def read(self, number: int) -> Samples:
        at = slice(self.bounds[number], self.bounds[number + 1])
        exposure = None if self.exposure is None else self.exposure[at]
        mask = None if self.mask is None else self.mask[:, at]
        return Samples(super().read(number), exposure, mask, self.observed)

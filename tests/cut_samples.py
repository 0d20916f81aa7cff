"""Blocks of samples with all that may come with them: exposures, backgrounds, masks, labels, what is not listed."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from nmf_zoo.verbs.block_source import CutArray, Samples


class CutSamples(CutArray):
    """An array or a sparse matrix in blocks of ``block`` samples; ``exposure`` (samples,), ``mask`` as X.

    ``background`` : as a model of all samples takes it
    """

    def __init__(
        self,
        X: Any,
        block: int = 7,
        exposure: Any = None,
        mask: Any = None,
        observed: Any = None,
        coords: Any = None,
        background: Any = None,
    ):
        super().__init__(X, block)
        self.exposure, self.mask, self.observed, self.coords = exposure, mask, observed, coords
        self.background = background

    def read(self, number: int) -> Samples:
        at = slice(self.bounds[number], self.bounds[number + 1])
        exposure = None if self.exposure is None else self.exposure[at]
        mask = None if self.mask is None else self.mask[:, at]
        return Samples(super().read(number), exposure, mask, self.observed, background_of(self.background, at))


def background_of(given: Any, at: slice) -> Any:
    """Of some samples."""
    if isinstance(given, tuple):
        return given[0], given[1][:, at]
    if sp.issparse(given):
        return sp.csc_array(given)[:, at]
    return given if np.ndim(given) < 2 or given.shape[1] == 1 else given[:, at]

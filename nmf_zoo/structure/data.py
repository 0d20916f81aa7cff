"""X as it was observed: dense, a list of cells, or cells that the model itself draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmf_zoo.structure.offsets import OffsetsOfSamples
from nmf_zoo.structure.parameters import Array


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense data matrix.

    Attributes
    ----------
    values : (F, N) float64, 0 at missing cells
    mask : (F, N) bool, True = observed; None when every cell is
    """

    values: Array
    mask: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def observed_values(self) -> Array:
        """The observed cells' values, (cells,)."""
        return self.values.ravel() if self.mask is None else self.values[self.mask]

    @property
    def is_complete(self) -> bool:
        return self.mask is None


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Data as a list of cells, without repeats: sparse counts, or the observed cells of an incomplete matrix.

    Attributes
    ----------
    rows, cols : (cells,) int32
    values : (cells,) float64
    shape : (F, N)
    is_complete : True: all other cells were observed and are 0. False: all other cells are missing.
    indptr : (N + 1,) where the cells of each sample begin, of cells in the order of the samples; None where not known
    """

    rows: Array
    cols: Array
    values: Array
    shape: tuple[int, int]
    is_complete: bool
    indptr: Array | None = None

    @property
    def observed_values(self) -> Array:
        """The listed cells' values, (cells,)."""
        return self.values


Data = Dense | Cells


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """Samples in blocks that are read one at a time: X need not fit into memory.

    Attributes
    ----------
    bounds : (blocks + 1,) int64, block b holds the samples from bounds[b] to bounds[b + 1]
    n_features : F
    read : number of a block -> (its data, (F, n); what came with its samples)
    offsets : what came with all samples, of which a background may be InBlocks
    observed : (blocks,) cells of each block that are not missing
    non_zero : cells that are not zero
    is_integer : all observed values are integers
    constants : (blocks,) what each block's log-likelihood holds beside the factors
    at_data : (blocks,) each block's log-likelihood if its mean were X itself; empty where the engine does not ask
    totals : sums of X, and of its mean where all cells of a factor have their typical size
    tally : what the engine counts over all blocks, or None
    digests : (blocks,) of the cells of each block, where a checkpoint is to know them again; else None
    chosen : samples whose rows of H a sampler keeps draw by draw, or None
    arrays : where an engine keeps arrays of each block from pass to pass; None before the run
    cluster : other processes that share the passes (:mod:`nmf_zoo.runtime.cluster`); None for this one alone
    """

    bounds: Array
    n_features: int
    read: Callable[[int], tuple[Data, OffsetsOfSamples]]
    offsets: OffsetsOfSamples
    observed: Array
    non_zero: int
    is_integer: bool
    constants: Array
    at_data: Array
    totals: tuple[float, float]
    tally: Array | None = None
    digests: Array | None = None
    chosen: Array | None = None
    arrays: Any = None
    cluster: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_features, int(self.bounds[-1])

    @property
    def n_blocks(self) -> int:
        return len(self.bounds) - 1

    @property
    def is_complete(self) -> bool:
        return int(np.sum(self.observed)) == self.shape[0] * self.shape[1]


@dataclass(frozen=True, kw_only=True)
class Imputed:
    """Missing cells that the model itself declares as a free variable (PyMC's masked arrays).

    Attributes
    ----------
    name : the model's variable, e.g. "X_unobserved"
    rows, cols : (missing,) int64, the cells in the variable's order
    """

    name: str
    rows: Array
    cols: Array


def is_rising(major: Array, minor: Array) -> bool:
    """Whether each cell comes after the one before it."""
    level = major[1:] == major[:-1]
    return bool(np.all((major[1:] > major[:-1]) | (level & (minor[1:] > minor[:-1]))))

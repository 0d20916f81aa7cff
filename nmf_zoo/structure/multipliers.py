"""Multipliers of the mean, one for each feature and batch of samples: unknowns of the model, (F, B).

The mean of X is table[f, batch[n]] * (exposure * (W @ H) + background), where the table is that of the multipliers. It
is never multiplied out over the samples for sparse data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from nmf_zoo.structure.parameters import Array, Unknown


@dataclass(frozen=True, kw_only=True)
class UnknownOfBatches(Unknown):
    """The variable of multipliers, whose entries broadcast to no factor."""

    tied: ClassVar[str] = "one for each feature and batch"


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """One number for each feature and batch.

    Attributes
    ----------
    variable : (F, B) in the model, or (B, F) if ``transposed``
    batch : (N,) int64, the batch of each sample, from 0 to B - 1; B for samples of the reference, whose multipliers
        are 1
    transposed : the variable has batches first
    """

    variable: UnknownOfBatches
    batch: Array
    transposed: bool = False

    @property
    def n_batches(self) -> int:
        """B, without the reference."""
        return self.variable.variable_shape[0 if self.transposed else 1]

    @cached_property
    def has_reference(self) -> bool:
        """Whether some samples have multipliers of 1."""
        return bool(np.any(self.batch == self.n_batches))

    @property
    def shape(self) -> tuple[int, int]:
        """(F, N)"""
        return self.variable.variable_shape[1 if self.transposed else 0], len(self.batch)

    def by_feature(self, array: Array) -> Array:
        """(F, B) from an array that broadcasts to the variable; or back, of (F, B)."""
        whole = np.broadcast_to(array, self.variable.variable_shape)
        return whole.T if self.transposed else whole

    def as_variable(self, own: Array) -> Array:
        """The variable's value, from (F, B)."""
        return np.array(own.T if self.transposed else own, order="C")

    def prior(self) -> tuple[Array, Array]:
        """(shape, rate) of the gamma prior, (F, B) each."""
        shape, rate = (np.array(self.by_feature(own), dtype=np.float64) for own in self.variable.prior.args)
        return shape, rate

    def table(self, values: Mapping[str, Array]) -> Array:
        """(F, B), or (F, B + 1) with ones for a reference."""
        return self.with_reference(self.by_feature(np.asarray(values[self.variable.name], dtype=np.float64)))

    def with_reference(self, own: Array) -> Array:
        """(F, B) beside ones for the reference, if there is one."""
        parts = [own, np.ones((len(own), 1))] if self.has_reference else [own]
        return np.concatenate(parts, axis=1)

    @cached_property
    def _by_batch(self) -> sp.csr_array:
        """(B or B + 1, N), 1 where a sample is in a batch."""
        n_samples, n_rows = len(self.batch), self.n_batches + self.has_reference
        return sp.csr_array((np.ones(n_samples), (self.batch, np.arange(n_samples))), shape=(n_rows, n_samples))

    def sum_samples(self, array: Array) -> Array:
        """(B or B + 1, K): sums of (N, K) over the samples of each batch."""
        return self._by_batch @ array

    def sum_samples_of(self, samples: slice, block: Array) -> Array:
        """(F, B or B + 1): sums of a block (F, samples) over the samples of each batch."""
        return (self._by_batch[:, samples] @ block.T).T

    def resolve(self, values: Mapping[str, Array]) -> Array:
        """(F, N)"""
        return np.take(self.table(values), self.batch, axis=1)

    def at(self, values: Mapping[str, Array], rows: slice | Array, cols: slice | Array) -> Array:
        """Of a block of cells, or of listed ones."""
        return self.table(values)[rows, self.batch[cols]]

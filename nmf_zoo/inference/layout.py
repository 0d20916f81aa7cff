"""How the data lie in memory for the kernels, and what the unobserved and the exposed cells weigh.

Factors travel as ``W (F, K)`` and ``Ht (N, K)``, the transpose of H: both with one row per feature or sample and the
components contiguous, so that every kernel is symmetric in the two sides.

The mean is ``exposure * (W @ H) + background``. Allocating a count to its sources only depends on the ratio of the two,
so a kernel sees one number per non-zero cell, ``offset = background / exposure``; exposure and mask meet again in
:class:`Weights`, ``weight = mask * exposure``, the denominators of every update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, xlogy

from nmf_zoo.structure import Array, Cells, Dense, Factorisation

MOST_CHUNKS, CHUNK_NONZEROS = 8, 1 << 14  # chunks depend on the data alone, so that no sum depends on the threads

Side = TypeVar("Side")


class Layout(NamedTuple):
    """The non-zero observed cells, compressed along the longer side.

    Attributes
    ----------
    by_features : the major side (one ``indptr`` slot per row) is the features; else the samples
    indptr : (major + 1,) int64
    indices : (non-zeros,) int32, positions on the minor side
    values : (non-zeros,) float64
    offset : (non-zeros,) background / exposure, or (0,) when there is no background
    chunks : (n_chunks + 1,) int64, boundaries on the major side, about equal in non-zeros
    """

    by_features: bool
    indptr: Array
    indices: Array
    values: Array
    offset: Array
    chunks: Array

    @property
    def n_chunks(self) -> int:
        """Into how many pieces the work is cut."""
        return len(self.chunks) - 1

    def sides(self, of_features: Side, of_samples: Side) -> tuple[Side, Side]:
        """Order a pair (features', samples') as (major, minor); applied twice it is the identity."""
        return (of_features, of_samples) if self.by_features else (of_samples, of_features)


def compress(structure: Factorisation) -> Layout:
    """Lay out the non-zero observed cells of the data along the longer side."""
    rows, cols, values = nonzero_cells(structure)
    by_features = structure.shape[0] >= structure.shape[1]
    major, minor = (rows, cols) if by_features else (cols, rows)
    order = np.lexsort((minor, major))
    n_major = max(structure.shape)
    indptr = np.zeros(n_major + 1, dtype=np.int64)
    np.cumsum(np.bincount(major, minlength=n_major), out=indptr[1:])
    return Layout(
        by_features=by_features,
        indptr=indptr,
        indices=minor[order].astype(np.int32),
        values=values[order],
        offset=_offset_at(structure, rows[order], cols[order]),
        chunks=_boundaries(indptr),
    )


def nonzero_cells(structure: Factorisation) -> tuple[Array, Array, Array]:
    """(rows, cols, values) of the observed cells that are not 0."""
    if isinstance(structure.data, Dense):
        rows, cols = np.nonzero(structure.data.values)
        return rows, cols, structure.data.values[rows, cols]
    filled = structure.data.values != 0
    return structure.data.rows[filled], structure.data.cols[filled], structure.data.values[filled]


def _offset_at(structure: Factorisation, rows: Array, cols: Array) -> Array:
    background, exposure = structure.likelihood.background, structure.likelihood.exposure
    if background is None:
        return np.empty(0)
    return structure.at_cells(background, rows, cols, 0.0) / structure.at_cells(exposure, rows, cols, 1.0)


def _boundaries(indptr: Array) -> Array:
    n_chunks = int(np.clip(indptr[-1] // CHUNK_NONZEROS, 1, MOST_CHUNKS))
    targets = np.linspace(0, indptr[-1], n_chunks + 1)
    boundaries = np.searchsorted(indptr, targets, side="left").astype(np.int64)
    boundaries[0], boundaries[-1] = 0, len(indptr) - 1
    return np.maximum.accumulate(boundaries)


@dataclass(frozen=True)
class Weights:
    """weight = mask * exposure, as it multiplies a factor: ones, an outer product, or a matrix.

    Attributes
    ----------
    of_features : (F, 1) or (1, 1); of_samples : (N, 1) or (1, 1)
        weight = of_features @ of_samples.T when ``matrix`` is None
    matrix : (F, N) array or CSR matrix, or None
    """

    of_features: Array
    of_samples: Array
    matrix: Array | sp.csr_array | None = None

    def over_samples(self, Ht: Array) -> Array:
        """sum_n weight_fn h_kn: (F, K), or (1, K) when it is the same for all features."""
        if self.matrix is not None:
            return self.matrix @ Ht
        return self.of_features * (self.of_samples * Ht).sum(axis=0)

    def over_features(self, W: Array) -> Array:
        """sum_f weight_fn w_fk: (N, K), or (1, K) when it is the same for all samples."""
        if self.matrix is not None:
            return self.matrix.T @ W
        return self.of_samples * (self.of_features * W).sum(axis=0)

    def total(self, W: Array, Ht: Array) -> float:
        """sum_fn weight_fn (W H)_fn"""
        return float(np.sum(W * self.over_samples(Ht)))


def weigh(structure: Factorisation) -> Weights:
    """The weights of a structure's mask and exposure."""
    data, exposure = structure.data, structure.likelihood.exposure
    exposure = np.ones((1, 1)) if exposure is None else np.atleast_2d(exposure)
    if isinstance(data, Cells) and not data.is_complete:
        weight = structure.at_cells(exposure, data.rows, data.cols, 1.0)
        return Weights(*_ones(), sp.csr_array((weight, (data.rows, data.cols)), shape=structure.shape))
    if isinstance(data, Dense) and data.mask is not None:
        return Weights(*_ones(), data.mask * np.broadcast_to(exposure, structure.shape))
    if exposure.shape[0] == 1:
        return Weights(np.ones((1, 1)), np.ascontiguousarray(exposure.T, dtype=np.float64))
    if exposure.shape[1] == 1:
        return Weights(np.asarray(exposure, dtype=np.float64), np.ones((1, 1)))
    return Weights(*_ones(), np.array(np.broadcast_to(exposure, structure.shape), dtype=np.float64))


def _ones() -> tuple[Array, Array]:
    return np.ones((1, 1)), np.ones((1, 1))


def likelihood_constant(structure: Factorisation) -> float:
    """What the Poisson log-likelihood holds beside the factors.

    log p(X | W, H) = sum_nonzero x log((W H) + offset) - sum weight (W H) + this constant.
    """
    rows, cols, x = nonzero_cells(structure)
    exposure = structure.at_cells(structure.likelihood.exposure, rows, cols, 1.0)
    constant = float(np.sum(xlogy(x, exposure) - gammaln(x + 1)))
    if structure.likelihood.background is None:
        return constant
    background = np.broadcast_to(structure.likelihood.background, structure.shape)
    if isinstance(structure.data, Dense):
        return constant - float(np.sum(background, where=True if structure.data.mask is None else structure.data.mask))
    if structure.data.is_complete:
        return constant - float(np.sum(background))
    return constant - float(np.sum(background[structure.data.rows, structure.data.cols]))

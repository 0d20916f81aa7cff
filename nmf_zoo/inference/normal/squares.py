"""What normal data say of one factor given the other: Gram matrices and linear terms of its rows.

With residual precisions t = 1 / sigma^2, exposures e, y = x - background and sums over a row's observed cells,

    b_k = sum t e y h_k,      G_kj = sum t e^2 E[h_k h_j]

All rows share one Gram matrix, times a number of their own, where no cell is missing, there is no exposure and t is a
product of one number per feature and one per sample. Elsewhere each has its own, for all rows of a block at once: the
matrix of weights t e^2 times that of the products of two columns, which is BLAS' work.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.shared.whitening import sigma_of
from nmf_zoo.kernels.normal.factor_draws import NormalRows
from nmf_zoo.structure import Array, Cells, Dense, Factorisation, KnownAtCells, is_shared, sides_of

BLOCK = 1 << 20  # entries of the Gram matrices that are there at once


class MeasuredCells:
    """The observed cells, laid out for both factors; ``values`` hold an unknown sigma."""

    def __init__(self, structure: Factorisation):
        self.structure, self.sigma = structure, sigma_of(structure)
        self.shape = structure.shape
        self.is_listed = isinstance(structure.data, Cells)
        if self.is_listed:
            rows, cols, x = structure.observed_cells()
            self.places = rows, cols
            self.exposure: Any = structure.exposure_at(rows, cols)  # of a table None where there is none
            self.y = x - structure.background_at(rows, cols)
            self.seen = None
        else:
            data = structure.data
            assert isinstance(data, Dense)
            has = structure.likelihood
            self.exposure = None if has.exposure is None else np.array(structure.exposure_table(), dtype=np.float64)
            self.seen = None if data.mask is None else data.mask.astype(np.float64)
            y = data.values if has.background is None else data.values - structure.background_table()
            self.y = y if self.seen is None else y * self.seen

    @cached_property
    def counts(self) -> Array:
        """Observed cells that share a sigma, in its shape."""
        return self.tied(np.ones(self.y.shape) if self.seen is None else self.seen)

    def tied(self, cells: Array) -> Array:
        """Sums of numbers of the observed cells over those that share a sigma, in its shape."""
        if is_shared(self.sigma):
            return np.asarray(np.sum(cells)).reshape(self.sigma.shape)
        if self.is_listed:
            rows, cols = (np.where(size > 1, own, 0) for own, size in zip(self.places, self.sigma.shape, strict=True))
            out = np.zeros(self.sigma.shape)
            np.add.at(out, (rows, cols), cells)
            return out
        axes = tuple(axis for axis in (0, 1) if self.sigma.shape[axis] == 1)
        return np.asarray(cells.sum(axis=axes, keepdims=True))

    @cached_property
    def order(self) -> tuple[sp.csr_array, sp.csr_array]:
        """Which of the listed cells stands where in a sparse matrix, and in its transpose."""
        of_rows = sp.csr_array((np.arange(len(self.y)), self.places), shape=self.shape)
        return of_rows, sp.csr_array(of_rows.T)

    # -- weights -----------------------------------------------------------------------------------------------------

    def precisions(self, values: dict[str, Array]) -> Array:
        """1 / sigma^2: a number, or what broadcasts to the table, or of listed cells (cells,)."""
        if self.is_listed:
            sigma = sigma_at(self.structure, self.places).resolve(values)
        else:
            sigma = self.sigma.resolve(values)
            if isinstance(self.sigma, KnownAtCells):
                sigma = np.where(np.isfinite(sigma), sigma, 1.0)
        return np.square(1.0 / sigma)

    def weigh(self, values: dict[str, Array]) -> Weighted:
        """Everything that sigma enters, at its value."""
        precision = self.precisions(values)
        if self.is_listed:
            return WeightedCells(self, np.broadcast_to(precision, self.y.shape))
        sides = None if self.exposure is not None or self.seen is not None else sides_of(precision)
        if sides is not None:
            return SharedGram(self, np.ravel(sides.of_features), np.ravel(sides.of_samples))
        return WeightedTable(self, precision)

    def residuals(self, W: Array, Ht: Array) -> Array:
        """x - mean of the observed cells, 0 at missing ones."""
        if self.is_listed:
            rows, cols = self.places
            return self.y - self.exposure * np.einsum("ck,ck->c", W[rows], Ht[cols])
        mean = W @ Ht.T
        if self.exposure is not None:
            mean *= self.exposure
        return self.y - (mean if self.seen is None else mean * self.seen)

    def log_likelihood(self, residuals: Array, values: dict[str, Array]) -> float:
        """log p(X | W, H)."""
        precision = self.precisions(values)
        logs = np.broadcast_to(np.log(2.0 * np.pi / precision), residuals.shape)
        logs = logs if self.seen is None else logs * self.seen
        return -0.5 * (float(np.sum(np.square(residuals) * precision)) + float(np.sum(logs)))


def sigma_at(structure: Factorisation, places: tuple[Array, Array]):
    """That of listed cells."""
    return structure.likelihood_at(*places).parameters["sigma"]


# -- Gram matrices, block by block -----------------------------------------------------------------------------------


class SharedGram:
    """No cell is missing, no exposure, precisions are of a feature times of a sample: one Gram matrix for all rows."""

    def __init__(self, squares: MeasuredCells, of_features: Array, of_samples: Array):
        F, N = squares.shape
        self.y = squares.y
        self.of_rows = np.array(np.broadcast_to(of_features, F)), np.array(np.broadcast_to(of_samples, N))

    def blocks(self, which: int, mean: Array, variance: Array | None = None) -> Iterator[tuple[slice, NormalRows]]:
        """(rows, what is said of them) of W (``which`` 0) or Ht (1), given moments (rows, K) of the other factor."""
        own, across = self.of_rows[which], self.of_rows[1 - which]
        weighted = mean * across[:, None]
        gram = weighted.T @ mean
        if variance is not None:
            gram[np.diag_indices_from(gram)] += across @ variance
        linear = (self.y.T if which else self.y) @ weighted
        yield slice(0, len(own)), NormalRows(np.ascontiguousarray(linear), gram[None], own)


class _OwnGrams:
    """A Gram matrix for each row; ``weights`` and ``pulls`` of W's rows and of Ht's."""

    weights: tuple[Array | sp.csr_array, Array | sp.csr_array]
    pulls: tuple[Array | sp.csr_array, Array | sp.csr_array]

    def blocks(self, which: int, mean: Array, variance: Array | None = None) -> Iterator[tuple[slice, NormalRows]]:
        """As `SharedGram.blocks`."""
        weights, pulls, K = self.weights[which], self.pulls[which], mean.shape[1]
        first, second = _pairs(K)
        pairs = mean[:, first] * mean[:, second]
        if variance is not None:
            pairs[:, first == second] += variance
        height = max(16, BLOCK // (K * K))
        for start in range(0, weights.shape[0], height):
            rows = slice(start, min(start + height, weights.shape[0]))
            upper = _part(weights, rows) @ pairs
            gram = np.empty((len(upper), K, K))
            gram[:, first, second] = upper
            gram[:, second, first] = upper
            linear = np.ascontiguousarray(_part(pulls, rows) @ mean)
            yield rows, NormalRows(linear, gram, np.ones(len(upper)))


@cache
def _pairs(rank: int) -> tuple[Array, Array]:
    """The upper triangle of a Gram matrix, which every half sweep asks for."""
    first, second = np.triu_indices(rank)
    return first, second


class WeightedTable(_OwnGrams):
    """A table whose cells have weights of their own."""

    def __init__(self, squares: MeasuredCells, precision: Array):
        weight = np.broadcast_to(precision, squares.shape)
        pull = squares.y * precision
        if squares.exposure is not None:
            weight, pull = weight * np.square(squares.exposure), pull * squares.exposure
        if squares.seen is not None:
            weight = weight * squares.seen
        self.weights = np.ascontiguousarray(weight), np.ascontiguousarray(weight.T)
        self.pulls = pull, pull.T


class WeightedCells(_OwnGrams):
    """Listed cells; all others are missing."""

    def __init__(self, squares: MeasuredCells, precision: Array):
        weight, pull = precision * np.square(squares.exposure), precision * squares.exposure * squares.y
        self.weights = _in_order(weight, *squares.order)
        self.pulls = _in_order(pull, *squares.order)


def _in_order(cells: Array, of_rows: sp.csr_array, of_columns: sp.csr_array) -> tuple[sp.csr_array, sp.csr_array]:
    """A sparse matrix of listed cells, and its transpose."""
    first, second = (
        sp.csr_array((cells[order.data], order.indices, order.indptr), shape=order.shape)
        for order in (of_rows, of_columns)
    )
    return first, second


def _part(matrix: Array | sp.csr_array, rows: slice) -> Array | sp.csr_array:
    """Rows of a matrix: a sparse one is copied, so not where they are all."""
    return matrix if rows == slice(0, matrix.shape[0]) else matrix[rows]


Weighted = SharedGram | WeightedTable | WeightedCells

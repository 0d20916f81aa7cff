"""Newton steps in place of EM's multiplicative ones: far fewer iterations, each never a loss.

A list of Poisson cells goes cell by cell, at O(non-zeros * K) time and with the data laid out along both sides; a dense
matrix by BLAS in blocks of rows (:mod:`nmf_zoo.kernels.counts.newton`). Squared error is a quadratic, minimised as it
is. Where the other factor is known a row's optimum is the answer, and active sets go there in one iteration
(:mod:`nmf_zoo.kernels.counts.active_sets`). All take a factor's rows one by one or block by block, so that results
don't depend on the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import MOST_CHUNKS, DenseSources, Layout, SparseSources, compress, turn
from nmf_zoo.kernels.counts.active_sets import refine_rows, settle_rows
from nmf_zoo.kernels.counts.newton import advance, descend, fill_bends, solve_quadratic, step_lengths, sum_logs
from nmf_zoo.kernels.numerics.multiplicative import FLOOR
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation, slices

ROWS = 128  # of a dense block: they share one approximation of the curvature, and their buffers stay in cache
ROUNDS = 20  # over a row's cells for its quadratic
LEAST_BEND = 1e-12  # of a row, relative to all of its block: rows without counts can be divided by
OFF = 1e-50  # of a component's size, relative to the largest: there is nothing to divide by
NOTHING = np.empty((0, 0))


class Penalty(NamedTuple):
    """What the zeros and the prior say of a factor: linear . w - power . log w + curve . w^2 / 2, (rows or 1, K) each.

    ``noise`` : what the rest of the objective is divided by, a variance; ``curve`` : None for zeros
    """

    linear: Array
    power: Array
    noise: float = 1.0
    curve: Array | None = None

    @property
    def prior(self) -> tuple[Array, Array]:
        """(power, curve), both as arrays."""
        return self.power, np.zeros((1, self.power.shape[1])) if self.curve is None else self.curve

    def of(self, part: Callable[[Array], Array]) -> Penalty:
        """Each array through ``part``."""
        curve = None if self.curve is None else part(self.curve)
        return self._replace(linear=part(self.linear), power=part(self.power), curve=curve)

    def beside_known(self, rank: int, free: slice) -> Penalty:
        """On all columns: what is on the free ones, and nothing on the known."""
        return self if self.linear.shape[1] == rank else self.of(lambda array: _beside_zeros(array, rank, free))


def penalty_of(side: Side, mode: str, linear: Array, values: Mapping[str, Array]) -> Penalty:
    """The terms of a factor's objective that have no data: what the zeros, ``linear``, and the prior say.

    Of its free columns: see `side.free`.
    """
    linear = linear[:, side.free]
    if not side.has_terms:
        return Penalty(np.ascontiguousarray(linear), np.zeros((1, linear.shape[1])))
    terms = side.terms(mode, values)
    power, linear, curve = np.broadcast_arrays(terms.power, linear + terms.rate, terms.curve, subok=False)
    of_squares = np.ascontiguousarray(curve) if side.is_half_normal else None
    return Penalty(np.ascontiguousarray(linear), np.ascontiguousarray(power), curve=of_squares)


class CellWeights(NamedTuple):
    """Weights of squares, (rows, cols), the sums of their rows, and of their columns as parts of all."""

    cells: Array
    of_rows: Array
    of_cols: Array


class Squares(Protocol):
    """Squared error: see :mod:`nmf_zoo.inference.counts.em_losses`."""

    def ratio_parts(self, which: int, factor: Array, other: Array) -> tuple[Array, Array]: ...

    def weights(self, which: int) -> CellWeights | None: ...


class CoordinateDescent:
    """Steps for a list of cells."""

    def __init__(self, structure: Factorisation, workers: Workers, layout: Layout):
        turned = turn(layout._replace(values=narrow(layout.values)), min(structure.shape))
        self.layouts, self.workers = layout.sides(layout, turned), workers

    def improve(
        self, which: int, factor: Array, other: Array, penalty: Penalty, free: slice = slice(None)
    ) -> tuple[float, float]:
        """Move the ``free`` columns of W (``which`` 0) or Ht (1), in place; ``penalty`` is on them.

        Returns (KKT residual, sum x log mean at the new factors).
        """
        penalty = penalty.beside_known(factor.shape[1], free)
        return descend_rows(self.workers, self.layouts[which], factor, other, penalty, largest_cells(factor))


def descend_rows(
    workers: Workers, layout: Layout, factor: Array, other: Array, penalty: Penalty, largest: Array
) -> tuple[float, float]:
    """Move the rows of a layout's major side, in place; ``penalty`` is on all columns, ``largest`` of the columns.

    Returns (KKT residual, sum x log mean at the new rows).
    """
    linear, prior = penalty.linear, penalty.prior
    chunks = workers.map(
        lambda chunk: descend(layout, factor, other, linear, prior, largest, chunk), range(layout.n_chunks)
    )
    return max(residual for _, residual in chunks), sum(log_mean for log_mean, _ in chunks)


def _beside_zeros(part: Array, rank: int, free: slice) -> Array:
    """(rows or 1, K) from the free columns: where all is 0 the kernel leaves a cell as it is."""
    out = np.zeros((len(part), rank))
    out[:, free] = part
    return out


def narrow(values: Array) -> Array:
    """Single precision where it holds the same numbers, as it does counts below 2^24: half the memory, same bits."""
    narrow = values.astype(np.float32)
    return narrow if np.array_equal(narrow, values) else values


class ActiveSets:
    """All the way at once, of counts beside a known factor, without logarithms in the prior; cells are a list."""

    def __init__(self, structure: Factorisation, workers: Workers, layout: Layout):
        of_features, n_rows = structure.H.is_fixed, structure.shape[structure.W.is_fixed]
        self.layout = layout if layout.by_features == of_features else turn(layout, n_rows)
        self.workers = workers

    def improve(
        self, which: int, factor: Array, other: Array, penalty: Penalty, free: slice = slice(None)
    ) -> tuple[float, float]:
        """Bring the rows of W (``which`` 0) or Ht (1) to their optimum, in place.

        Returns (KKT residual, sum x log mean), both at the new factors.
        """
        layout, largest = self.layout, largest_cells(factor)
        linear, curve, other = (np.array(array, order="C") for array in (penalty.linear, penalty.prior[1], other))
        chunks = self.workers.map(
            lambda chunk: settle_rows(layout, factor, other, linear, curve, largest, chunk), range(layout.n_chunks)
        )
        return max(residual for _, residual in chunks), sum(log_mean for log_mean, _ in chunks)


class BlockNewton:
    """Steps for a dense matrix, missing cells 0."""

    def __init__(self, structure: Factorisation, workers: Workers):
        self.workers = workers
        self.spare: list[Array] = []  # buffers between uses: new ones would cost a page fault per page
        self.values = structure.data.values
        self.offset = structure.background_ratio()
        self.parts = [_parts_of(n_rows) for n_rows in structure.shape]

    def improve(
        self, which: int, factor: Array, other: Array, penalty: Penalty, free: slice = slice(None)
    ) -> tuple[float, float]:
        """Move the ``free`` columns of W (``which`` 0) or Ht (1), in place; ``penalty`` is on them.

        Returns (KKT residual, sum x log mean at the new factors).
        """
        values, offset = self.values, self.offset
        if which:
            values, offset = values.T, None if offset is None else offset.T
        other, largest = np.ascontiguousarray(other), largest_cells(factor[:, free])
        free_of_other = np.ascontiguousarray(other[:, free])

        def improve_chunk(blocks: list[slice]) -> tuple[float, float]:
            buffers, residual, log_mean = self._take_buffers(), 0.0, 0.0
            for rows in blocks:
                x, means, *workspace = (
                    part[: (rows.stop - rows.start) * len(other)].reshape(-1, len(other)) for part in buffers
                )
                np.copyto(x, values[rows])
                np.dot(factor[rows], other.T, out=means)
                if offset is not None:
                    means += offset[rows]
                own = penalty.of(partial(_rows_of, rows))
                with np.errstate(over="ignore", invalid="ignore"):  # who looks at the objective takes such a step back
                    u = np.ascontiguousarray(factor[rows, free])  # a view where all columns are free
                    residual = max(residual, _improve_block(x, means, workspace, u, free_of_other, own, largest))
                    if u.shape[1] < factor.shape[1]:
                        factor[rows, free] = u
                log_mean += sum_logs(x.ravel(), means.ravel())
            self.spare.append(buffers)
            return residual, log_mean

        chunks = self.workers.map(improve_chunk, self.parts[which])
        return max(residual for residual, _ in chunks), sum(log_mean for _, log_mean in chunks)

    def _take_buffers(self) -> Array:
        try:
            return self.spare.pop()
        except IndexError:
            return np.empty((4, ROWS * max(self.values.shape)))


def _parts_of(n_rows: int) -> list[list[slice]]:
    """Blocks of the rows, shared out among the chunks."""
    blocks = list(slices(n_rows, ROWS))
    numbers = np.array_split(np.arange(len(blocks)), min(MOST_CHUNKS, len(blocks)))
    return [[blocks[number] for number in part] for part in numbers]


def _rows_of(rows: slice, array: Array) -> Array:
    """Of (rows or 1, K)."""
    return array[rows] if len(array) > 1 else array


def _improve_block(
    x: Array, means: Array, workspace: list[Array], u: Array, other: Array, penalty: Penalty, largest: Array
) -> float:
    """Move some rows u and their means, in place; ``workspace`` for two arrays like x. Returns the KKT residual."""
    ratios, bends = workspace
    fill_bends(ratios, bends, x, means)
    numerators = ratios @ other + penalty.power / u
    linear = penalty.linear if penalty.curve is None else penalty.linear + penalty.curve * u
    slopes = linear - numerators
    of_cols, of_rows = bends.sum(axis=0), bends.sum(axis=1)
    total = of_cols.sum() or 1.0
    gram = (other.T * (of_cols / total)) @ other
    own = penalty.power / np.square(u) if penalty.power.any() else NOTHING
    if penalty.curve is not None:
        own = np.ascontiguousarray(np.broadcast_to(penalty.curve, u.shape)) + (own if own.size else 0.0)
    steps, lengths = np.empty_like(u), np.empty(len(u))
    solve_quadratic(steps, u, slopes, np.maximum(of_rows, LEAST_BEND * total), gram, own, ROUNDS)
    changes = np.dot(steps, other.T, out=ratios)
    step_lengths(lengths, u, steps, slopes, penalty.prior, bends, changes, means)
    residual = _residual(u, numerators, linear, largest)
    advance(u, means, steps, changes, lengths)
    return residual


def largest_cells(factor: Array) -> Array:
    """Of each column, which the residual's cells are relative to; infinite where all are at FLOOR, as good as 0."""
    return unless_off(factor.max(axis=0))


def unless_off(largest: Array) -> Array:
    """The columns' largest cells; infinite for those that are off."""
    return np.where(largest > FLOOR, largest, np.inf)


def _residual(u: Array, numerators: Array, linear: Array, largest: Array) -> float:
    if u.size and linear.min() > 0.0 and largest.min() > 0.0:  # as below, with nothing left out
        return float(np.abs(np.minimum(u / largest, 1.0 - numerators / linear)).max())
    linear = np.broadcast_to(linear, u.shape)
    slope = 1.0 - np.divide(numerators, linear, out=np.ones_like(u), where=linear > 0)
    share = np.divide(u, largest, out=np.zeros_like(u), where=np.broadcast_to(largest > 0, u.shape))
    return float(np.abs(np.minimum(share, slope)).max(initial=0.0))


class LeastSquares:
    """Steps for squared error: a row goes to the minimum of its quadratic over cells >= 0, by coordinate descent.

    Rows share the second derivative where all cells weigh alike (Cichocki and Phan 2009, who call one round HALS). With
    weights it is approximated by that of an outer product, and each row goes along its step as far as is best. Where a
    component's other factor is off, only the prior says where its cells go; without one they stay.
    """

    def __init__(self, squares: Squares, workers: Workers, is_refit: bool):
        self.squares, self.workers, self.is_refit = squares, workers, is_refit

    def improve(
        self, which: int, factor: Array, other: Array, penalty: Penalty, free: slice = slice(None)
    ) -> tuple[float, None]:
        """Move the ``free`` columns of W (``which`` 0) or Ht (1), in place; ``penalty`` is on them, without logarithms.

        Returns (KKT residual, at the optimum of a refit where that is reached, None: the squared error has to be
        looked at).
        """
        numerators, linear = (part[:, free] for part in self.squares.ratio_parts(which, factor, other))
        prior = penalty.noise * penalty.linear  # all is multiplied by the noise
        u, v = np.ascontiguousarray(factor[:, free]), np.ascontiguousarray(other[:, free])
        own = NOTHING
        if penalty.curve is not None:
            own = np.array(np.broadcast_to(penalty.noise * penalty.curve, u.shape))
            prior = prior + own * u
        linear = linear + prior
        weights, steps = self.squares.weights(which), np.empty_like(u)
        gram = v.T @ v if weights is None else (v.T * weights.of_cols) @ v
        bends = np.ones(len(u)) if weights is None else weights.of_rows
        off = gram.diagonal() <= OFF**2 * gram.diagonal().max(initial=0.0)
        gram[off], gram[:, off] = 0.0, 0.0
        numerators, linear = np.where(off, 0.0, numerators), np.where(off, prior, linear)
        slopes = linear - numerators

        def minimise(rows: slice) -> None:
            curve = own[rows] if own.size else NOTHING
            solve_quadratic(steps[rows], u[rows], slopes[rows], bends[rows], gram, curve, ROUNDS)
            if self.is_refit:
                refine_rows(steps[rows], u[rows], slopes[rows], bends[rows], gram, curve)
            if weights is not None:
                steps[rows] *= _lengths(steps[rows], slopes[rows], v, weights.cells[rows], curve)[:, None]

        list(self.workers.map(minimise, list(slices(len(u), ROWS))))
        new = np.maximum(u + steps, FLOOR)
        if self.is_refit and weights is None:  # a quadratic, of which the slopes where it ends are known
            linear = linear + (new - u) @ gram + (own * (new - u) if own.size else 0.0)
            factor[:, free] = new
            return _residual(new, numerators, linear, largest_cells(new)), None
        factor[:, free] = new
        return _residual(u, numerators, linear, largest_cells(u)), None


def _lengths(steps: Array, slopes: Array, other: Array, weights: Array, curve: Array) -> Array:
    """How far along its step each row's squared error falls, at most the whole of it: cells stay >= 0."""
    gains = -np.sum(slopes * steps, axis=1)
    curvature = np.sum(weights * np.square(steps @ other.T), axis=1)
    if curve.size:
        curvature += np.sum(curve * np.square(steps), axis=1)
    return np.divide(gains, curvature, out=np.ones_like(gains), where=gains < curvature)


Newton = ActiveSets | BlockNewton | CoordinateDescent | LeastSquares


def newton(structure: Factorisation, workers: Workers, sources: DenseSources | SparseSources, is_refit: bool) -> Newton:
    """The way to Newton steps that suits the data, and the model: ``is_refit`` is what `ActiveSets` is for."""
    if is_refit:
        return ActiveSets(structure, workers, compress(structure))
    if isinstance(sources, DenseSources):
        return BlockNewton(structure, workers)
    return CoordinateDescent(structure, workers, sources.layout)

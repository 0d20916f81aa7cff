"""Blocks of Gibbs sweeps without Python in between: what the kernels of :mod:`nmf_zoo.kernels.counts.sweeps` need.

For data of one chunk with known hyperparameters, and larger ones where trajectories run; others have their sweeps' work
spread over threads instead. With unknown ones trajectories take one sweep at a time from here, under the values of the
moment (:func:`with_priors`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
from scipy.special import polygamma

from nmf_zoo.inference.shared.factor_view import PriorCells
from nmf_zoo.inference.shared.layout import Layout, Weights, turn
from nmf_zoo.kernels.counts.gibbs import make_cell_scratch
from nmf_zoo.kernels.counts.joint import WeightArrays
from nmf_zoo.kernels.counts.sweeps import CountFactors, CountSweeps, SweepWorkspace
from nmf_zoo.kernels.hmc import poisson_rows
from nmf_zoo.kernels.hmc.adaptation import (
    FIRST_STEP,
    N_INFOS,
    PLAIN,
    SHORTEST,
    CountSide,
    Kept,
    SideTuning,
    SideWorkspace,
    SweepPlan,
    Tuning,
)
from nmf_zoo.kernels.hmc.poisson_rows import NO_CURVE, FactorRows, RowCounts
from nmf_zoo.structure import Array, Factor, Factorisation, Fixed, GammaPrior, LogLinearGammaPrior

MOST_NONZEROS, MOST_CELLS = 1 << 18, 1 << 22  # of trajectories: the table may have one or the other; 67 MB as two grids
MOST_WEIGHTS = 1 << 20  # of a mask or an exposure by cell: above it, products with it belong to BLAS


def is_small(structure: Factorisation, layout: Layout, weights: Weights, runs_hmc: bool) -> bool:
    """Whether sweeps run one after the other in a single call: data of one chunk, and more where trajectories run.

    Of weights of another class only the sums are known.
    """
    if not isinstance(weights, Weights):
        return False
    matrix = weights.matrix
    stored = 0 if matrix is None else matrix.nnz if isinstance(matrix, sp.csr_array) else matrix.size
    has_room = len(layout.values) <= MOST_NONZEROS or math.prod(structure.shape) <= MOST_CELLS
    fits = layout.n_chunks == 1 or (runs_hmc and has_room)
    return fits and stored <= MOST_WEIGHTS


def make_sweeps(
    structure: Factorisation,
    moves: tuple[str, ...],
    runs_hmc: bool,
    layout: Layout,
    weights: Weights,
    priors: PriorCells,
    followed: tuple[Array, Array],
) -> CountSweeps:
    """Everything that sweeps read, as the kernels take it."""
    arrays, own = weight_arrays(weights), PriorCells(*map(_as_own, priors))
    draws_W, draws_H = not structure.W.is_fixed, not structure.H.is_fixed
    scales, shears = (draws_W and draws_H and move in moves for move in ("scale", "shear"))
    return CountSweeps(
        plan=SweepPlan(draws_W, draws_H, scales, shears and structure.rank > 1, runs_hmc),
        layout=layout,
        weights=arrays,
        priors=own,
        by_component=_by_component(priors),
        followed=followed,
        sides=make_sides(structure, layout, own),
    )


def with_priors(sweeps: CountSweeps, priors: PriorCells) -> CountSweeps:
    """The same sweeps under other values of the hyperparameters."""
    own = PriorCells(*map(_as_own, priors))
    of_W, of_H = (
        side._replace(prior_rate=blocks_of(rate, side.prior_rate.shape[2], 1.0))
        for side, rate in zip(sweeps.sides, (own.rate_w, own.rate_h), strict=True)
    )
    return sweeps._replace(priors=own, by_component=_by_component(own), sides=(of_W, of_H))


def _by_component(priors: PriorCells) -> tuple[Array, ...]:
    return tuple(_as_own(cells.T) for cells in priors[:4])


def _as_own(array: Array) -> Array:
    """A contiguous copy, so that kernels are compiled for one kind of array."""
    return np.array(array, dtype=np.float64, order="C")


def with_multipliers(sweeps: CountSweeps, table: Array, batch: Array) -> CountSweeps:
    """The same sweeps of other exposures: ``table`` (F, B), whose column ``batch`` (N,) tells for each sample.

    Weights by cell are those of ``sweeps``, times it.
    """
    weights = sweeps.weights
    if weights.matrix.size:
        new = weights._replace(matrix=weights.matrix * np.take(table, batch, axis=1))
    elif weights.indptr.size:
        rows = np.repeat(np.arange(len(table)), np.diff(weights.indptr))
        new = weights._replace(values=weights.values * table[rows, batch[weights.indices]])
    else:
        scratch = np.empty((table.shape[1], sweeps.priors.shape_w.shape[1]))
        new = weights._replace(of_batches=_as_own(table), batch=batch, sums=scratch)
    return sweeps._replace(weights=new)


def weight_arrays(weights: Weights) -> WeightArrays:
    """The weights as kernels take them."""
    matrix, indptr, indices, values = np.empty((0, 0)), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
    if isinstance(weights.matrix, sp.csr_array):
        sparse = weights.matrix
        indptr, indices, values = sparse.indptr.astype(np.int64), sparse.indices.astype(np.int32), _as_own(sparse.data)
    elif weights.matrix is not None:
        matrix = _as_own(weights.matrix)
    return WeightArrays(
        of_features=_as_own(weights.of_features.ravel()),
        of_samples=_as_own(weights.of_samples.ravel()),
        matrix=matrix,
        indptr=indptr,
        indices=indices,
        values=values,
        of_batches=np.empty((0, 0)),
        batch=np.empty(0, np.int64),
        sums=np.empty((0, 0)),
    )


def make_workspace(sweeps: CountSweeps, factors: CountFactors) -> SweepWorkspace:
    """Scratch of one chain."""
    layout, (n_features, rank), n_samples = sweeps.layout, factors.W.shape, len(factors.Ht)
    W, H = map(make_side_workspace, sweeps.sides, (sweeps.priors.shape_w, sweeps.priors.shape_h))
    return SweepWorkspace(
        make_cell_scratch(layout, rank),
        np.empty((n_features, rank)),
        np.empty((n_features, rank)),
        np.empty((n_samples, rank)),
        np.empty((n_samples, rank)),
        np.empty((rank, n_features)),
        np.empty((rank, n_samples)),
        np.empty((3, rank)),
        np.empty(len(layout.values)),
        (W, H),
    )


def make_kept(structure: Factorisation, followed: tuple[Array, Array], n_kept: int) -> Kept:
    """Scratch for the kept draws of a block; ``followed``: rows and columns of the cells of W H that are reported."""
    (n_features, n_samples), rank = structure.shape, structure.rank
    return Kept(
        np.empty((n_kept, n_features, rank)),
        np.empty((n_kept, n_samples, rank)),
        np.empty((n_kept, len(followed[0]))),
        np.empty(n_kept),
        np.empty((n_kept, N_INFOS)),
    )


# -- what trajectories of rows need ----------------------------------------------------------------------------------


LEAST_COUNTS = 0.4  # per cell of the factors and unit of the prior variance of its logarithm
MOST_LISTED = 1 << 15  # of counts too sparse for a grid: of more nothing was measured, and allocation has threads there
LEAST_FILLED = 0.1  # share of non-zero cells from which on a grid is faster than a list
LANES, BLOCK_CELLS, NARROWEST, WIDEST = 8, 1 << 15, 32, 256  # a block's cells stay in cache
NO_GRID = np.empty((0, 0, 0))
Blocks = tuple[int, int, int]  # a shape: blocks of rows, components, rows of a block


def trajectories_pay(structure: Factorisation, layout: Layout, values: Mapping[str, Array]) -> bool:
    """Whether trajectories beat allocation: where the data say enough of every cell of the factors.

    With few counts per cell allocation moves far, and with small prior shapes cells lie along logarithms so wide that
    trajectories don't cross them. ``python -m benchmarks trajectories`` shows both ways side by side. ``values`` are
    those of unknown hyperparameters, a guess.
    """
    if len(layout.values) > MOST_LISTED and not is_filled(structure, layout):
        return False
    free = [factor for factor in (structure.W, structure.H) if not factor.is_fixed]
    n_cells = sum(factor.free_shape[0] * factor.free_shape[1] for factor in free)
    spread = sum(float(np.sum(_spread_of_logs(factor, values))) for factor in free)
    return float(layout.values.sum()) >= LEAST_COUNTS * max(spread, n_cells)


def _spread_of_logs(factor: Factor, values: Mapping[str, Array]) -> Array:
    """Prior variance of every cell's logarithm; of a factor without a prior as if its shape were 1."""
    is_gamma = isinstance(factor.prior, GammaPrior | LogLinearGammaPrior)
    shape = factor.prior.shape_and_rate(values)[0] if is_gamma else 1.0
    return np.broadcast_to(polygamma(1, shape), factor.free_shape)


def is_filled(structure: Factorisation, layout: Layout) -> bool:
    """Whether the counts are best kept as a grid."""
    return len(layout.values) >= LEAST_FILLED * structure.shape[0] * structure.shape[1]


def make_sides(structure: Factorisation, layout: Layout, priors: PriorCells) -> tuple[CountSide, CountSide]:
    """W's and H's."""
    dense = is_filled(structure, layout)
    return (
        make_side(structure, layout, priors.rate_w, dense, of_features=True),
        make_side(structure, layout, priors.rate_h, dense, of_features=False),
    )


def make_side(structure: Factorisation, layout: Layout, prior_rate: Array, dense: bool, of_features: bool) -> CountSide:
    """One factor's side: as a grid if ``dense``, else as a list; ``prior_rate`` (rows, K)."""
    n_features, n_samples = structure.shape
    n_rows, n_cells = (n_features, n_samples) if of_features else (n_samples, n_features)
    width = block_width(n_rows, n_cells if dense else BLOCK_CELLS // WIDEST)
    along = layout if layout.by_features == of_features else turn_layout(layout, n_rows)
    rates = blocks_of(prior_rate, width, 1.0)
    if not dense:
        return CountSide(RowCounts(NO_GRID, NO_GRID, along), rates, n_rows)
    rows = np.repeat(np.arange(n_rows), np.diff(along.indptr))
    grid, offset = np.zeros((rates.shape[0], n_cells, width)), NO_GRID
    grid[rows // width, along.indices, rows % width] = along.values
    ratio = _offsets(structure)
    if ratio is not None:
        offset = blocks_of(ratio if of_features else ratio.T, width, 1.0)
    return CountSide(RowCounts(grid, offset, along), rates, n_rows)


def _offsets(structure: Factorisation) -> Array | None:
    """Background over exposure, (F, N), None for zeros; 1 where a known factor lets nothing but 0 be counted.

    There the mean would be 0, and its gradient 0 / 0.
    """
    ratio, silent = structure.background_ratio(), np.zeros(structure.shape, dtype=bool)
    for axis, factor in ((1, structure.W), (0, structure.H)):
        if isinstance(factor.prior, Fixed):
            silent |= ~np.any(factor.prior.value, axis=axis, keepdims=True)
    if not silent.any():
        return ratio
    background = np.zeros(()) if ratio is None else ratio
    return np.where(silent & (background == 0.0), 1.0, background)


def block_width(n_rows: int, n_cells: int) -> int:
    """Rows of a block: about equal in all blocks, a multiple of eight."""
    most = int(np.clip(BLOCK_CELLS // max(n_cells, 1), NARROWEST, WIDEST))
    n_blocks = -(-n_rows // most)
    return -(-n_rows // (n_blocks * LANES)) * LANES


def blocks_of(table: Array, width: int, idle: float) -> Array:
    """(rows, K) to (blocks, K, width), the last block filled up."""
    n_rows, n_columns = table.shape
    n_blocks = -(-n_rows // width)
    full = np.full((n_blocks * width, n_columns), idle)
    full[:n_rows] = table
    return np.ascontiguousarray(full.reshape(n_blocks, width, n_columns).transpose(0, 2, 1))


def turn_layout(layout: Layout, n_major: int) -> Layout:
    """The same cells in one chunk, compressed along the other side."""
    return turn(layout, n_major)._replace(chunks=np.array([0, n_major], np.int64))


def has_masses(structure: Factorisation) -> bool:
    """Whether a K x K mass for every row is small next to the counts' cells."""
    rows, rank = sum(structure.shape), structure.rank
    return rows * rank * rank <= max(4 * structure.shape[0] * structure.shape[1], 1 << 16)


def make_tuning(of_W: Blocks, of_H: Blocks, masses: bool, scales: bool = True) -> Tuning:
    """At the start of a chain, for rows in blocks (blocks, K, width); whether there are masses, and scales."""
    pace = np.zeros(8)
    pace[3] = PLAIN
    W, H = (_make_side_tuning(shape, masses, shape if scales else (0, 0, 0)) for shape in (of_W, of_H))
    return Tuning(W, H, pace)


def _make_side_tuning(shape: Blocks, masses: bool, scaled: Blocks) -> SideTuning:
    blocks, rank, width = shape
    root, curvature = np.zeros((1, 0, 0, 0)), np.zeros((0, 0, 0, 0))
    if masses:
        root = np.array(np.broadcast_to(np.eye(rank)[:, :, None], (blocks, rank, rank, width)), order="C")
        curvature = np.zeros_like(root)
    return SideTuning(
        scale=np.ones(scaled),
        root=root,
        step=np.full((blocks, width), FIRST_STEP),
        length=np.array([SHORTEST]),
        curvature=curvature,
        width=np.zeros(scaled),
        chance=np.zeros((blocks, width)),
    )


def make_side_workspace(side: CountSide, shape: Array) -> SideWorkspace:
    """Scratch for a side's rows; ``shape`` (rows, K) is the prior's."""
    blocks, rank, width = side.prior_rate.shape
    most = side.data.grid.shape[1] * width
    if not most:
        ends = side.data.layout.indptr[np.minimum(np.arange(blocks + 1) * width, side.n_rows)]
        most = int(np.diff(ends).max())
    ones = np.ones((blocks, rank, width))
    chance, free = np.zeros((blocks, width)), np.ones(rank, bool)
    rows = FactorRows(ones, blocks_of(shape, width, 1.0), ones.copy(), chance, NO_CURVE, free)
    return SideWorkspace(rows, poisson_rows.make_workspace(most, rank, width))

"""Blocks of Gibbs sweeps without Python in between: what the kernels of :mod:`nmf_zoo.kernels.sweeps` need.

For data of one chunk with known hyperparameters; larger data have their sweeps' work spread over threads instead. With
unknown ones trajectories take one sweep at a time from here, under the values of the moment (:func:`with_priors`).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from nmf_zoo.inference.layout import Layout, Weights
from nmf_zoo.inference.prior_cells import PriorCells
from nmf_zoo.inference.trajectories import blocks_of, make_side_room, make_sides
from nmf_zoo.kernels.denominators import WeightArrays
from nmf_zoo.kernels.gibbs import make_cell_scratch
from nmf_zoo.kernels.sweeps import Cells, Factors, Kept, Plan, Room, Sweeps
from nmf_zoo.structure import Array, Factorisation

N_INFOS = 5  # size of the scale move; acceptance probability and steps of the trajectories of W and H
MOST_NONZEROS = 1 << 18  # beyond, threads are worth more than trajectories
MOST_WEIGHTS = 1 << 20  # of a mask or an exposure by cell: above it, products with it belong to BLAS


def is_small(layout: Layout, weights: Weights, walks: bool) -> bool:
    """Whether sweeps run one after the other in a single call: data of one chunk, and more where trajectories run.

    Of weights of another class only the sums are known.
    """
    if not isinstance(weights, Weights):
        return False
    matrix = weights.matrix
    stored = 0 if matrix is None else matrix.nnz if isinstance(matrix, sp.csr_array) else matrix.size
    fits = layout.n_chunks == 1 or (walks and len(layout.values) <= MOST_NONZEROS)
    return fits and stored <= MOST_WEIGHTS


def make_sweeps(
    structure: Factorisation,
    moves: tuple[str, ...],
    walks: bool,
    layout: Layout,
    weights: Weights,
    priors: PriorCells,
    followed: tuple[Array, Array],
) -> Sweeps:
    """Everything that sweeps read, as the kernels take it."""
    arrays, own = weight_arrays(weights), PriorCells(*map(_as_own, priors))
    draws_W, draws_H = not structure.W.is_fixed, not structure.H.is_fixed
    scales, shears = (draws_W and draws_H and move in moves for move in ("scale", "shear"))
    return Sweeps(
        plan=Plan(draws_W, draws_H, scales, shears and structure.rank > 1, walks),
        layout=layout,
        weights=arrays,
        priors=own,
        by_component=_by_component(priors),
        followed=followed,
        imputed=imputed_cells(structure),
        sides=make_sides(structure, layout, own),
    )


def with_priors(sweeps: Sweeps, priors: PriorCells) -> Sweeps:
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


def weight_arrays(weights: Weights) -> WeightArrays:
    """The weights as kernels take them."""
    matrix, indptr, indices, values = np.empty((0, 0)), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
    if isinstance(weights.matrix, sp.csr_array):
        sparse = weights.matrix
        indptr, indices, values = sparse.indptr.astype(np.int64), sparse.indices.astype(np.int32), _as_own(sparse.data)
    elif weights.matrix is not None:
        matrix = _as_own(weights.matrix)
    return WeightArrays(
        _as_own(weights.of_features.ravel()), _as_own(weights.of_samples.ravel()), matrix, indptr, indices, values
    )


def imputed_cells(structure: Factorisation) -> Cells:
    """The cells that the model draws itself; none when it does not."""
    if structure.imputed is None:
        return Cells(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))
    rows, cols = (np.array(places, np.int64) for places in (structure.imputed.rows, structure.imputed.cols))
    likelihood = structure.likelihood
    exposure = structure.at_cells(likelihood.exposure, rows, cols, 1.0)
    return Cells(rows, cols, exposure, structure.at_cells(likelihood.background, rows, cols, 0.0))


def make_room(sweeps: Sweeps, factors: Factors) -> Room:
    """Scratch of one chain."""
    layout, (n_features, rank), n_samples = sweeps.layout, factors.W.shape, len(factors.Ht)
    W, H = map(make_side_room, sweeps.sides, (sweeps.priors.shape_w, sweeps.priors.shape_h))
    return Room(
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


def make_kept(sweeps: Sweeps, factors: Factors, n_kept: int) -> Kept:
    """Room for the kept draws of a block."""
    return Kept(
        np.empty((n_kept, *factors.W.shape)),
        np.empty((n_kept, *factors.Ht.shape)),
        np.empty((n_kept, len(sweeps.imputed.rows)), np.int64),
        np.empty((n_kept, len(sweeps.followed[0]))),
        np.empty(n_kept),
        np.empty((n_kept, N_INFOS)),
    )

"""Newton steps of W from second derivatives that come in pieces: of which components, from which cells, and where to.

What :mod:`nmf_zoo.inference.counts.em_blocks` adds up over blocks, for :mod:`nmf_zoo.kernels.counts.curvature`.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.inference.counts.newton import Penalty
from nmf_zoo.inference.shared.factor_view import Side
from nmf_zoo.inference.shared.layout import SparseSources, Statistics
from nmf_zoo.kernels.counts.curvature import gather_curvature, newton_rows, scratch_rows
from nmf_zoo.kernels.simd.lanes import padded_zeros
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array

MOST_ACTIVE = 64  # components: a row of them is one tile in the kernel's registers
MOST_PAIRS = 8  # for each component: the curvature is no larger than so many arrays like W
STUCK = 1e-6  # of a column's largest: cells below it grow too slowly by EM


class CurvedSources(SparseSources):
    """Expected sources of a list of cells, features first, and the curvature of their features' rows of W."""

    def gather_curved(
        self, W: Array, Ht: Array, active: Array, others: Array, so_far: Array | None = None
    ) -> tuple[Statistics, Array]:
        """(those of W, curvature); see :mod:`nmf_zoo.kernels.counts.curvature` for ``active`` and ``others``.

        The curvature is added to that of other cells ``so_far``, in place.
        """
        W, Ht = np.ascontiguousarray(W), np.ascontiguousarray(Ht)
        layout, rows, met = self.layout, self._pad(Ht), active.shape[1]
        of_W, curvature = np.empty_like(W), np.zeros((len(W), n_pairs(met))) if so_far is None else so_far

        def gather_chunk(chunk: int) -> tuple[float, float]:
            scratch = padded_zeros(scratch_rows(met), met, self.dtype)
            return gather_curvature(layout, W, rows, chunk, (active, others), of_W, curvature, scratch)

        chunks = self.workers.map(gather_chunk, range(layout.n_chunks))
        if any(lost for _, lost in chunks):
            return self.gather(W, Ht, "W"), curvature
        return Statistics(of_W, None, sum(log_mean for log_mean, _ in chunks)), curvature


def n_pairs(n: int) -> int:
    """Of so many components, each with itself, too."""
    return n * (n + 1) // 2


def n_active(n_free: int) -> int:
    """Of how many components the curvature of a row is kept: all, or as many as memory is meant for."""
    return next(n for n in range(min(n_free, MOST_ACTIVE), 0, -1) if n == 1 or n_pairs(n) <= MOST_PAIRS * n_free)


def choose_active(side: Side, factor: Array, plain: Array, weights: Array) -> Array:
    """(rows, active): the free components of each row that hold most of its counts, in their order.

    As EM's update, ``plain``, times its denominators, ``weights``, has these. First come, of cells as good as 0,
    those that want to grow: EM leaves them there.
    """
    free = np.arange(factor.shape[1], dtype=np.int32)[side.free]
    count = n_active(len(free))
    if count == len(free):
        return np.tile(free, (len(factor), 1))
    own, plain = factor[:, side.free], plain[:, side.free]
    is_stuck = (plain > own) & (own <= STUCK * own.max(axis=0))
    scores = np.where(is_stuck, np.inf, plain * weights[:, side.free])
    return free[np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)]


def without(side: Side, factor: Array, active: Array) -> Array:
    """The factor where a component is neither known nor active, 0 elsewhere; no rows where there is none."""
    free = np.arange(factor.shape[1])[side.free]
    if active.shape[1] == len(free):
        return np.empty((0, factor.shape[1]))
    others = np.zeros(factor.shape)
    others[:, side.free] = factor[:, side.free]
    np.put_along_axis(others, active.astype(np.intp), 0.0, axis=1)
    return others


def step_by_curvature(
    workers: Workers,
    plain: Array,
    old: Array,
    sources: Array,
    curvature: Array,
    active: Array,
    penalty: Penalty,
    is_whole: bool,
) -> Array:
    """EM's update ``plain`` of a factor, with Newton steps of its active cells in the place of EM's.

    ``is_whole`` : means have no part but this factor's free components, so that steps start at rows' best multiples
    """
    new, linear, prior = plain.copy(), penalty.linear, penalty.prior
    scale = best_multiples(old, sources, penalty) if is_whole else np.ones(len(old))
    start = np.where(linear > 0.0, scale[:, None], 1.0) * old, scale
    workers.map_rows(
        lambda *rows: newton_rows(new, start, sources, curvature, active, linear, prior, rows),
        curvature,
    )
    return new


def best_multiples(factor: Array, sources: Array, penalty: Penalty) -> Array:
    """(rows,): what each row times it is best at, given the expected ``sources`` of its cells; 1 where none is."""
    total, rise = np.sum(sources + penalty.power, axis=1), np.sum(penalty.linear * factor, axis=1)
    divisor = rise
    if penalty.curve is not None:
        divisor = 0.5 * (rise + np.sqrt(rise**2 + 4.0 * np.sum(penalty.curve * factor**2, axis=1) * total))
    return np.divide(total, divisor, out=np.ones(len(factor)), where=(total > 0.0) & (rise > 0.0))

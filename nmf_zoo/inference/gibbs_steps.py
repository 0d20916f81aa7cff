"""The steps of a Gibbs sweep on data of any size: sources, factors, moves along the orbit.

:mod:`nmf_zoo.kernels.sweeps` takes the same steps with the same keys without Python, for small data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.layout import Layout
from nmf_zoo.inference.prior_cells import PriorCells
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.allocation import allocate_sources, make_scratch
from nmf_zoo.kernels.gibbs import draw_factor, draw_scales, move_shears
from nmf_zoo.kernels.streams import child
from nmf_zoo.kernels.sweeps import SCALES, SHEARS, apply_scales, pull_of_components
from nmf_zoo.kernels.tuning import Tuning
from nmf_zoo.structure import Array


class GibbsState(NamedTuple):
    """W (F, K), Ht (N, K), the hyperparameters by name, each side's counts by component, what trajectories learnt."""

    W: Array
    Ht: Array
    values: dict[str, Array]
    of_features: Array
    of_samples: Array
    tuning: Tuning | None


def draw_sources(layout: Layout, order: Array, workers: Workers, state: GibbsState, key: np.uint64) -> None:
    """Allocate all counts; chunks own their rows of the long side, and sum into the short side in order.

    ``order`` as :func:`~nmf_zoo.inference.layout.by_count` gives it.
    """
    major, minor = layout.sides(state.W, state.Ht)
    of_major, of_minor = layout.sides(state.of_features, state.of_samples)

    def chunk_counts(chunk: int) -> tuple[int, Array]:
        part, scratch = np.zeros_like(of_minor), make_scratch(layout, major.shape[1], order)
        return allocate_sources(layout, major, minor, chunk, of_major, part, scratch, key), part

    of_minor[:] = 0.0
    failures = 0

    def add(found: tuple[int, Array]) -> None:
        nonlocal failures, of_minor
        failures += found[0]
        of_minor += found[1]

    workers.fold(chunk_counts, range(layout.n_chunks), add)
    check_allocation(failures)


def check_allocation(failures: int) -> None:
    """Stop where counts could not be allocated."""
    if failures:
        raise RunFailed(
            f"gibbs: {failures} counts lie where W H is 0 or not finite: give a start with positive W H there"
        )


def draw_side(
    workers: Workers, out: Array, shape: tuple[Array, Array], rate: tuple[Array, Array], key: np.uint64
) -> None:
    """Draw one factor (rows, K) from its gamma conditional, prior and counts added up, rows shared by the threads."""

    shapes, rates = np.empty_like(out), np.empty_like(out)

    def draw_rows(first: int, last: int) -> None:
        for cells, (of_prior, of_data) in ((shapes, shape), (rates, rate)):
            data = of_data[first:last] if len(of_data) > 1 else of_data
            np.add(of_prior[first:last], data, out=cells[first:last])
        draw_factor(out, shapes, rates, first, last, key)

    workers.map_rows(draw_rows, out)


def move_along_orbit(moves: tuple[str, ...], state: GibbsState, priors: PriorCells, key: np.uint64) -> float:
    """Move along the orbit of equal W H, in place; returns the size of the scale move."""
    W, Ht, scale_move = state.W, state.Ht, 0.0
    if "scale" in moves:
        scale = np.empty(W.shape[1])
        a, b = np.empty_like(scale), np.empty_like(scale)
        pull_of_components(a, priors.rate_w, W)
        pull_of_components(b, priors.rate_h, Ht)
        draw_scales(scale, priors.tilt, a, b, child(key, SCALES))
        scale_move = apply_scales(W, Ht, scale)
    if "shear" in moves and W.shape[1] > 1:
        by_component = np.ascontiguousarray(W.T), np.ascontiguousarray(Ht.T)
        move_shears(*by_component, *(array.T for array in priors[:4]), child(key, SHEARS))
        W[:], Ht[:] = by_component[0].T, by_component[1].T
    return scale_move

"""The steps of a composite Gibbs sweep: powers and factors in chunks of frames, moves along the orbit, densities."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.itakura_saito.spectra import Spectra
from nmf_zoo.inference.sides import Side, two_sides
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.composite import (
    Factors,
    Given,
    apply_scales,
    draw_frames,
    draw_scales,
    draw_weights,
    log_likelihood,
    make_room,
)
from nmf_zoo.kernels.inverse_shears import move_inverse_shears
from nmf_zoo.kernels.power_sweeps import POWERS, SCALES, SHEARS, WEIGHTS
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Factorisation

MOST_CHUNKS, CHUNK_CELLS = 8, 1 << 16  # cells times components; chunks depend on the data alone, not on the threads


class GibbsState(NamedTuple):
    """Wt (K, F), Ht (N, K), the hyperparameters by name, and what trajectories learnt."""

    Wt: Array
    Ht: Array
    values: dict[str, Array]
    tuning: Any

    @property
    def factors(self) -> Factors:
        """The same factors, as the kernels take them."""
        return Factors(self.Wt, self.Ht)


class Frames(NamedTuple):
    """The data in chunks of frames, and who works on them.

    Attributes
    ----------
    spectra : Spectra
    chunks : (first, last) frame of each
    workers : threads
    """

    spectra: Spectra
    chunks: list[tuple[int, int]]
    workers: Workers


def cut_frames(spectra: Spectra, rank: int, workers: Workers) -> Frames:
    """Cut the frames into chunks, however many threads there are."""
    n_frames, n_frequencies = spectra.power.shape
    n_chunks = int(np.clip(n_frames * n_frequencies * rank // CHUNK_CELLS, 1, min(MOST_CHUNKS, max(n_frames, 1))))
    return Frames(spectra, list(pairwise(n_frames * chunk // n_chunks for chunk in range(n_chunks + 1))), workers)


class ByComponent(NamedTuple):
    """Shape and scale of the priors' cells, components as rows: W's (K, F), H's (K, N)."""

    shape_w: Array
    scale_w: Array
    shape_h: Array
    scale_h: Array


def priors_by_component(structure: Factorisation, values: Mapping[str, Array]) -> ByComponent:
    """The priors' cells, given the values of the unknown hyperparameters."""
    W, H = two_sides(structure)
    pairs = _prior_cells(W, structure.W.shape, values), _prior_cells(H, structure.H.shape[::-1], values)
    return ByComponent(*(np.array(cells.T, order="C") for pair in pairs for cells in pair))


def _prior_cells(side: Side, shape: tuple[int, int], values: Mapping[str, Array]) -> tuple[Array, Array]:
    """Shape and scale of every cell, (rows, K); of a fixed factor, those of a flat one, which nobody uses."""
    pair = (-1.0, 0.0) if side.is_fixed else side.shape_and_scale(values)
    shapes, scales = (np.broadcast_to(cells, shape) for cells in pair)
    return shapes, scales


def given_powers(priors: ByComponent, spectra: Spectra) -> Given:
    """The factors' inverse gammas given the powers."""
    of_frequencies, of_frames = spectra.n_seen
    tilt = priors.shape_h.sum(axis=1) - priors.shape_w.sum(axis=1)
    shape_h, scale_h = (np.array(cells.T, order="C") for cells in (priors.shape_h, priors.scale_h))
    return Given(priors.shape_w + of_frequencies, priors.scale_w, shape_h + of_frames[:, None], scale_h, tilt)


def draw_by_components(
    frames: Frames, factors: Factors, given: Given, draws: tuple[bool, bool], key: np.uint64
) -> None:
    """Powers of the components, H and W, in place; ``draws``: whether W and H are drawn.

    Chunks own their frames, and their sums for W are added in order.
    """
    of_weights, own = np.zeros_like(factors.Wt), child(key, POWERS)

    def draw_chunk(chunk: tuple[int, int]) -> Array:
        room = make_room(*factors.Wt.shape)
        draw_frames(frames.spectra, factors, given, draws, chunk, room, own)
        return room.of_weights

    def add(sums: Array) -> None:
        np.add(of_weights, sums, out=of_weights)

    frames.workers.fold(draw_chunk, frames.chunks, add)
    if draws[0]:
        draw_weights(factors.Wt, of_weights, given, child(key, WEIGHTS))


def move_along_orbit(
    moves: tuple[str, ...], factors: Factors, given: Given, priors: ByComponent, key: np.uint64
) -> float:
    """Move along the orbit of equal W H, in place; returns the size of the scale move."""
    scale_move, rank = 0.0, len(factors.Wt)
    if "scale" in moves:
        scale = np.empty(rank)
        draw_scales(scale, factors, given, child(key, SCALES))
        scale_move = apply_scales(factors, scale)
    if "shear" in moves and rank > 1:
        H = np.ascontiguousarray(factors.Ht.T)
        move_inverse_shears(factors.Wt, H, *priors, child(key, SHEARS))
        factors.Ht[:] = H.T
    return scale_move


def log_likelihood_of(frames: Frames, factors: Factors) -> float:
    """-sum (log l + p / l) over the observed cells."""

    def of_chunk(chunk: tuple[int, int]) -> float:
        return log_likelihood(frames.spectra, factors, chunk, make_room(*factors.Wt.shape))

    return sum(frames.workers.map(of_chunk, frames.chunks))


def log_priors(structure: Factorisation, W: Array, H: Array, values: Mapping[str, Array]) -> float:
    """Log-density of the factors, the hyperparameters and the cells that the model draws itself."""
    total = structure.W.log_density(W, values) + structure.H.log_density(H, values)
    for name, unknown in structure.unknowns.items():
        total += float(np.sum(unknown.prior.log_density(np.asarray(values[name]))))
    return total + structure.log_imputed(W, H, values)


def draw_imputed(structure: Factorisation, W: Array, H: Array, key: np.uint64) -> Array:
    """The cells that the model draws itself, given their means."""
    assert structure.imputed is not None
    rows, cols = structure.imputed.rows, structure.imputed.cols
    generator = np.random.Generator(np.random.Philox(key=int(key)))
    return structure.mean_at(W, H, rows, cols) * generator.standard_exponential(len(rows))

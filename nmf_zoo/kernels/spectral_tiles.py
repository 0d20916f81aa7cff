"""A power spectrogram's frequencies in tiles, one row in the SIMD registers each, and room for a few of its frames.

What belongs to a tile is contiguous: W is (tiles K, lanes), tile after tile. The last tile has padding, where W is 0,
the mean 1 and the power 0, so that it adds nothing to any sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.factor_steps import Slopes, make_slopes
from nmf_zoo.kernels.lanes import Padded, padded_zeros

FRAMES = 4  # that are taken together
LANES = 8  # of a vector
WIDTHS = (8, 6)  # vectors of a tile: few, since each is compiled anew


class OfW(NamedTuple):
    """Sums over frames, laid out like W, in tiles of half the width; without rows when they are not wanted."""

    pull: Padded
    drag: Padded


class Room(NamedTuple):
    """Room for a few frames, and the divergence so far by frequency.

    Attributes
    ----------
    power, base, count : (tiles FRAMES, lanes) of the frames, tile by tile: power; background, and 1 more where a cell
        is not seen, as in the padding; 1, but 0 where a cell is not seen
    edge : (tiles, lanes) 0, but 1 in the padding
    inverse : (tiles FRAMES, lanes) 1 / l
    pull : (FRAMES, lanes) p / l^2 in one tile
    fit : (tiles, lanes) sum of p / l
    product, exponent : (tiles FRAMES lanes,) of the 1 / l: mantissas multiplied, exponents added
    folded : (2 FRAMES K + 1, LANES) sums over frequencies, of one lane each; the last row is ones
    h : (FRAMES, K); slopes : of as many cells
    """

    power: Padded
    base: Padded
    count: Padded
    edge: Padded
    inverse: Padded
    pull: Padded
    fit: Padded
    product: np.ndarray
    exponent: np.ndarray
    folded: Padded
    h: np.ndarray
    slopes: Slopes


def tiles_of(F: int) -> tuple[int, int]:
    """(tiles, vectors of a tile) for F frequencies."""
    vectors = -(-F // LANES)
    width = min(WIDTHS, key=lambda width: -(-vectors // width) * width)
    return -(-vectors // width), width


def in_tiles(rows: int, width: int, dtype: Any = np.float64) -> Padded:
    """Zeros (rows, lanes of one tile), on a boundary of 64 bytes."""
    return Padded(padded_zeros(rows, width * LANES, dtype).values, (0,) * width)


def tile_spectra(table: np.ndarray) -> Padded:
    """A table (rows, F), such as W, tile after tile: (tiles rows, lanes)."""
    rows, F = table.shape
    tiles, width = tiles_of(F)
    out, lanes = in_tiles(tiles * rows, width), width * LANES
    whole = np.zeros((rows, tiles * lanes))
    whole[:, :F] = table
    out.values[:] = whole.reshape(rows, tiles, lanes).swapaxes(0, 1).reshape(-1, lanes)
    return out


def untile(tiled: Padded, F: int) -> np.ndarray:
    """(rows, F) from :func:`tile_spectra`."""
    tiles, lanes = tiles_of(F)[0], tiled.values.shape[1]
    return tiled.values.reshape(tiles, -1, lanes).swapaxes(0, 1).reshape(-1, tiles * lanes)[:, :F].copy()


def sums_of_W(rank: int, F: int) -> OfW:
    """Sums of 0; without rows for a rank of 0. In half tiles, since four frames of these fit into the registers."""
    tiles, width = tiles_of(F)
    return OfW(*(Padded(in_tiles(tiles * rank, width).values, (0,) * (width // 2)) for _ in range(2)))


def make_room(rank: int, F: int) -> Room:
    """Room with a divergence of 0."""
    tiles, width = tiles_of(F)
    lanes = width * LANES
    power, base, count = (in_tiles(tiles * FRAMES, width) for _ in range(3))
    inverse, edge, pull, fit = (in_tiles(rows, width) for rows in (tiles * FRAMES, tiles, FRAMES, tiles))
    folded = padded_zeros(2 * FRAMES * rank + 1, LANES, np.float64)
    edge.values[-1, F - (tiles - 1) * lanes :], folded.values[-1] = 1.0, 1.0
    logs = np.ones(inverse.values.size), np.zeros(inverse.values.size, np.int64)
    h, slopes = np.zeros((FRAMES, rank)), make_slopes(FRAMES * rank)
    return Room(power, base, count, edge, inverse, pull, fit, *logs, folded, h, slopes)

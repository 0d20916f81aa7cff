"""Frequencies of a power spectrogram in SIMD tiles, and room for a block of its frames.

A table over frequencies, such as W (K, F), gets columns of zeros up to whole tiles and a row of zeros where K is odd:
nothing that is added up changes. The number of tiles is odd, since rows that lie a power of 2 apart compete for a few
places of the nearest cache; and each table begins elsewhere in a page of memory, since a load waits for a store that is
still to come, such as that of a quotient, when their addresses agree in the lowest 12 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.lanes import PAGE_BYTES, Padded

FRAMES = 16  # of a block: W and its sums pass through the nearest cache once for all of them
LANES = 8  # of a vector
WIDTH = (0, 0)  # of a tile, in vectors: with four frames eight sums, enough to hide their latency
ONE_VECTOR = (0,)


class OfW(NamedTuple):
    """Sums over frames, laid out like W; without rows when they are not wanted."""

    pull: Padded
    drag: Padded


class Room(NamedTuple):
    """Room for a block of frames.

    Attributes
    ----------
    mean, pull : (FRAMES, F in tiles) l, then 1 / l; p / l^2
    h : (FRAMES, K or K + 1)
    """

    mean: Padded
    pull: Padded
    h: np.ndarray


def in_tiles(rows: int, F: int, shift: int = 0) -> Padded:
    """Zeros (rows, F up to an odd number of tiles) that begin ``shift`` bytes into a page."""
    tile = len(WIDTH) * LANES
    columns = (-(-F // tile) | 1) * tile
    raw = np.zeros(rows * columns + (PAGE_BYTES + shift) // 8)
    start = (-raw.ctypes.data % PAGE_BYTES + shift) // 8
    return Padded(raw[start : start + rows * columns].reshape(rows, columns), WIDTH)


def tile_spectra(table: np.ndarray) -> Padded:
    """A table (rows, F), such as W, with as many rows of zeros as make an even number."""
    rows, F = table.shape
    out = in_tiles(rows + rows % 2, F, 3072)
    out.values[:rows, :F] = table
    return out


def untile(tiled: Padded, rows: int, F: int) -> np.ndarray:
    """The first rows and frequencies of a table."""
    return tiled.values[:rows, :F].copy()


def sums_of_W(rank: int, F: int) -> OfW:
    """Sums of 0; without rows for a rank of 0."""
    return OfW(in_tiles(rank + rank % 2, F, 256), in_tiles(rank + rank % 2, F, 1280))


def make_room(rank: int, F: int) -> Room:
    """An empty room."""
    h = np.zeros((FRAMES, rank + rank % 2))
    return Room(in_tiles(FRAMES, F), in_tiles(FRAMES, F, 2048), h)

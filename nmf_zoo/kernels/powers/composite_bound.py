"""One pass over the cells of a power spectrogram for the variational bound of its composite model.

With E = E_q[.], G = 1 / E_q[1/.] and a known background b, the best auxiliary variables of a cell leave of its bound

    -log m - x / l,     m = sum_k E_w E_h + b,     l = sum_k G_w G_h + b,

and what q's update of a factor needs of the cells are the sums of E / m and of G x / l^2 over the other one's rows
(Hoffman, Blei & Cook 2010, section 3.1). Frames are rows; SIMD runs over the frequencies, and a block of frames shares
each load of W and of its sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.numerics.arrays import copy_table
from nmf_zoo.kernels.numerics.special import fast_log
from nmf_zoo.kernels.simd.lanes import PAGE_BYTES, Padded, add_scaled, load, nothing, store, tile_lanes

BLOCK = 8  # frames
WIDTH = (0, 0)  # of a tile of frequencies, in vectors: with four frames eight sums, enough to hide their latency
TILE = 16
SMALLEST, LARGEST = 1e-150, 1e300  # of m and l: the inverse of its square is finite; of x / l and x / l^2


class MeanPair(NamedTuple):
    """Of a factor, arithmetic E and harmonic G; or what they meet in the cells: the sums of E / m and of G x / l^2.

    Padded (K, F) for W and its sums, arrays (N, K) for H and its sums.
    """

    arithmetic: Any
    harmonic: Any


class FrameScratch(NamedTuple):
    """Scratch for a block of frames, (BLOCK, F) each: m, then 1 / m; l, then x / l^2; x."""

    arithmetic: Padded
    harmonic: Padded
    power: Padded


def spread(rows: int, frequencies: int, shift: int = 0) -> Padded:
    """Zeros (rows, frequencies up to whole tiles), that begin ``shift`` bytes into a page of memory."""
    columns = -(-frequencies // TILE) * TILE
    raw = np.zeros(rows * columns + (PAGE_BYTES + shift) // 8)
    start = (-raw.ctypes.data % PAGE_BYTES + shift) // 8
    return Padded(raw[start : start + rows * columns].reshape(rows, columns), WIDTH)


def make_cells(frequencies: int) -> FrameScratch:
    """Scratch for a block. What lies a multiple of a page after a quotient waits for the division, hence the shifts."""
    return FrameScratch(*(spread(BLOCK, frequencies, shift) for shift in (0, 1024, 2048)))


@kernel
def gather_features(sums, W, H, spectra, cells, start, stop):
    """Add frames start, ..., stop - 1 to the sums for W, a MeanPair of Padded (K, F).

    Returns their part of the bound, -sum (log m + x / l) over the observed cells.
    """
    total = 0.0
    rows_e, rows_g = np.zeros((BLOCK, H.arithmetic.shape[1])), np.zeros((BLOCK, H.arithmetic.shape[1]))
    for first in range(start, stop, BLOCK):
        n_frames = _take_rows(rows_e, rows_g, H, first, stop)
        _fill_means(cells, rows_e, rows_g, W)
        _take_frames(cells, spectra, first, n_frames)
        total += _sum_logs(cells, spectra, first, n_frames)
        total += _divide(cells, spectra, first, n_frames)
        _add_frames(sums.arithmetic, cells.arithmetic, rows_e)
        _add_frames(sums.harmonic, cells.harmonic, rows_g)
    return -total


@kernel
def gather_frames(sums, W, H, spectra, cells, start, stop):
    """Overwrite frames start, ..., stop - 1 of the sums for H, a MeanPair of (N, K)."""
    rows_e, rows_g = np.zeros((BLOCK, H.arithmetic.shape[1])), np.zeros((BLOCK, H.arithmetic.shape[1]))
    for first in range(start, stop, BLOCK):
        n_frames = _take_rows(rows_e, rows_g, H, first, stop)
        _fill_means(cells, rows_e, rows_g, W)
        _take_frames(cells, spectra, first, n_frames)
        _divide(cells, spectra, first, n_frames)
        _sum_frequencies(rows_e, W.arithmetic.values, cells.arithmetic.values)
        _sum_frequencies(rows_g, W.harmonic.values, cells.harmonic.values)
        copy_table(sums.arithmetic[first : first + n_frames], rows_e)
        copy_table(sums.harmonic[first : first + n_frames], rows_g)


@kernel
def _take_rows(rows_e, rows_g, H, first, stop):
    """Copy H's rows of a block, zeros beyond the last; returns how many there are."""
    n_frames = min(BLOCK, stop - first)
    for b in range(BLOCK):
        for k in range(rows_e.shape[1]):
            rows_e[b, k] = H.arithmetic[first + b, k] if b < n_frames else 0.0
            rows_g[b, k] = H.harmonic[first + b, k] if b < n_frames else 0.0
    return n_frames


@kernel
def _fill_means(cells, rows_e, rows_g, W):
    _multiply(cells.arithmetic, rows_e, W.arithmetic)
    _multiply(cells.harmonic, rows_g, W.harmonic)


@kernel
def _multiply(out, rows, W):
    """Overwrite out (BLOCK, F) with rows (BLOCK, K) @ W (K, F), four frames at a time."""
    for b in range(0, BLOCK, 4):
        for f in range(0, W.values.shape[1], tile_lanes(W)):
            one = two = three = four = nothing(load(W, 0, f))
            for k in range(rows.shape[1]):
                w = load(W, k, f)
                one = add_scaled(one, rows[b, k], w)
                two = add_scaled(two, rows[b + 1, k], w)
                three = add_scaled(three, rows[b + 2, k], w)
                four = add_scaled(four, rows[b + 3, k], w)
            store(out, b, f, one)
            store(out, b + 1, f, two)
            store(out, b + 2, f, three)
            store(out, b + 3, f, four)


@kernel
def _add_frames(sums, cells, rows):
    """Add rows.T (K, BLOCK) @ cells (BLOCK, F) to sums (K, F)."""
    for f in range(0, sums.values.shape[1], tile_lanes(sums)):
        for b in range(0, BLOCK, 4):
            one, two = load(cells, b, f), load(cells, b + 1, f)
            three, four = load(cells, b + 2, f), load(cells, b + 3, f)
            for k in range(rows.shape[1]):
                total = add_scaled(load(sums, k, f), rows[b, k], one)
                total = add_scaled(total, rows[b + 1, k], two)
                total = add_scaled(total, rows[b + 2, k], three)
                store(sums, k, f, add_scaled(total, rows[b + 3, k], four))


@in_lanes
def _take_frames(cells, spectra, first, n_frames):
    """Copy the power of a block's frames, and add their background to m and l."""
    m, low, x = cells.arithmetic.values, cells.harmonic.values, cells.power.values
    for b in range(n_frames):
        for f in range(spectra.power.shape[1]):
            x[b, f] = spectra.power[first + b, f]
        for f in range(spectra.background.shape[1]):
            m[b, f] += spectra.background[first + b, f]
            low[b, f] += spectra.background[first + b, f]


@summing
def _sum_logs(cells, spectra, first, n_frames):
    """sum log m over the observed cells"""
    m, total = cells.arithmetic.values, 0.0
    for b in range(n_frames):
        if spectra.seen.size:
            for f in range(spectra.power.shape[1]):
                total += fast_log(max(m[b, f], SMALLEST) if spectra.seen[first + b, f] else 1.0)
        else:
            for f in range(spectra.power.shape[1]):
                total += fast_log(max(m[b, f], SMALLEST))
    return total


@summing
def _divide(cells, spectra, first, n_frames):
    """Overwrite m by 1 / m and l by x / l^2, 0 at missing cells. Returns sum x / l."""
    m, low, x, total = cells.arithmetic.values, cells.harmonic.values, cells.power.values, 0.0
    for b in range(n_frames):
        for f in range(spectra.power.shape[1]):
            m[b, f] = 1.0 / max(m[b, f], SMALLEST)
            inverse = 1.0 / max(low[b, f], SMALLEST)
            ratio = min(x[b, f] * inverse, LARGEST)
            low[b, f] = min(ratio * inverse, LARGEST)
            total += ratio
        for f in range(spectra.seen.shape[1]):
            m[b, f] = m[b, f] if spectra.seen[first + b, f] else 0.0
    return total


@summing
def _sum_frequencies(rows, W, cells):
    """Overwrite rows (BLOCK, K) with cells (BLOCK, F) @ W.T (F, K)."""
    for b in range(0, BLOCK, 4):
        for k in range(W.shape[0]):
            one = two = three = four = 0.0
            for f in range(W.shape[1]):
                w = W[k, f]
                one += w * cells[b, f]
                two += w * cells[b + 1, f]
                three += w * cells[b + 2, f]
                four += w * cells[b + 3, f]
            rows[b, k], rows[b + 1, k], rows[b + 2, k], rows[b + 3, k] = one, two, three, four

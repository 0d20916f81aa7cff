"""Itakura-Saito divergence of a power spectrogram, and what it says of each factor: numerators and denominators.

Frames are rows here and frequencies contiguous: power (N, F), W (K, F), ``Ht`` (N, K), and the mean power of a cell is
l = sum_k w_fk h_kn + background. Of minus the log-likelihood, sum log l + p / l, the slope in a cell of a factor is
denominator - numerator::

    numerator_fk = sum_n p_fn h_kn / l_fn^2,    denominator_fk = sum_n h_kn / l_fn        and alike for H, sums over f

Frames are independent given W: a block of them moves its activations, renews its means and adds what it says of W to
its sums, and shares each load of W and of these sums. Unseen cells count for nothing. A logarithm costs as much as ten
products: those of the means are taken together, of the products of their mantissas.

SIMD runs over the frequencies, in tiles. A table over frequencies, such as W (K, F), gets columns of zeros up to whole
tiles and a row of zeros where K is odd: nothing that is added up changes. The number of tiles is odd, since rows that
lie a power of 2 apart compete for a few places of the nearest cache; and each table begins elsewhere in a page of
memory, since a load waits for a store that is still to come, such as that of a quotient, when their addresses agree in
the lowest 12 bits."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, summing
from nmf_zoo.kernels.numerics.arrays import flat
from nmf_zoo.kernels.powers.factor_steps import add_squares, fill_ratios, make_slopes, push_beyond, take_step
from nmf_zoo.kernels.simd.lanes import (
    PAGE_BYTES,
    Padded,
    add_product,
    add_scaled,
    load,
    nothing,
    store,
    tile_lanes,
    total,
)

FRAMES = 16  # of a block: W and its sums pass through the nearest cache once for all of them
LANES = 8  # of a vector
WIDTH = (0, 0)  # of a tile, in vectors: with four frames eight sums, enough to hide their latency
ONE_VECTOR = (0,)


class WeightSums(NamedTuple):
    """Sums over frames, laid out like W; without rows when they are not wanted."""

    numerator: Padded
    denominator: Padded


class BlockWorkspace(NamedTuple):
    """Scratch for a block of frames.

    Attributes
    ----------
    mean, numerator : (FRAMES, F in tiles) l, then 1 / l; p / l^2
    h : (FRAMES, K or K + 1)
    """

    mean: Padded
    numerator: Padded
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


def sums_of_W(rank: int, F: int) -> WeightSums:
    """Sums of 0; without rows for a rank of 0."""
    return WeightSums(in_tiles(rank + rank % 2, F, 256), in_tiles(rank + rank % 2, F, 1280))


def make_workspace(rank: int, F: int) -> BlockWorkspace:
    """An empty workspace."""
    h = np.zeros((FRAMES, rank + rank % 2))
    return BlockWorkspace(in_tiles(FRAMES, F), in_tiles(FRAMES, F, 2048), h)


# -- divergence, numerators and denominators -------------------------------------------------------------------------


MOST_FACTORS = 1000  # that are multiplied: a product of as many mantissas below 2 does not overflow
LOW_BITS, MANTISSA, ONE = np.int64(52), np.int64(0x000FFFFFFFFFFFFF), np.int64(0x3FF0000000000000)
BIAS, LN_2 = 1023, math.log(2.0)


class PriorTerms(NamedTuple):
    """Minus the log prior density of a cell, power log w + scale / w + rate w: (rows, K) each, or (1, K) for all."""

    power: np.ndarray
    scale: np.ndarray
    rate: np.ndarray


class Moves(NamedTuple):
    """How the activations of frames move; (N, K) each, but for the last three.

    Attributes
    ----------
    at : where they are
    update : overwritten by where their update leads
    next : overwritten by where a push beyond it leads
    before : the update that led to ``at``: the push goes away from it; not read without one
    prior : terms of the activations
    push : 0 for none
    heuristic : exponent 1 instead of 1/2
    """

    at: np.ndarray
    update: np.ndarray
    next: np.ndarray
    before: np.ndarray
    prior: PriorTerms
    push: float
    heuristic: bool


@kernel
def advance(spectra, W, moves, of_W, workspace, first, last):
    """Move the activations of some frames, then look at them there; what they say of W is added to ``of_W``.

    W by :func:`tile_spectra`. Returns (divergence there, the sum of squared slopes in log h where they were).
    """
    divergence, slopes = 0.0, make_slopes(FRAMES * moves.at.shape[1])
    _open(moves, slopes)
    for start in range(first, last, FRAMES):
        n_frames = min(FRAMES, last - start)
        _fill_means(spectra, W, moves.at, workspace, start, n_frames)
        _divide(spectra, workspace, start, n_frames)
        _sum_over_frequencies(slopes, spectra, W, workspace)
        _move(moves, slopes, start, start + n_frames)
        divergence += _look(spectra, W, moves.next, of_W, workspace, start, n_frames)
    return divergence, np.sum(slopes.squares)


@kernel
def gather(spectra, W, Ht, of_W, workspace, first, last):
    """Look at some frames: the divergence; what they say of W is added to ``of_W``."""
    divergence = 0.0
    for start in range(first, last, FRAMES):
        divergence += _look(spectra, W, Ht, of_W, workspace, start, min(FRAMES, last - start))
    return divergence


@kernel
def _look(spectra, W, Ht, of_W, workspace, start, n_frames):
    _fill_means(spectra, W, Ht, workspace, start, n_frames)
    divergence = _sum_logs(workspace.mean.values, n_frames, spectra.power.shape[1])
    divergence += _divide(spectra, workspace, start, n_frames)
    if of_W.numerator.values.size > 0:
        _add_over_frames(of_W.numerator, workspace.numerator, workspace.h, spectra.power.shape[1])
        _add_over_frames(of_W.denominator, workspace.mean, workspace.h, spectra.power.shape[1])
    return divergence


@kernel
def _open(moves, slopes):
    """What all frames have in common."""
    for j in range(FRAMES):
        _copy_terms(slopes, moves.prior, j, 0)


@kernel
def _copy_terms(slopes, prior, j, row):
    rank = prior.power.shape[1]
    for k in range(rank):
        i = rank * j + k
        slopes.power[i], slopes.scale[i], slopes.rate[i] = prior.power[row, k], prior.scale[row, k], prior.rate[row, k]


@kernel
def _move(moves, slopes, start, stop):
    """Update the activations of the frames from their sums, and push them."""
    rank = moves.at.shape[1]
    first, size = start * rank, (stop - start) * rank
    old, new, out, before = flat(moves.at), flat(moves.update), flat(moves.next), flat(moves.before)
    if moves.prior.power.shape[0] > 1:
        for n in range(start, stop):
            _copy_terms(slopes, moves.prior, n - start, n)
    fill_ratios(slopes, old, first, size)
    add_squares(slopes, old, first, size)
    take_step(new, old, slopes, first, size, moves.heuristic)
    push_beyond(out, new, before, first, size, moves.push)


# -- a block of frames -----------------------------------------------------------------------------------------------


@kernel
def _fill_means(spectra, W, Ht, workspace, start, n_frames):
    """Bring frames in, with their means: 1 at unseen cells, 0 in the padding and beyond the last frame."""
    h, rank = workspace.h, Ht.shape[1]
    for b in range(FRAMES):
        for k in range(rank):
            h[b, k] = Ht[start + b, k] if b < n_frames else 0.0
    _multiply(workspace.mean, h, W, spectra.power.shape[1])
    for b in range(n_frames):
        if spectra.background.size > 0:
            _add(workspace.mean.values[b], spectra.background[start + b])
        if spectra.seen.size > 0:
            _hide(workspace.mean.values[b], spectra.seen[start + b], 1.0)


@kernel
def _multiply(out, h, W, F):
    """Overwrite out (FRAMES, F) with h (FRAMES, K) @ W (K, F), four frames at a time."""
    for f in range(0, F, tile_lanes(W)):
        for b in range(0, FRAMES, 4):
            one = two = three = four = nothing(load(W, 0, f))
            for k in range(W.values.shape[0]):
                w = load(W, k, f)
                one = add_scaled(one, h[b, k], w)
                two = add_scaled(two, h[b + 1, k], w)
                three = add_scaled(three, h[b + 2, k], w)
                four = add_scaled(four, h[b + 3, k], w)
            store(out, b, f, one)
            store(out, b + 1, f, two)
            store(out, b + 2, f, three)
            store(out, b + 3, f, four)


@kernel
def _divide(spectra, workspace, start, n_frames):
    """Overwrite means with 1 / l, the numerator with p / l^2; 0 where a cell isn't seen. Returns the sum of p / l."""
    means, numerators, fit = workspace.mean.values, workspace.numerator.values, 0.0
    for b in range(n_frames):
        fit += _divide_frame(means[b], numerators[b], spectra.power[start + b])
        if spectra.seen.size > 0:
            _hide(means[b], spectra.seen[start + b], 0.0)
    numerators[n_frames:] = 0.0
    return fit


@kernel
def _sum_over_frequencies(slopes, spectra, W, workspace):
    """Overwrite numerator and denominator of the workspace's activations."""
    F = spectra.power.shape[1]
    _sum_rows(slopes.numerator, workspace.numerator, W, F)
    _sum_rows(slopes.denominator, workspace.mean, W, F)


@kernel
def _sum_rows(out, cells, W, F):
    """Overwrite out (FRAMES K,) with cells (FRAMES, F) @ W.T (F, K), four frames and two components at a time."""
    rows, weights, rank = Padded(cells.values, ONE_VECTOR), Padded(W.values, ONE_VECTOR), out.size // FRAMES
    for b in range(0, FRAMES, 4):
        for k in range(0, rank, 2):
            one0 = two0 = three0 = four0 = one1 = two1 = three1 = four1 = nothing(load(weights, 0, 0))
            for f in range(0, F, LANES):
                w0, w1 = load(weights, k, f), load(weights, k + 1, f)
                one, two = load(rows, b, f), load(rows, b + 1, f)
                three, four = load(rows, b + 2, f), load(rows, b + 3, f)
                one0, one1 = add_product(one0, one, w0), add_product(one1, one, w1)
                two0, two1 = add_product(two0, two, w0), add_product(two1, two, w1)
                three0, three1 = add_product(three0, three, w0), add_product(three1, three, w1)
                four0, four1 = add_product(four0, four, w0), add_product(four1, four, w1)
            i = rank * b + k
            out[i], out[i + rank] = total(one0), total(two0)
            out[i + 2 * rank], out[i + 3 * rank] = total(three0), total(four0)
            if k + 1 < rank:
                out[i + 1], out[i + rank + 1] = total(one1), total(two1)
                out[i + 2 * rank + 1], out[i + 3 * rank + 1] = total(three1), total(four1)


@kernel
def _add_over_frames(sums, cells, h, F):
    """Add h.T (K, FRAMES) @ cells (FRAMES, F) to sums (K, F)."""
    for f in range(0, F, tile_lanes(sums)):
        for b in range(0, FRAMES, 4):
            one, two = load(cells, b, f), load(cells, b + 1, f)
            three, four = load(cells, b + 2, f), load(cells, b + 3, f)
            for k in range(sums.values.shape[0]):
                row = add_scaled(load(sums, k, f), h[b, k], one)
                row = add_scaled(row, h[b + 1, k], two)
                row = add_scaled(row, h[b + 2, k], three)
                store(sums, k, f, add_scaled(row, h[b + 3, k], four))


@kernel
def _sum_logs(means, n_frames, F):
    """The sum of the logarithms of some frames' means."""
    divergence = 0.0
    for b in range(n_frames):
        for f in range(0, F, MOST_FACTORS):
            product, exponent = _multiply_mantissas(means[b, f : min(f + MOST_FACTORS, F)])
            divergence += math.log(product) + LN_2 * exponent
    return divergence


# -- loops over frequencies, in SIMD lanes ---------------------------------------------------------------------------


@in_lanes
def _add(means, background):
    for f in range(background.size):
        means[f] += background[f]


@in_lanes
def _hide(row, seen, value):
    for f in range(seen.size):
        row[f] = row[f] if seen[f] else value


@summing
def _divide_frame(means, numerators, power):
    fit = 0.0
    for f in range(power.size):
        inverse = 1.0 / means[f]
        ratio = power[f] * inverse
        means[f], numerators[f] = inverse, ratio * inverse
        fit += ratio
    return fit


@summing
def _multiply_mantissas(means):
    """The product of the means, as (product of mantissas, sum of exponents)."""
    product, exponent = 1.0, 0
    for f in range(means.size):
        bits = np.float64(means[f]).view(np.int64)
        exponent += (bits >> LOW_BITS) - BIAS
        product *= np.int64((bits & MANTISSA) | ONE).view(np.float64)
    return product, exponent

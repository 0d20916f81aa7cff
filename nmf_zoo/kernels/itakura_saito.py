"""Itakura-Saito divergence of a power spectrogram, and what it says of each factor: pulls and drags.

Frames are rows here and frequencies contiguous: power (N, F), ``Wt`` (K, F), ``Ht`` (N, K), and the mean power of a
cell is l = sum_k w_fk h_kn + background. Of minus the log-likelihood, sum log l + p / l, the slope in a cell of a
factor is drag - pull::

    pull_fk = sum_n p_fn h_kn / l_fn^2,    drag_fk = sum_n h_kn / l_fn        and alike for H, sums over f

Frames are independent given W: a few at a time move their activations, renew their means and add what they say of W to
its sums, while they and a tile of W are in cache. Unseen cells count for nothing. A logarithm costs as much as ten
products, so those of the means are taken together, of the products of their mantissas.

Frequencies run in lanes and tiles (:mod:`nmf_zoo.kernels.spectral_tiles`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from nmf_zoo.kernels.factor_steps import add_departures, fill_ratios, push_beyond, take_step
from nmf_zoo.kernels.lane_products import fold_product, over, times
from nmf_zoo.kernels.lanes import Padded, add_scaled, dot, load, load_some, store, tile_lanes
from nmf_zoo.kernels.softplus import in_lanes
from nmf_zoo.kernels.spectral_tiles import FRAMES
from nmf_zoo.kernels.streams import kernel

inlined = njit(cache=True, nogil=True, error_model="numpy", inline="always")  # rows stay in registers
FLUSH = 1000 * FRAMES  # frames: products of 1000 numbers below 2 don't overflow
LOW_BITS, MANTISSA, ONE = np.int64(52), np.int64(0x000FFFFFFFFFFFFF), np.int64(0x3FF0000000000000)
BIAS, LN_2 = 1023, math.log(2.0)


class PriorTerms(NamedTuple):
    """Minus the log prior density of a cell, power log w + scale / w + rate w: (rows, K) each, or (1, K) for all."""

    power: np.ndarray
    scale: np.ndarray
    rate: np.ndarray


class Moves(NamedTuple):
    """How the activations of frames move; (N, K) each, but for the last four.

    Attributes
    ----------
    at : where they are
    update : overwritten by where their update leads
    next : overwritten by where a push beyond it leads
    before : the update that led to ``at``: the push goes away from it; not read without one
    prior : terms of the activations
    largest : (K,) of each component
    push : 0 for none
    heuristic : exponent 1 instead of 1/2
    """

    at: np.ndarray
    update: np.ndarray
    next: np.ndarray
    before: np.ndarray
    prior: PriorTerms
    largest: np.ndarray
    push: float
    heuristic: bool


@kernel
def advance(spectra, Wt, moves, of_W, room, first, last):
    """Move the activations of some frames, then look at them there. Returns (divergence, KKT residual on the way).

    ``Wt`` by :func:`tile_spectra`; what the frames say of W is added to ``of_W``.
    """
    divergence, slopes = 0.0, room.slopes
    _clear(room)
    _open(moves, room)
    for start in range(first, last, FRAMES):
        stop = min(start + FRAMES, last)
        apart = _enter(spectra, moves.at, room, start, stop)
        _sum_over_frequencies(Wt, room, apart)
        _move(moves, slopes, start, stop)
        room.h[: stop - start] = moves.next[start:stop]
        _look(Wt, of_W, room, apart)
        divergence += _flush(room) if (stop - first) % FLUSH == 0 else 0.0
    return divergence + _flush(room), np.max(slopes.worst)


@kernel
def gather(spectra, Wt, Ht, of_W, room, first, last):
    """Look at some frames: the divergence; what they say of W is added to ``of_W``."""
    divergence = 0.0
    _clear(room)
    for start in range(first, last, FRAMES):
        stop = min(start + FRAMES, last)
        apart = _enter(spectra, Ht, room, start, stop)
        _look(Wt, of_W, room, apart)
        divergence += _flush(room) if (stop - first) % FLUSH == 0 else 0.0
    return divergence + _flush(room)


@kernel
def _clear(room):
    """No background, and all cells seen."""
    for t in range(room.edge.values.shape[0]):
        for j in range(FRAMES):
            room.base.values[FRAMES * t + j], room.count.values[FRAMES * t + j] = room.edge.values[t], 1.0


@kernel
def _open(moves, room):
    """What all frames have in common."""
    slopes, rank = room.slopes, moves.largest.size
    slopes.worst[:] = 0.0
    for j in range(FRAMES):
        slopes.heights[rank * j : rank * (j + 1)] = 1.0 / moves.largest
        _copy_terms(slopes, moves.prior, j, 0)


@kernel
def _copy_terms(slopes, prior, j, row):
    rank = prior.power.shape[1]
    for k in range(rank):
        i = rank * j + k
        slopes.power[i], slopes.scale[i], slopes.rate[i] = prior.power[row, k], prior.scale[row, k], prior.rate[row, k]


@kernel
def _enter(spectra, Ht, room, start, stop):
    """Bring FRAMES frames into the room; those beyond the last one are empty and have a mean of 1.

    Returns how far apart the frames' rows of ``base`` and ``count`` are: 0 where one serves all, and stays in cache.
    """
    tiles, lanes = room.edge.values.shape
    power, base, count, edge = room.power.values, room.base.values, room.count.values, room.edge.values
    room.h[: stop - start] = Ht[start:stop]
    for n in range(start, stop):
        _copy_tiles(room.power, spectra.power, n, n - start)
        if spectra.background.size > 0:
            _copy_tiles(room.base, spectra.background, n, n - start)
        for t in range(tiles if spectra.background.size > 0 else 0):
            base[FRAMES * t + n - start] += edge[t]
        for t in range(tiles if spectra.seen.size > 0 else 0):
            row = FRAMES * t + n - start
            _mark_unseen(base[row], count[row], spectra.seen[n], t * lanes, spectra.background.size > 0)
    for j in range(stop - start, FRAMES):
        room.h[j] = 0.0
        for t in range(tiles):
            power[FRAMES * t + j], base[FRAMES * t + j], count[FRAMES * t + j] = 0.0, 1.0, 1.0
    alike = stop - start == FRAMES and spectra.background.size == 0 and spectra.seen.size == 0
    return 0 if alike else 1


@in_lanes
def _mark_unseen(base, count, seen, first, has_background):
    """Overwrite a tile of counts with what was seen from frequency ``first`` on; a mean has 1 more where it wasn't."""
    for i in range(min(base.size, seen.size - first)):
        count[i] = 1.0 if seen[first + i] else 0.0
        base[i] = (base[i] if has_background else 0.0) + (1.0 - count[i])


@kernel
def _copy_tiles(out, table, n, j):
    """Row n of a table (N, F) to frame j of a room."""
    lanes = tile_lanes(out)
    for t in range(out.values.shape[0] // FRAMES):
        store(out, FRAMES * t + j, 0, load_some(table, n, t * lanes, out))


@kernel
def _move(moves, slopes, start, stop):
    """Update the activations of the frames from their sums, and push them."""
    rank = moves.at.shape[1]
    first, size = start * rank, (stop - start) * rank
    old, new, out, before = moves.at.ravel(), moves.update.ravel(), moves.next.ravel(), moves.before.ravel()
    if moves.prior.power.shape[0] > 1:
        for n in range(start, stop):
            _copy_terms(slopes, moves.prior, n - start, n)
    fill_ratios(slopes, old, first, size)
    add_departures(slopes, old, first, size)
    take_step(new, old, slopes, first, size, moves.heuristic)
    push_beyond(out, new, before, first, size, moves.push)


@kernel
def _flush(room):
    """Take the divergence so far out of the room."""
    total, fit = 0.0, room.fit.values
    for t in range(fit.shape[0]):
        for f in range(fit.shape[1]):
            total += fit[t, f]
    for i in range(room.product.size):
        total -= math.log(room.product[i]) + LN_2 * room.exponent[i]
    fit[:], room.product[:], room.exponent[:] = 0.0, 1.0, 0
    return total


# -- tile by tile ----------------------------------------------------------------------------------------------------


@kernel
def _sum_over_frequencies(Wt, room, apart):
    """Overwrite pull and drag of the room's activations."""
    power, base, count, h, folded, slopes = room.power, room.base, room.count, room.h, room.folded, room.slopes
    rank = h.shape[1]
    folded.values[: 2 * FRAMES * rank] = 0.0
    for t in range(Wt.values.shape[0] // rank):
        for j in range(FRAMES):
            inverse = _inverse_means(Wt, base, count, h, (t, j, FRAMES * t + j * apart))
            pull = times(times(load(power, FRAMES * t + j, 0), inverse), inverse)
            row = 2 * rank * j
            for k in range(rank):
                w = load(Wt, rank * t + k, 0)
                store(folded, row + k, 0, fold_product(load(folded, row + k, 0), pull, w))
                store(folded, row + rank + k, 0, fold_product(load(folded, row + rank + k, 0), inverse, w))
    ones = load(folded, 2 * FRAMES * rank, 0)
    for j in range(FRAMES):
        for k in range(rank):
            row = 2 * rank * j + k
            slopes.pull[rank * j + k] = dot(load(folded, row, 0), ones)
            slopes.drag[rank * j + k] = dot(load(folded, row + rank, 0), ones)


@kernel
def _look(Wt, of_W, room, apart):
    """Add up the divergence of the room's frames, and what they say of W."""
    power, base, count, h, inverses, pulls, fits = (
        room.power, room.base, room.count, room.h, room.inverse, room.pull, room.fit
    )  # fmt: skip
    pull_W, drag_W = of_W
    rank, narrow, lanes = h.shape[1], pull_W.width, tile_lanes(Wt)
    for t in range(Wt.values.shape[0] // rank):
        fit = load(fits, t, 0)
        for j in range(FRAMES):
            inverse = _inverse_means(Wt, base, count, h, (t, j, FRAMES * t + j * apart))
            ratio = times(load(power, FRAMES * t + j, 0), inverse)
            fit = add_scaled(fit, 1.0, ratio)
            store(inverses, FRAMES * t + j, 0, inverse)
            store(pulls, j, 0, times(ratio, inverse))
        store(fits, t, 0, fit)
        if pull_W.values.size > 0:
            for half in range(0, lanes, tile_lanes(pull_W)):
                _add_outer(pull_W, Padded(pulls.values, narrow), h, (rank * t, half), 0)
                _add_outer(drag_W, Padded(inverses.values, narrow), h, (rank * t, half), FRAMES * t)
    _multiply(room.product, room.exponent, inverses.values.ravel(), count.values.ravel())


@inlined
def _inverse_means(Wt, base, count, h, place):
    """1 / l in a tile, 0 where it isn't seen; ``place``: tile, frame of the room, row of ``base`` and ``count``."""
    t, j, row = place
    rank = h.shape[1]
    means = load(base, row, 0)
    for k in range(rank):
        means = add_scaled(means, h[j, k], load(Wt, rank * t + k, 0))
    return over(load(count, row, 0), means)


@inlined
def _add_outer(sums, rows, h, corner, j):
    """sums_k += sum_j h_jk rows_j, of the half tile with this corner (of k = 0) and of FRAMES rows from j on"""
    first, f = corner
    row0, row1, row2, row3 = load(rows, j, f), load(rows, j + 1, f), load(rows, j + 2, f), load(rows, j + 3, f)
    for k in range(h.shape[1]):
        total = add_scaled(load(sums, first + k, f), h[0, k], row0)
        total = add_scaled(add_scaled(total, h[1, k], row1), h[2, k], row2)
        store(sums, first + k, f, add_scaled(total, h[3, k], row3))


@in_lanes
def _multiply(product, exponent, inverses, counts):
    """Multiply the products so far by 1 / l, or 1 where a cell isn't seen; their powers of 2 are added up apart."""
    for i in range(counts.size):
        bits = np.float64(inverses[i] + (1.0 - counts[i])).view(np.int64)
        exponent[i] += (bits >> LOW_BITS) - BIAS
        product[i] *= np.int64((bits & MANTISSA) | ONE).view(np.float64)

"""Running statistics of a stream: S <- (1 - g) S + g s, where s has few rows and the decay must not touch the others.

S is kept as ``scale`` times an array, and the decay is ``scale *= 1 - g``. New terms are divided by the scale, so that
each sum is one addition, with the rounding of one addition, however small the scale has become. Before it reaches
``SMALLEST_SCALE`` it is multiplied into the arrays, once in hundreds or thousands of steps, which also renews the sums
over the features.

Averages over steps are as lazy: ``clock[TIME]`` is the sum of the scales since the last renewal, and a row's share is
added before the row changes: row * (TIME - row_times).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.streams import kernel

COLUMNS, STEPS, SCALE, MASS, TIME, AVERAGED = range(6)  # of the clock
SMALLEST_SCALE = 1e-6  # TIME - row_times loses as many digits as the scale has fallen by


class Running(NamedTuple):
    """The statistics of a stream, owned and overwritten in place.

    Attributes
    ----------
    sources : (F, K), over the scale: mean of E[c | x]
    everywhere : (K,), over the scale: mean of E[h | x] of columns whose features were all observed
    some : (F, K), over the scale: the same of other columns, at the features observed; (0, K) until there are any
    totals : (K,) sums of ``sources`` over the features
    sums, some_sums, everywhere_sums : sums of the three over the averaged steps; (0, K) without averages
    row_times : (F,) when the rows of the sums were brought up to date; (0,) without averages
    clock : (6,) columns seen, steps made, scale, weight of the steps so far, time, averaged steps
    """

    sources: np.ndarray
    everywhere: np.ndarray
    some: np.ndarray
    totals: np.ndarray
    sums: np.ndarray
    some_sums: np.ndarray
    everywhere_sums: np.ndarray
    row_times: np.ndarray
    clock: np.ndarray


@kernel
def decay(running, gain):
    """Begin a step of this size; returns the weight of what it adds.

    Weights of columns sum to 1 at every time: with nothing there yet, the first step has weight 1 whatever its size.
    """
    clock = running.clock
    before = (1.0 - gain) * clock[MASS]
    clock[MASS] = before + gain
    if before > 0.0:
        clock[SCALE] *= before / clock[MASS]
    if clock[SCALE] < SMALLEST_SCALE:
        renew(running)
    return gain / clock[MASS]


@kernel
def renew(running):
    """Multiply the scale into the arrays, bring all averages up to date, and add the totals up afresh."""
    scale, rank = running.clock[SCALE], running.totals.size
    running.totals[:] = 0.0
    for f in range(running.sources.shape[0]):
        bring_up_to_date(running, f)
        for k in range(rank):
            running.sources[f, k] *= scale
            running.totals[k] += running.sources[f, k]
            if running.some.size:
                running.some[f, k] *= scale
    running.row_times[:] = 0.0
    for k in range(rank):
        running.everywhere[k] *= scale
    running.clock[SCALE], running.clock[TIME] = 1.0, 0.0


@kernel
def bring_up_to_date(running, f):
    """Add to the sums of row f what it has been since it last changed."""
    if running.row_times.size == 0:
        return
    time = running.clock[TIME] - running.row_times[f]
    running.row_times[f] = running.clock[TIME]
    for k in range(running.totals.size):
        running.sums[f, k] += running.sources[f, k] * time
        if running.some.size:
            running.some_sums[f, k] += running.some[f, k] * time


@kernel
def add_columns(running, columns, first, last, shares, active, weight):
    """Add weight * E[c | x], and weight * E[h | x], of the columns first, ..., last - 1 to the decayed statistics."""
    base, scaled = columns.indptr[first], weight / running.clock[SCALE]
    for n in range(first, last):
        for cell in range(columns.indptr[n], columns.indptr[n + 1]):
            f = columns.rows[cell]
            bring_up_to_date(running, f)
            for k in range(running.totals.size):
                term = scaled * shares[cell - base, k]
                running.sources[f, k] += term
                running.totals[k] += term
                if not columns.complete[n]:
                    running.some[f, k] += scaled * active[n - first, k]
        if columns.complete[n]:
            for k in range(running.totals.size):
                running.everywhere[k] += scaled * active[n - first, k]


@kernel
def end_step(running, n_columns, is_averaged):
    """Count the step; if it is averaged, the statistics count as they are now."""
    clock = running.clock
    clock[COLUMNS] += n_columns
    clock[STEPS] += 1.0
    if is_averaged:
        for k in range(running.everywhere_sums.shape[0]):
            running.everywhere_sums[k] += running.everywhere[k] * clock[SCALE]
        clock[TIME] += clock[SCALE]
        clock[AVERAGED] += 1.0


@kernel
def take_step(running, columns, first, last, shares, active, gain, is_averaged):
    """A whole step from one chunk, in one call: an interruption finds it done or not begun."""
    weight = decay(running, gain)
    add_columns(running, columns, first, last, shares, active, weight / (last - first))
    end_step(running, last - first, is_averaged)

"""What online EM keeps of its columns, and the W that follows: see :mod:`nmf_zoo.inference.online_em` for S and T.

``mean_h`` (K,) is alpha / beta; W is the start's until ``start_columns`` columns were seen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels import column_statistics as clock
from nmf_zoo.kernels.column_statistics import Running, renew
from nmf_zoo.kernels.column_sweeps import Weights
from nmf_zoo.structure import Array


class OnlineState(NamedTuple):
    """The statistics; start (F, K), the W of the first columns; complete: "C" or "CH"."""

    running: Running
    start: Array
    complete: str


def empty(F: int, K: int, is_averaged: bool) -> Running:
    """Statistics of no column."""
    of_sums = (F, K) if is_averaged else (0, K)
    numbers = np.zeros(6)
    numbers[clock.SCALE] = 1.0
    return Running(
        sources=np.zeros((F, K)),
        everywhere=np.zeros(K),
        some=np.zeros((0, K)),
        totals=np.zeros(K),
        sums=np.zeros(of_sums),
        some_sums=np.zeros((0, K)),
        everywhere_sums=np.zeros(K if is_averaged else 0),
        row_times=np.zeros(of_sums[0]),
        clock=numbers,
    )


def copy(running: Running) -> Running:
    return Running(*(array.copy() for array in running))


def with_room(state: OnlineState) -> OnlineState:
    """Room for the activations of incomplete columns, from the first of these on; C is no longer right then."""
    if state.running.some.size:
        return state
    own = copy(state.running)  # the old state stays whole if this step does not come to its end
    own = own._replace(some=np.zeros_like(own.sources), some_sums=np.zeros_like(own.sums))
    return state._replace(running=own, complete="CH")


def weights_now(state: OnlineState, mean_h: Array, start_columns: int) -> Weights:
    """W as it is in the statistics."""
    running = state.running
    is_start = not running.clock[clock.MASS] or running.clock[clock.COLUMNS] < start_columns
    if state.complete == "C":
        top, bottom = running.clock[clock.SCALE] / mean_h, np.ones_like(mean_h)
    else:  # the scale is that of both
        top, bottom = np.ones_like(mean_h), running.everywhere
    weights = Weights(running.sources, running.some, top, bottom, state.start, np.empty(0), bool(is_start))
    if is_start:
        norms = state.start.sum(axis=0)
    elif running.some.size:
        norms = _divided(weights).sum(axis=0)
    else:
        norms = running.totals * top / bottom
    return weights._replace(norms=norms)


def final_weights(state: OnlineState, mean_h: Array, start_columns: int) -> Weights:
    """W as it is in the averaged statistics, if there are some."""
    running = averaged(state.running) if state.running.clock[clock.AVERAGED] > 0 else state.running
    return weights_now(state._replace(running=running), mean_h, start_columns)


def weights_of(state: OnlineState, mean_h: Array, start_columns: int) -> Array:
    """The same as an array, (F, K)."""
    weights = final_weights(state, mean_h, start_columns)
    return state.start.copy() if weights.is_start else _divided(weights)


def _divided(weights: Weights) -> Array:
    """W (F, K) of the statistics, the start at features that no column has shown yet."""
    below = np.broadcast_to(weights.bottom, weights.start.shape)
    below = below + weights.some if weights.some.size else below
    return np.divide(weights.sources * weights.top, below, out=weights.start.copy(), where=below > 0)


def averaged(running: Running) -> Running:
    """The averages in the place of the statistics."""
    own = copy(running)
    renew(own)
    n = own.clock[clock.AVERAGED]
    some = own.some_sums / n if own.some.size else own.some
    return own._replace(sources=own.sums / n, everywhere=own.everywhere_sums / n, some=some, totals=own.sums.sum(0) / n)

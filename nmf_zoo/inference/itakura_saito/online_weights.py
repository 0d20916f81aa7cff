"""W of simulated online EM from its statistics, and the expansion that sets W's scale.

The maximisation (Cappe, Fevotte, Rohde 2011, eq. 9) leaves the scale of a component where it is: |c|^2 / h of W c is
c |c|^2 / h, but for the prior of h, one number against the F that a frame has. So the scale moves by a share of about
alpha / F of what it should. Parameter expansion (Liu, Rubin, Wu 1998, PX-EM) gives h_k a scale of its own,
h_k ~ InverseGamma(alpha_k, r_k beta_k), whose statistic is V_k, the average of E[1 / h_k | p], decayed as S is. With
the average M of whether a cell was observed the expected log-likelihood of a frame is ::

    sum_f (-M_f log w*_f - S_f / w*_f) + alpha log r - r beta V                    w* of the expanded model

in which w* h with r is the model with w = r w*, h' = h / r and r = 1: reduced so. Its maximum is at w = r S / M and ::

    r = alpha / (beta V)

E[|c|^2 / h'] is r S then, and E[1 / h'] is r V: the statistics of the frames so far are multiplied by r, and eq. 9 is
what it was. Where the marginal likelihood is stationary, alpha = beta V and r = 1. Priors of W, and smoothing, act on
profiles through eq. 9, but not on r: they would pull at all cells of a component at once, F a / n against alpha, and
weak ones would empty components in the first frames. Their share in the scale goes as 1 / n anyway.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.itakura_saito.online_support import Problem
from nmf_zoo.inference.tree_patterns import Growing
from nmf_zoo.structure import Array

LEAST = 1e-100  # of W: maximum likelihood may be at 0, which no later frame could leave


class FrameState(NamedTuple):
    """Where a stream of frames is.

    Attributes
    ----------
    Wt : (K, F) W as the last step left it
    start : (1, K, F) W as it began; all starts that there will be while frames wait
    statistics : (K, F) S, and ``counts`` (F,), ``mass``: the same averages of whether a cell was observed, and of 1
    inverse : (K,) the same average of E[1 / h_k | p]
    sums, count_sums : of S / mass and counts / mass over the averaged steps, or (0, F) and (0,)
    frames, steps, averaged : how many so far
    is_waiting : the first frames are still being gathered, in ``waiting`` and ``waiting_seen`` (n, F)
    """

    Wt: Array
    start: Growing
    statistics: Array
    counts: Array
    mass: float
    inverse: Array
    sums: Array
    count_sums: Array
    frames: int
    steps: int
    averaged: int
    is_waiting: bool
    waiting: Growing
    waiting_seen: Growing


def expand(problem: Problem, state: FrameState) -> FrameState:
    """Statistics of activations at the scale r, once W is maximised."""
    if not problem.options.expand:
        return state
    r = problem.chain.shape * state.mass / (problem.chain.scale * state.inverse)
    return state._replace(statistics=state.statistics * r[:, None], inverse=state.inverse * r)


def averaged(problem: Problem, state: FrameState) -> FrameState:
    """Add to the averages of the statistics, if it is time to."""
    after = problem.options.average_after
    if after is None or state.frames <= after:
        return state
    return state._replace(
        sums=state.sums + state.statistics / state.mass,
        count_sums=state.count_sums + state.counts / state.mass,
        averaged=state.averaged + 1,
    )


def maximise(problem: Problem, state: FrameState) -> FrameState:
    """W from the statistics."""
    Wt = _weights(problem, state, state.statistics / state.mass, state.counts / state.mass)
    return state._replace(Wt=Wt)


def _weights(problem: Problem, state: FrameState, statistics: Array, counts: Array) -> Array:
    """Eq. 9, (K, F): with the average of whether a cell was observed in the place of 1."""
    below = counts + problem.a / state.frames
    Wt = np.divide(statistics + problem.b / state.frames, below, out=state.start[0].copy(), where=counts > 0)
    return np.maximum(Wt, LEAST, out=Wt)


def final_weights(problem: Problem, state: FrameState) -> Array:
    """W (K, F), of the averaged statistics if there are some."""
    if state.averaged == 0:
        return state.Wt
    return _weights(problem, state, state.sums / state.averaged, state.count_sums / state.averaged)

"""Where simulated online EM begins: W as given, random, or fitted to the first frames.

The marginal likelihood has many maxima, and a stream that begins at random often ends in a poor one. So the first
frames wait until there are enough of them for a joint estimate of W and their log activations, the best from a few
random starts, by updates that lower::

    sum_seen (log l + p / l) + sum_k (alpha_k log h_k + beta_k / h_k) + sum (a log w + b / w)

each (Fevotte, Idier 2011), with the last sum that of eq. 9; then they are steps like all others. It is no part of the
paper's algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nmf_zoo.inference.itakura_saito.online_support import Problem, relative_powers
from nmf_zoo.inference.itakura_saito.online_weights import LEAST, FrameState
from nmf_zoo.inference.start import FLOOR, SPREAD
from nmf_zoo.kernels.frames import Frames
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.structure import Array

RESTARTS, UPDATES = 4, 100  # updates of W and H


def init(problem: Problem, frames: Frames, key: np.uint64, start: Mapping[str, Array]) -> FrameState:
    """Empty statistics, and a W that is given, or random at the size of the first mini-batch."""
    (F, K), W = problem.structure.W.shape, problem.structure.W
    is_waiting = W.name not in start and problem.options.first_frames > 0
    if W.name in start:
        first = np.array(W.orient(np.asarray(start[W.name], dtype=np.float64)))
        starts = np.array(np.maximum(first, FLOOR * first.max()).T[None], order="C")
    else:
        typical = _typical(problem, frames.part(0, min(problem.options.batch, frames.n_columns)))
        starts = _draw_starts(problem, typical, RESTARTS if is_waiting else 1, key)
    n_averaged = 0 if problem.options.average_after is None else K
    averages = np.zeros((n_averaged, F)), np.zeros(F if n_averaged else 0)
    statistics = np.zeros((K, F)), np.zeros(F), 0.0, np.zeros(K)
    return FrameState(starts[0], starts, *statistics, *averages, 0, 0, 0, is_waiting, *_no_frames(F))


def _draw_starts(problem: Problem, typical: float, n: int, key: np.uint64) -> Array:
    """Random W for frames of this typical power, (n, K, F)."""
    F, K = problem.structure.W.shape
    active = problem.chain.scale / problem.chain.shape  # the harmonic mean of h: its mean may be infinite
    rate, first = np.broadcast_to(SPREAD * K * active / typical, (n * F, K)), np.empty((n * F, K))
    draw_factor(first, np.broadcast_to(SPREAD, (n * F, K)), rate, 0, n * F, key)
    return np.array(first.reshape(n, F, K).transpose(0, 2, 1), order="C")


def _typical(problem: Problem, frames: Frames) -> float:
    """The mean of the observed powers; 1 if it is 0, or so near that it can't be divided by."""
    power = relative_powers(problem, frames)
    mean = power.sum() / max(frames.seen.sum() if frames.seen.size else power.size, 1)
    return float(mean) if mean > LEAST else 1.0


def _no_frames(n_frequencies: int) -> tuple[Array, Array]:
    """Nothing waits."""
    return np.empty((0, n_frequencies)), np.empty((0, n_frequencies), dtype=bool)


def wait(state: FrameState, frames: Frames) -> FrameState:
    """With these frames among those that wait."""
    seen = frames.seen if frames.seen.size else np.ones(frames.power.shape, dtype=bool)
    return state._replace(
        waiting=np.concatenate([state.waiting, frames.power]), waiting_seen=np.concatenate([state.waiting_seen, seen])
    )


def waiting_frames(state: FrameState) -> Frames:
    """The first of the stream."""
    seen = state.waiting_seen
    return Frames(state.waiting, np.empty((0, 0), dtype=bool) if seen.all() else seen, 0)


def begin(problem: Problem, state: FrameState) -> FrameState:
    """W fitted to the frames that wait, which are let go."""
    power, seen = relative_powers(problem, waiting_frames(state)), state.waiting_seen
    found = [fit(problem, Wt, power, seen) for Wt in state.start]
    Wt, _ = min(found, key=lambda both: cost(problem, both[0], both[1], power, seen))
    waiting, waiting_seen = _no_frames(power.shape[1])
    return state._replace(Wt=Wt, start=Wt[None], is_waiting=False, waiting=waiting, waiting_seen=waiting_seen)


def fit(problem: Problem, Wt: Array, power: Array, seen: Array) -> tuple[Array, Array]:
    """W (K, F) and H (n, K) of frames (n, F) from a start of W; ``einsum``, whose bits do not depend on threads."""
    (alpha, beta, background), any_cell = problem.chain[:3], seen.any(axis=0)
    H = np.tile(beta / alpha, (len(power), 1))
    for _ in range(UPDATES):
        up, down = _slopes(Wt, H, power, seen, background)
        above, below = np.einsum("nf,kf->nk", up, Wt), np.einsum("nf,kf->nk", down, Wt)
        H = H * np.sqrt((above + beta / H**2) / (below + alpha / H))
        up, down = _slopes(Wt, H, power, seen, background)
        above, below = np.einsum("nf,nk->kf", up, H), np.einsum("nf,nk->kf", down, H)
        above, below = above + problem.b / Wt**2, below + problem.a / Wt
        Wt = np.where(any_cell, np.maximum(Wt * np.sqrt(above / np.where(any_cell, below, 1.0)), LEAST), Wt)
    return Wt, H


def cost(problem: Problem, Wt: Array, H: Array, power: Array, seen: Array) -> float:
    """What the updates lower."""
    mean = _means(Wt, H, problem.chain.background)
    misfit = np.sum(np.log(mean) + power / mean, where=seen)
    of_h = problem.chain.shape * np.log(H) + problem.chain.scale / H
    return float(misfit + of_h.sum() + (problem.a * np.log(Wt) + problem.b / Wt).sum())


def _means(Wt: Array, H: Array, background: Array) -> Array:
    return np.einsum("nk,kf->nf", H, Wt) + (background if background.size else 0.0)


def _slopes(Wt: Array, H: Array, power: Array, seen: Array, background: Array) -> tuple[Array, Array]:
    """p / l^2 and 1 / l, (n, F), 0 where a cell is missing."""
    inverse = 1.0 / _means(Wt, H, background)
    return np.where(seen, power * inverse**2, 0.0), np.where(seen, inverse, 0.0)

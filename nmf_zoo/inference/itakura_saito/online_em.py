"""Simulated online EM (Cappe, Fevotte, Rohde 2011): W of a power spectrogram from frames that come one by one.

Frames p_n, exponential with mean W h_n (+ a known background), h_kn ~ InverseGamma(alpha_k, beta_k), are independent
given W. With the step sizes g_n = (n + offset)^-exponent a step is::

    E   s_n = mean over the last sweeps i of a Gibbs chain of E[|c_fkn|^2 | p_n, h^i] / h_k^i       eqs. 4 and 8
    A   S_n = (1 - g_n) S_{n-1} + g_n s_n                                                           eq. 8
    M   w_fk = (S_fk + b_n) / (1 + a_n)                                                             eq. 9

of one frame, or with s_n the mean over a mini-batch. Maximum likelihood has a_n = b_n = 0; the paper's smoothing is
a_n = a / n, b_n = b / n after n frames, and a prior w_fk ~ InverseGamma(a', b') is maximised by a = a' + 1, b = b'.

Where cells are missing the 1 of eq. 9 is the average, weighted as S is, of whether cell f was observed; W stays at its
start where nothing was. g_1 = 1, so that S_0 does not matter, but the start of W does: see
:mod:`nmf_zoo.inference.itakura_saito.online_start`.

What eq. 9 leaves slow, the scale of W, a parameter expansion sets at once, ``expand=True``, which is no part of the
paper's algorithm: see :mod:`nmf_zoo.inference.itakura_saito.online_weights`.

A silent frame is data: power 0 everywhere, which a loud W makes unlikely. It pulls W towards 0, all of it where K = 1,
by 1 - g_n in each frame, and a long silence pulls it far; the activations of the next frames make up for it. Frames of
no interest are best left out, or given as NaN; a known noise floor (``background=``) explains them, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.itakura_saito.online_options import SimulatedOnlineEM
from nmf_zoo.inference.itakura_saito.online_start import begin, init, wait, waiting_frames
from nmf_zoo.inference.itakura_saito.online_support import Problem, prepare, relative_powers, supports
from nmf_zoo.inference.itakura_saito.online_weights import FrameState, averaged, expand, final_weights, maximise
from nmf_zoo.inference.stream_engine import ACTIVATIONS, SWEEPS, StreamEngine
from nmf_zoo.kernels.frames import Activations, Frames, Room, Statistics, activate_frames, expect_frames, make_room
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Exponential, spans

CHUNK_WORK = 1 << 20  # cells x components x sweeps of one chunk of frames, some milliseconds


class FrameInfo(NamedTuple):
    """size: the step size."""

    size: float


def check(problem: Problem, state: FrameState, frames: Frames) -> None:
    """Any frame can be taken."""


def update(problem: Problem, state: FrameState, frames: Frames, key: np.uint64) -> tuple[FrameState, FrameInfo]:
    """One step, from a mini-batch of frames; the first ones wait until W's start is fitted to them."""
    if not state.is_waiting:
        return _step(problem, state, frames, key)
    state, info, size = wait(state, frames), FrameInfo(0.0), problem.options.batch
    if len(state.waiting) < problem.options.first_frames:
        return state, info
    first, state = waiting_frames(state), begin(problem, state)
    for span in spans(first.n_columns, size):
        state, info = _step(problem, state, first.part(*span), key)
    return state, info


def _step(problem: Problem, state: FrameState, frames: Frames, key: np.uint64) -> tuple[FrameState, FrameInfo]:
    options, n = problem.options, frames.n_columns
    size = (state.steps + 1.0 + options.offset) ** -options.exponent
    found = _map(problem, lambda part, room: _expect(problem, state.Wt, part, room, key), frames)
    weight, kept = size / n, (state.statistics, state.counts, state.inverse)
    statistics, counts, inverse = ((1.0 - size) * old for old in kept)
    for of_chunk in found:
        statistics += weight * of_chunk.power
        counts += weight * of_chunk.counts
        inverse += weight * of_chunk.inverse
    new = state._replace(
        statistics=statistics,
        counts=counts,
        mass=(1.0 - size) * state.mass + size,
        inverse=inverse,
        frames=state.frames + n,
        steps=state.steps + 1,
    )
    return maximise(problem, averaged(problem, expand(problem, new))), FrameInfo(size)


def _map(problem: Problem, work: Any, frames: Frames, has_shares: bool = False) -> list[Any]:
    """``work(frames, room)`` of all chunks of frames, whose size does not depend on threads."""
    (F, K), rooms = problem.structure.W.shape, [] if has_shares else problem.rooms
    most = max(1, CHUNK_WORK // (F * K * problem.options.sweeps))
    parts = [frames.part(*span) for span in spans(frames.n_columns, most)]

    def in_a_room(part: Frames) -> Any:
        try:
            room = rooms.pop()
        except IndexError:
            room = make_room(F, K, has_shares)
        found = work(part._replace(power=relative_powers(problem, part)), room)
        rooms.append(room)
        return found

    return problem.workers.map(in_a_room, parts)


def _expect(problem: Problem, Wt: Array, frames: Frames, room: Room, key: np.uint64) -> Statistics:
    """Sums over frames."""
    out = Statistics(np.zeros_like(Wt), np.zeros(Wt.shape[1]), np.zeros(len(Wt)))
    expect_frames(out, frames, Wt, problem.chain, room, child(key, SWEEPS))
    return out


def finish(problem: Problem, state: FrameState) -> tuple[dict[str, Array], dict[str, Array]]:
    """W, of the averaged statistics if there are some."""
    W = problem.structure.W
    return {W.name: W.orient(_current_weights(problem, state).T)}, {}


def _current_weights(problem: Problem, state: FrameState) -> Array:
    """W (K, F); while frames wait, fitted to those there are."""
    return begin(problem, state).Wt if state.is_waiting else final_weights(problem, state)


def seen(state: FrameState) -> int:
    """Frames so far."""
    return state.frames + len(state.waiting)


def track(problem: Problem, state: FrameState) -> Array:
    """Sums of W's columns, (K,), as the last step left them."""
    return state.Wt.sum(axis=1)


def activations(
    problem: Problem, state: FrameState, frames: Frames, key: np.uint64, has_shares: bool = False
) -> dict[str, Array]:
    """Mean and standard deviation of H given the frames and the final W; shares of every cell, if they are wanted."""
    Wt, own_key = _current_weights(problem, state), child(key, ACTIVATIONS)

    def work(part: Frames, room: Room) -> Activations:
        shares = np.zeros((part.n_columns, *Wt.shape) if has_shares else (0, 0, 0))
        mean, square = np.empty((2, part.n_columns, len(Wt)))
        out = Activations(mean, square, shares)
        activate_frames(out, part, Wt, problem.chain, room, own_key)
        return out

    parts = _map(problem, work, frames, has_shares)
    mean, square, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    is_finite = np.isfinite(square)
    variance = np.subtract(square, mean * mean, out=np.full_like(mean, np.inf), where=is_finite)
    found = {"mean": mean.T, "sd": np.sqrt(np.maximum(variance, 0.0)).T}
    return found | ({"share": share.transpose(1, 2, 0)} if has_shares else {})


STREAM = StreamEngine(
    name="online_em",
    likelihoods=(Exponential,),
    has_shares=True,
    options=SimulatedOnlineEM,
    is_counts=False,
    block=Frames,
    supports=supports,
    prepare=prepare,
    init=init,
    check=check,
    update=update,
    seen=seen,
    track=track,
    finish=finish,
    activations=activations,
)

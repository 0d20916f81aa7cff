"""Simulated online EM (Cappe, Fevotte, Rohde 2011): W of a power spectrogram from frames that come one by one.

Frames p_n, exponential with mean W h_n (+ a known background), h_kn ~ InverseGamma(alpha_k, beta_k), are independent
given W. With the step sizes g_n = (n + offset)^-exponent a step is::

    E   s_n = mean over the last sweeps i of a Gibbs chain of E[|c_fkn|^2 | p_n, h^i] / h_k^i       eqs. 4 and 8
    A   S_n = (1 - g_n) S_{n-1} + g_n s_n                                                           eq. 8
    M   w_fk = (S_fk + b_n) / (1 + a_n)                                                             eq. 9

of one frame, or with s_n the mean over a mini-batch. Maximum likelihood has a_n = b_n = 0; the paper's smoothing is
a_n = a / n, b_n = b / n after n frames, and a prior w_fk ~ InverseGamma(a', b') is maximised by a = a' + 1, b = b'.

Where cells are missing the 1 of eq. 9 is the average, weighted as S is, of whether cell f was observed; W stays at its
start where nothing was. g_1 = 1, so that S_0 does not matter, but the start of W does.

A silent frame is data: power 0 everywhere, which a loud W makes unlikely. It pulls W towards 0, all of it where K = 1,
by 1 - g_n in each frame, and a long silence pulls it far; the activations of the next frames make up for it. Frames of
no interest are best left out, or given as NaN; a known noise floor (``background=``) explains them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.itakura_saito.online_options import SimulatedOnlineEM
from nmf_zoo.inference.start import FLOOR, SPREAD
from nmf_zoo.inference.stream_engine import ACTIVATIONS, SWEEPS, StreamEngine
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.frames import Activations, Chain, Frames, Room, activate_frames, expect_frames, make_room
from nmf_zoo.kernels.gibbs import draw_factor
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Factorisation, Flat, InverseGammaPrior

LEAST = 1e-100  # of W: maximum likelihood may be at 0, which no later frame could leave
CHUNK_WORK = 1 << 20  # cells x components x sweeps of one chunk of frames, some milliseconds


class FrameState(NamedTuple):
    """Where a stream of frames is.

    Attributes
    ----------
    Wt, start : (K, F) W as the last step left it, and as it began
    statistics : (K, F) S, and ``counts`` (F,), ``mass``: the same averages of whether a cell was observed, and of 1
    sums, count_sums : of S / mass and counts / mass over the averaged steps, or (0, F) and (0,)
    frames, steps, averaged : how many so far
    """

    Wt: Array
    start: Array
    statistics: Array
    counts: Array
    mass: float
    sums: Array
    count_sums: Array
    frames: int
    steps: int
    averaged: int


class FrameInfo(NamedTuple):
    """size: the step size."""

    size: float


@dataclass(frozen=True)
class Problem:
    """What a stream keeps of its model.

    Attributes
    ----------
    chain : how activations are drawn
    a, b : (K, F) of the maximisation: a_n = a / n, b_n = b / n
    exposure : (F,) what powers are divided by, or None
    rooms : scratch that no thread is using
    """

    structure: Factorisation
    options: SimulatedOnlineEM
    chain: Chain
    a: Array
    b: Array
    exposure: Array | None
    workers: Workers
    rooms: list[Room]


def supports(structure: Factorisation, options: SimulatedOnlineEM) -> Verdict:
    """Exponential data, H inverse gamma, W free or inverse gamma; known, and the same for all frames."""
    likelihood, W, H = structure.likelihood, structure.W, structure.H
    if likelihood.kind != "exponential":
        return Verdict(f"it draws components of powers, and {likelihood.name} is {likelihood.kind}")
    if not isinstance(W.prior, Flat | InverseGammaPrior):
        return Verdict(f"it maximises over {W.name or 'W'}, which is neither free nor inverse gamma")
    if options.smoothing is not None and not isinstance(W.prior, Flat):
        return Verdict(f"smoothing= is the prior of a free {W.name}; here it has one")
    if not isinstance(H.prior, InverseGammaPrior):
        return Verdict(f"it integrates {H.name or 'H'} out, which has no inverse-gamma prior")
    if unknowns := [u.name for u in (*W.unknowns, *H.unknowns)]:
        return Verdict(f"hyperparameters are unknown: {', '.join(unknowns)}")
    if any(_varies(array) for array in _full_prior(H)):
        return Verdict(f"the hyperparameters of {H.name} differ between samples, and new samples have none")
    for name in ("exposure", "background"):
        array = getattr(likelihood, name)
        if array is not None and _varies(array):
            return Verdict(f"the {name} differs between samples, and new samples have none")
    return CAN_RUN


def _full_prior(factor: Any) -> tuple[Array, Array]:
    """Shape and scale of an inverse-gamma prior, as large as the factor."""
    shape, scale = (np.broadcast_to(array, factor.shape) for array in factor.prior.shape_and_scale({}))
    return shape, scale


def _varies(array: Array) -> bool:
    """Not the same in all columns."""
    full = np.atleast_2d(array)
    return bool(np.any(full != full[:, :1]))


def prepare(structure: Factorisation, options: SimulatedOnlineEM, workers: Workers) -> Problem:
    """The priors, and what is known of every frame."""
    likelihood, (F, K) = structure.likelihood, structure.W.shape
    exposure = None if likelihood.exposure is None else _of_frequencies(likelihood.exposure, F)
    background = np.empty(0)
    if likelihood.background is not None:
        background = _of_frequencies(likelihood.background, F) / (1.0 if exposure is None else exposure)
    shape, scale = (np.array(array[:, 0], dtype=np.float64) for array in _full_prior(structure.H))
    is_plain = options.statistic == "plain"
    chain = Chain(shape, scale, background, options.sweeps, options.keep, is_plain, options.leaps)
    if isinstance(structure.W.prior, Flat):
        a, b = (np.full((K, F), value) for value in options.smoothing or (0.0, 0.0))
    else:
        of_w = _full_prior(structure.W)
        a, b = np.array(of_w[0].T + 1.0, order="C"), np.array(of_w[1].T, order="C", dtype=np.float64)
    return Problem(structure, options, chain, a, b, exposure, workers, [])


def _of_frequencies(array: Array, n_frequencies: int) -> Array:
    """What is known of every frame, (F,)."""
    column = np.atleast_2d(np.asarray(array, dtype=np.float64))[:, :1]
    return np.array(np.broadcast_to(column, (n_frequencies, 1))[:, 0])


def init(problem: Problem, frames: Frames, key: np.uint64, start: Mapping[str, Array]) -> FrameState:
    """Empty statistics, and a W that is given, or random at the size of the first mini-batch."""
    (F, K), W = problem.structure.W.shape, problem.structure.W
    if W.name in start:
        first = np.array(W.orient(np.asarray(start[W.name], dtype=np.float64)))
        first = np.maximum(first, FLOOR * first.max())
    else:
        typical = _typical(problem, frames.part(0, min(problem.options.batch, frames.n_columns)))
        active = problem.chain.scale / problem.chain.shape  # the harmonic mean of h: its mean may be infinite
        rate, first = np.broadcast_to(SPREAD * K * active / typical, (F, K)), np.empty((F, K))
        draw_factor(first, np.broadcast_to(SPREAD, (F, K)), rate, 0, F, key)
    Wt, n_averaged = np.array(first.T, order="C"), 0 if problem.options.average_after is None else K
    averages = np.zeros((n_averaged, F)), np.zeros(F if n_averaged else 0)
    return FrameState(Wt, Wt, np.zeros((K, F)), np.zeros(F), 0.0, *averages, 0, 0, 0)


def _typical(problem: Problem, frames: Frames) -> float:
    """The mean of the observed powers; 1 if it is 0."""
    power = _powers(problem, frames)
    mean = power.sum() / max(frames.seen.sum() if frames.seen.size else power.size, 1)
    return float(mean) if mean > 0 else 1.0


def _powers(problem: Problem, frames: Frames) -> Array:
    return frames.power if problem.exposure is None else frames.power / problem.exposure


def check(problem: Problem, state: FrameState, frames: Frames) -> None:
    """Any frame can be taken."""


def update(problem: Problem, state: FrameState, frames: Frames, key: np.uint64) -> tuple[FrameState, FrameInfo]:
    """One step, from a mini-batch of frames."""
    options, n = problem.options, frames.n_columns
    size = (state.steps + 1.0 + options.offset) ** -options.exponent
    found = _map(problem, lambda part, room: _expect(problem, state.Wt, part, room, key), frames)
    weight, statistics, counts = size / n, (1.0 - size) * state.statistics, (1.0 - size) * state.counts
    for of_chunk, counts_of_chunk in found:
        statistics += weight * of_chunk
        counts += weight * counts_of_chunk
    new = state._replace(
        statistics=statistics,
        counts=counts,
        mass=(1.0 - size) * state.mass + size,
        frames=state.frames + n,
        steps=state.steps + 1,
    )
    return _maximise(problem, _averaged(problem, new)), FrameInfo(size)


def _map(problem: Problem, work: Any, frames: Frames, has_shares: bool = False) -> list[Any]:
    """``work(frames, room)`` of all chunks of frames, whose size does not depend on threads."""
    (F, K), rooms = problem.structure.W.shape, [] if has_shares else problem.rooms
    most = max(1, CHUNK_WORK // (F * K * problem.options.sweeps))
    parts = [frames.part(at, min(at + most, frames.n_columns)) for at in range(0, frames.n_columns, most)]

    def in_a_room(part: Frames) -> Any:
        try:
            room = rooms.pop()
        except IndexError:
            room = make_room(F, K, has_shares)
        found = work(part._replace(power=_powers(problem, part)), room)
        rooms.append(room)
        return found

    return problem.workers.map(in_a_room, parts)


def _expect(problem: Problem, Wt: Array, frames: Frames, room: Room, key: np.uint64) -> tuple[Array, Array]:
    """Sums over frames of the statistics of W, (K, F), and of whether cells were observed, (F,)."""
    statistics, counts = np.zeros_like(Wt), np.zeros(Wt.shape[1])
    expect_frames(statistics, counts, frames, Wt, problem.chain, room, child(key, SWEEPS))
    return statistics, counts


def _averaged(problem: Problem, state: FrameState) -> FrameState:
    """Add to the averages of the statistics, if it is time to."""
    after = problem.options.average_after
    if after is None or state.frames <= max(after, problem.options.start_frames):
        return state
    return state._replace(
        sums=state.sums + state.statistics / state.mass,
        count_sums=state.count_sums + state.counts / state.mass,
        averaged=state.averaged + 1,
    )


def _maximise(problem: Problem, state: FrameState) -> FrameState:
    if state.frames < problem.options.start_frames:
        return state
    Wt = _weights(problem, state, state.statistics / state.mass, state.counts / state.mass)
    return state._replace(Wt=Wt)


def _weights(problem: Problem, state: FrameState, statistics: Array, counts: Array) -> Array:
    """Eq. 9, (K, F): with the average of whether a cell was observed in the place of 1."""
    below = counts + problem.a / state.frames
    Wt = np.divide(statistics + problem.b / state.frames, below, out=state.start.copy(), where=counts > 0)
    return np.maximum(Wt, LEAST, out=Wt)


def _final_weights(problem: Problem, state: FrameState) -> Array:
    """W (K, F), of the averaged statistics if there are some."""
    if state.averaged == 0:
        return state.Wt
    return _weights(problem, state, state.sums / state.averaged, state.count_sums / state.averaged)


def finish(problem: Problem, state: FrameState) -> tuple[dict[str, Array], dict[str, Array]]:
    """W, of the averaged statistics if there are some."""
    W = problem.structure.W
    return {W.name: W.orient(_final_weights(problem, state).T)}, {}


def seen(state: FrameState) -> int:
    """Frames so far."""
    return state.frames


def track(problem: Problem, state: FrameState) -> Array:
    """Sums of W's columns, (K,), as the last step left them."""
    return state.Wt.sum(axis=1)


def activations(
    problem: Problem, state: FrameState, frames: Frames, key: np.uint64, has_shares: bool = False
) -> dict[str, Array]:
    """Mean and standard deviation of H given the frames and the final W; shares of every cell, if they are wanted."""
    Wt, own_key = _final_weights(problem, state), child(key, ACTIVATIONS)

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
    kind="exponential",
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

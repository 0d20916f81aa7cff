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

What eq. 9 leaves slow, the scale of W, a parameter expansion sets at once, ``expand=True``, which is no part of the
paper's algorithm: see below.

A silent frame is data: power 0 everywhere, which a loud W makes unlikely. It pulls W towards 0, all of it where K = 1,
by 1 - g_n in each frame, and a long silence pulls it far; the activations of the next frames make up for it. Frames of
no interest are best left out, or given as NaN; a known noise floor (``background=``) explains them, too.

**The beginning.** W is as given, random, or fitted to the first frames. The marginal likelihood has many maxima, and a
stream that begins at random often ends in a poor one. So the first frames wait until there are enough of them for a
joint estimate of W and their log activations, the best from a few random starts, by updates that lower::

    sum_seen (log l + p / l) + sum_k (alpha_k log h_k + beta_k / h_k) + sum (a log w + b / w)

each (Fevotte, Idier 2011), with the last sum that of eq. 9; then they are steps like all others. It is no part of the
paper's algorithm.

**The scale.** The maximisation (Cappe, Fevotte, Rohde 2011, eq. 9) leaves the scale of a component where it is: |c|^2 /
h of W c is c |c|^2 / h, but for the prior of h, one number against the F that a frame has. So the scale moves by a
share of about alpha / F of what it should. Parameter expansion (Liu, Rubin, Wu 1998, PX-EM) gives h_k a scale of its
own, h_k ~ InverseGamma(alpha_k, r_k beta_k), whose statistic is V_k, the average of E[1 / h_k | p], decayed as S is.
With the average M of whether a cell was observed the expected log-likelihood of a frame is ::

    sum_f (-M_f log w*_f - S_f / w*_f) + alpha log r - r beta V                    w* of the expanded model

in which w* h with r is the model with w = r w*, h' = h / r and r = 1: reduced so. Its maximum is at w = r S / M and ::

    r = alpha / (beta V)

E[|c|^2 / h'] is r S then, and E[1 / h'] is r V: the statistics of the frames so far are multiplied by r, and eq. 9 is
what it was. Where the marginal likelihood is stationary, alpha = beta V and r = 1. Priors of W, and smoothing, act on
profiles through eq. 9, but not on r: they would pull at all cells of a component at once, F a / n against alpha, and
weak ones would empty components in the first frames. Their share in the scale goes as 1 / n anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.shared.start import FLOOR, SPREAD
from nmf_zoo.inference.shared.step_options import check_steps, is_real
from nmf_zoo.kernels.powers.frame_gibbs import (
    Activations,
    FramePlan,
    Frames,
    FrameStatistics,
    FrameWorkspace,
    activate_frames,
    expect_frames,
    make_workspace,
)
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.options import check_types, names_checked
from nmf_zoo.runtime.engine import CAN_RUN, Verdict
from nmf_zoo.runtime.state_patterns import Growing
from nmf_zoo.runtime.stream_engine import ACTIVATIONS, SWEEPS, StreamEngine, takes_exposures
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Exponential, Factorisation, Flat, InverseGammaPrior, shared_column, spans


@names_checked
@dataclass(frozen=True, kw_only=True)
class SimulatedOnlineEM:
    """Options of simulated online EM, for exponential data (Cappe, Fevotte, Rohde 2011).

    Attributes
    ----------
    sweeps, keep : L Gibbs sweeps of a frame's activations, and how many of the last, m, are averaged. What noise few
        sweeps leave averages out over the frames; their bias does not
    leaps : leapfrog steps of a Hamiltonian move of the activations that ends each sweep; 0, no such move, is the
        paper's sampler, whose draws resemble each other over tens of sweeps, over hundreds with many components. With 2
        or 3 they are nearly independent: on a piece of music the default differs from ``sweeps=100, keep=50, leaps=0``
        and ``sweeps=400, keep=200, leaps=0`` by less than random starts do, in 2/3 and 1/5 of the time
    exponent, offset : the n-th step has size (n + offset)^-exponent, 1/2 < exponent <= 1. Smaller exponents forget the
        beginning sooner, larger ones average longer
    statistic : "rao_blackwell", expectations given the drawn activations, or "plain", as drawn, which varies more
    smoothing : (a, b), both >= 0, when W is free: a_n = a / n, b_n = b / n in the maximisation. None for maximum
        likelihood, where W is kept from 0 by 1e-100. The paper has a = 1. W with an inverse-gamma prior has its own
    batch : frames of one step, drawn side by side on several cores. Blocks given to ``update`` are cut into steps of so
        many frames, the last of a block may have fewer
    first_frames : frames that are gathered until the start of W is fitted to them; they are streamed then, like all
        others. 0 begins at random, which ended 170 nats a frame lower on that music in shuffled order, and no lower in
        order of time. With ``initvals`` none are gathered
    average_after : from which frame on statistics are averaged over the steps, as Polyak and Ruppert average iterates;
        the W of the result is that of the averages. None for no averages
    expand : parameter expansion: the scale of H is estimated, too, and given to W, whose scale then settles as fast as
        its profiles do. For frames in random order; in those of a recording it follows what was last heard, and a
        component that is not heard for long may be lost

    Notes
    -----
    A silent frame, of power 0, is data: it pulls W towards 0 (W of a single component by the step size), and a long
    silence pulls it far. The activations of later frames make up for that, but frames of no interest are best left out,
    or given as NaN; a known noise floor is a ``background=`` of the model. Only the products of W and H are known well:
    without ``expand`` the scale of W settles slowly, the more so the more frequencies there are.

    The paper's algorithm is ``sweeps=400, keep=200, leaps=0, first_frames=0, smoothing=(1, b)``; its toy has
    ``sweeps=100, keep=1``.

    Examples
    --------
    >>> import numpy as np
    >>> import nmf_zoo as nz
    >>> rng = np.random.default_rng(1)
    >>> W = np.array([[1.0, 0.01], [0.5, 0.2], [0.02, 1.0]])
    >>> power = rng.exponential(size=(3, 2000)) * (W @ (1 / rng.gamma(1.0, size=(2, 2000))))
    >>> stream = nz.stream(nz.is_nmf(None, rank=2, shape=(3, 1)), engine="online_em", random_seed=1)
    >>> stream.update(power)
    >>> sorted(stream.W.argmax("feature").values.tolist())
    [0, 2]
    """

    sweeps: int = 20
    keep: int = 15
    leaps: int = 2
    exponent: float = 0.6
    offset: float = 0.0
    statistic: Literal["rao_blackwell", "plain"] = "rao_blackwell"
    smoothing: tuple[float, float] | None = None
    batch: int = 1
    first_frames: int = 100
    average_after: int | None = None
    expand: bool = False

    def __post_init__(self):
        check_types(self)
        check_steps(self)
        if self.smoothing is not None:
            object.__setattr__(self, "smoothing", _pair(self.smoothing))


def _pair(smoothing: Any) -> tuple[float, float]:
    is_pair = isinstance(smoothing, tuple | list) and len(smoothing) == 2
    if not is_pair or not all(is_real(value) and 0.0 <= value < np.inf for value in smoothing):
        raise InputError("smoothing", repr(smoothing), "None or two finite numbers >= 0, (a, b)")
    return float(smoothing[0]), float(smoothing[1])


CHUNK_WORK = 1 << 20  # cells x components x sweeps of one chunk of frames, some milliseconds


class FrameInfo(NamedTuple):
    """size: the step size."""

    size: float


# -- what it can run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrameProblem:
    """What a stream keeps of its model.

    Attributes
    ----------
    chain : how activations are drawn
    a, b : (K, F) of the maximisation: a_n = a / n, b_n = b / n
    exposure : (F,) what powers are divided by, or None
    workspaces : scratch that no thread is using
    """

    structure: Factorisation
    options: SimulatedOnlineEM
    chain: FramePlan
    a: Array
    b: Array
    exposure: Array | None
    workers: Workers
    workspaces: list[FrameWorkspace]


def supports(structure: Factorisation, options: SimulatedOnlineEM) -> Verdict:
    """Exponential data, H inverse gamma, W free or inverse gamma; known, and the same for all frames."""
    likelihood, W, H = structure.likelihood, structure.W, structure.H
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
        if shared_column(getattr(likelihood, name), W.shape[0], 1.0) is None:
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


def prepare(structure: Factorisation, options: SimulatedOnlineEM, workers: Workers) -> FrameProblem:
    """The priors, and what is known of every frame."""
    likelihood, (F, K) = structure.likelihood, structure.W.shape
    exposure = None if likelihood.exposure is None else shared_column(likelihood.exposure, F, 1.0)
    ratio = structure.background_ratio()
    background = np.empty(0) if ratio is None else np.ascontiguousarray(ratio[:, 0])
    shape, scale = (np.array(array[:, 0], dtype=np.float64) for array in _full_prior(structure.H))
    is_plain = options.statistic == "plain"
    chain = FramePlan(shape, scale, background, options.sweeps, options.keep, is_plain, options.leaps)
    if isinstance(structure.W.prior, Flat):
        a, b = (np.full((K, F), value) for value in options.smoothing or (0.0, 0.0))
    else:
        of_w = _full_prior(structure.W)
        a, b = np.array(of_w[0].T + 1.0, order="C"), np.array(of_w[1].T, order="C", dtype=np.float64)
    return FrameProblem(structure, options, chain, a, b, exposure, workers, [])


def relative_powers(problem: FrameProblem, frames: Frames) -> Array:
    """Powers over their exposure."""
    return frames.power if problem.exposure is None else frames.power / problem.exposure


# -- a step ----------------------------------------------------------------------------------------------------------


def update(problem: FrameProblem, state: FrameState, frames: Frames, key: np.uint64) -> tuple[FrameState, FrameInfo]:
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


def _step(problem: FrameProblem, state: FrameState, frames: Frames, key: np.uint64) -> tuple[FrameState, FrameInfo]:
    options, n = problem.options, frames.n_columns
    size = (state.steps + 1.0 + options.offset) ** -options.exponent
    found = _map(problem, lambda part, workspace: _expect(problem, state.Wt, part, workspace, key), frames)
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


def _map(problem: FrameProblem, work: Any, frames: Frames, has_shares: bool = False) -> list[Any]:
    """``work(frames, workspace)`` of all chunks of frames, whose size does not depend on threads."""
    (F, K), workspaces = problem.structure.W.shape, [] if has_shares else problem.workspaces
    most = max(1, CHUNK_WORK // (F * K * problem.options.sweeps))
    parts = [frames.part(*span) for span in spans(frames.n_columns, most)]

    def in_a_workspace(part: Frames) -> Any:
        try:
            workspace = workspaces.pop()
        except IndexError:
            workspace = make_workspace(F, K, has_shares)
        found = work(part._replace(power=relative_powers(problem, part)), workspace)
        workspaces.append(workspace)
        return found

    return problem.workers.map(in_a_workspace, parts)


def _expect(
    problem: FrameProblem, Wt: Array, frames: Frames, workspace: FrameWorkspace, key: np.uint64
) -> FrameStatistics:
    """Sums over frames."""
    out = FrameStatistics(np.zeros_like(Wt), np.zeros(Wt.shape[1]), np.zeros(len(Wt)))
    expect_frames(out, frames, Wt, problem.chain, workspace, child(key, SWEEPS))
    return out


def finish(problem: FrameProblem, state: FrameState) -> tuple[dict[str, Array], dict[str, Array]]:
    """W, of the averaged statistics if there are some."""
    W = problem.structure.W
    return {W.name: W.orient(_current_weights(problem, state).T)}, {}


def _current_weights(problem: FrameProblem, state: FrameState) -> Array:
    """W (K, F); while frames wait, fitted to those there are."""
    return begin(problem, state).Wt if state.is_waiting else final_weights(problem, state)


def seen(state: FrameState) -> int:
    """Frames so far."""
    return state.frames + len(state.waiting)


def track(problem: FrameProblem, state: FrameState) -> Array:
    """Sums of W's columns, (K,), as the last step left them."""
    return state.Wt.sum(axis=1)


def activations(
    problem: FrameProblem, state: FrameState, frames: Frames, key: np.uint64, has_shares: bool = False
) -> dict[str, Array]:
    """Mean and standard deviation of H given the frames and the final W; shares of every cell, if they are wanted."""
    Wt, own_key = _current_weights(problem, state), child(key, ACTIVATIONS)

    def work(part: Frames, workspace: FrameWorkspace) -> Activations:
        shares = np.zeros((part.n_columns, *Wt.shape) if has_shares else (0, 0, 0))
        mean, square = np.empty((2, part.n_columns, len(Wt)))
        out = Activations(mean, square, shares)
        activate_frames(out, part, Wt, problem.chain, workspace, own_key)
        return out

    parts = _map(problem, work, frames, has_shares)
    mean, square, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    is_finite = np.isfinite(square)
    variance = np.subtract(square, mean * mean, out=np.full_like(mean, np.inf), where=is_finite)
    found = {"mean": mean.T, "sd": np.sqrt(np.maximum(variance, 0.0)).T}
    return found | ({"share": share.transpose(1, 2, 0)} if has_shares else {})


# -- where it begins -------------------------------------------------------------------------------------------------


RESTARTS, UPDATES = 4, 100  # updates of W and H


def init(problem: FrameProblem, frames: Frames, key: np.uint64, start: Mapping[str, Array]) -> FrameState:
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


def _draw_starts(problem: FrameProblem, typical: float, n: int, key: np.uint64) -> Array:
    """Random W for frames of this typical power, (n, K, F)."""
    F, K = problem.structure.W.shape
    active = problem.chain.scale / problem.chain.shape  # the harmonic mean of h: its mean may be infinite
    rate, first = np.full((n * F, K), SPREAD * K * active / typical), np.empty((n * F, K))
    draw_factor(first, np.full((n * F, K), SPREAD), rate, 0, n * F, key)
    return np.array(first.reshape(n, F, K).transpose(0, 2, 1), order="C")


def _typical(problem: FrameProblem, frames: Frames) -> float:
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


def begin(problem: FrameProblem, state: FrameState) -> FrameState:
    """W fitted to the frames that wait, which are let go."""
    power, seen = relative_powers(problem, waiting_frames(state)), state.waiting_seen
    found = [fit(problem, Wt, power, seen) for Wt in state.start]
    Wt, _ = min(found, key=lambda both: cost(problem, both[0], both[1], power, seen))
    waiting, waiting_seen = _no_frames(power.shape[1])
    return state._replace(Wt=Wt, start=Wt[None], is_waiting=False, waiting=waiting, waiting_seen=waiting_seen)


def fit(problem: FrameProblem, Wt: Array, power: Array, seen: Array) -> tuple[Array, Array]:
    """W (K, F) and H (n, K) of frames (n, F) from a start of W; ``einsum``, whose bits do not depend on threads."""
    (alpha, beta, background), any_cell = problem.chain[:3], seen.any(axis=0)
    H = np.tile(beta / alpha, (len(power), 1))
    for _ in range(UPDATES):
        up, down = _slopes(Wt, H, power, seen, background)
        above, below = np.einsum("nf,kf->nk", up, Wt), np.einsum("nf,kf->nk", down, Wt)
        with np.errstate(over="ignore"):  # beta over a square beyond all numbers is 0
            H = H * np.sqrt((above + beta / H**2) / (below + alpha / H))
        up, down = _slopes(Wt, H, power, seen, background)
        above, below = np.einsum("nf,nk->kf", up, H), np.einsum("nf,nk->kf", down, H)
        above, below = above + problem.b / Wt**2, below + problem.a / Wt
        Wt = np.where(any_cell, np.maximum(Wt * np.sqrt(above / np.where(any_cell, below, 1.0)), LEAST), Wt)
    return Wt, H


def cost(problem: FrameProblem, Wt: Array, H: Array, power: Array, seen: Array) -> float:
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


# -- W from its statistics -------------------------------------------------------------------------------------------


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


def expand(problem: FrameProblem, state: FrameState) -> FrameState:
    """Statistics of activations at the scale r, once W is maximised."""
    if not problem.options.expand:
        return state
    r = problem.chain.shape * state.mass / (problem.chain.scale * state.inverse)
    return state._replace(statistics=state.statistics * r[:, None], inverse=state.inverse * r)


def averaged(problem: FrameProblem, state: FrameState) -> FrameState:
    """Add to the averages of the statistics, if it is time to."""
    after = problem.options.average_after
    if after is None or state.frames <= after:
        return state
    return state._replace(
        sums=state.sums + state.statistics / state.mass,
        count_sums=state.count_sums + state.counts / state.mass,
        averaged=state.averaged + 1,
    )


def maximise(problem: FrameProblem, state: FrameState) -> FrameState:
    """W from the statistics."""
    Wt = _weights(problem, state, state.statistics / state.mass, state.counts / state.mass)
    return state._replace(Wt=Wt)


def _weights(problem: FrameProblem, state: FrameState, statistics: Array, counts: Array) -> Array:
    """Eq. 9, (K, F): with the average of whether a cell was observed in the place of 1."""
    below = counts + problem.a / state.frames
    Wt = np.divide(statistics + problem.b / state.frames, below, out=state.start[0].copy(), where=counts > 0)
    return np.maximum(Wt, LEAST, out=Wt)


def final_weights(problem: FrameProblem, state: FrameState) -> Array:
    """W (K, F), of the averaged statistics if there are some."""
    if state.averaged == 0:
        return state.Wt
    return _weights(problem, state, state.sums / state.averaged, state.count_sums / state.averaged)


STREAM: StreamEngine = StreamEngine(
    name="online_em",
    likelihoods=(Exponential,),
    has_shares=True,
    takes_exposures=takes_exposures,
    options=SimulatedOnlineEM,
    is_counts=False,
    block=Frames,
    supports=supports,
    prepare=prepare,
    init=init,
    update=update,
    seen=seen,
    track=track,
    finish=finish,
    activations=activations,
)

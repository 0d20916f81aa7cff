"""Which models simulated online EM can stream, and what it keeps of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nmf_zoo.inference.engine import CAN_RUN, Verdict
from nmf_zoo.inference.itakura_saito.online_options import SimulatedOnlineEM
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.frames import Chain, Frames, Room
from nmf_zoo.structure import Array, Factorisation, Flat, InverseGammaPrior


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


def relative_powers(problem: Problem, frames: Frames) -> Array:
    """Powers over their exposure."""
    return frames.power if problem.exposure is None else frames.power / problem.exposure

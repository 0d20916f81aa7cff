"""Itakura-Saito updates of a recording, beside the multiplicative ones of scikit-learn. One thread, float64."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.io import wavfile
from scipy.signal import resample_poly, stft
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.iterations import CALLS, Stepper
from benchmarks.rows import REPEATS, Row, compare, cpu_of, medians, note
from benchmarks.scikit_learn import NAME, Peer
from nmf_zoo.inference.powers.em import POWER_FLOOR
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Factorisation, Flat

RANK, LEAST = 10, 3.0
LEVEL = 1e13  # mean power: the floor is 1e-16 of it, and scikit-learn raises every mean below 1e-7
UPDATES = ("monotone", "heuristic", "sage")
LOSS = "itakura-saito"


def recording() -> tuple[np.ndarray, str]:
    """Power (frequencies, frames) at 16 ms hop, floored and scaled, and what to call it."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "audio_vibeace" / "vibe_ace_22050_mono.wav"
    if "NMF_ZOO_DATA" in os.environ and path.exists():
        _, sound = wavfile.read(path)
        spectra = stft(resample_poly(sound / 32768.0, 320, 441), 16000, nperseg=512, noverlap=256, boundary=None,
                       padded=False)[2][1:]  # fmt: skip
        power, name = np.abs(spectra) ** 2, "a recording"
    else:
        rng = np.random.default_rng(0)
        power = rng.exponential(rng.gamma(0.3, size=(256, 3)) @ rng.gamma(0.3, size=(3, 3840)))
        name = "a simulated stand-in (set NMF_ZOO_DATA for the recording)"
    power = np.ascontiguousarray(power / power.mean())  # as it comes from SciPy scikit-learn takes twice as long
    return LEVEL * np.maximum(power, POWER_FLOOR), f"{name}, {power.shape[0]} x {power.shape[1]:,}"


def rows(quick: bool) -> Iterator[Row]:
    """Per iteration, and to the objective that scikit-learn reaches."""
    X, name = recording()
    X = X[:, :300] if quick else X
    with threadpool_limits(1):
        yield from per_iteration(X, name, quick)
        yield from to_the_same(X, name, quick)


def per_iteration(X: np.ndarray, name: str, quick: bool) -> Iterator[Row]:
    """One iteration of each update; scikit-learn in both precisions, ours in float64 alone."""
    structure, more = nz.read(nz.is_nmf(X, RANK)), 2 if quick else 10
    options = [nz.EM(update=update, accelerate=None) for update in UPDATES] + [nz.EM()]
    ours = [cpu_of(Stepper(free(structure), one), CALLS) for one in options]
    with Peer() as peer:
        theirs = [peer.an_update(X.astype(kind), RANK, more, loss=LOSS) for kind in (np.float64, np.float32)]
        *seconds, other, single = medians(ours + theirs, 1 if quick else REPEATS)
    for label, mine, least in zip((*UPDATES, "default (momentum)"), seconds, (LEAST, LEAST, None, None), strict=True):
        cost = f"{1e3 * mine:.2f} ms, {1e9 * mine / (X.size * RANK):.2f} ns per cell and component"
        work = f"Itakura-Saito, one {label} iteration, {name}, C order, K={RANK}"
        yield compare(work, cost, f"{1e3 * other:.2f} ms ({NAME})", other / mine, least)
    work = f"Itakura-Saito, one monotone iteration, float64 beside the peer's float32, {name}, K={RANK}"
    yield compare(work, f"{1e3 * seconds[0]:.2f} ms", f"{1e3 * single:.2f} ms ({NAME})", single / seconds[0], LEAST)


def free(structure: Factorisation) -> Factorisation:
    """The model with H free, too: what scikit-learn fits."""
    return replace(structure, H=replace(structure.H, prior=Flat()))


def to_the_same(X: np.ndarray, name: str, quick: bool) -> Iterator[Row]:
    """CPU seconds to what scikit-learn reaches in 100 iterations, from one start."""
    iterations, rng = 5 if quick else 100, np.random.default_rng(1)
    scale = np.sqrt(X.mean() / RANK)
    start = {"W": scale * rng.gamma(2.0, 0.5, (len(X), RANK)), "H": scale * rng.gamma(2.0, 0.5, (RANK, X.shape[1]))}
    with Peer() as peer:
        found = peer.updates(X, RANK, iterations, loss=LOSS, start=(start["W"], start["H"]))
    mean = found.W @ found.H
    target = float(np.sum(np.log(mean) + X / mean))
    for update in ("auto", "heuristic", "monotone"):
        mine, count = seconds_to(target, free(nz.read(nz.is_nmf(X, RANK))), nz.EM(update=update), start)
        work = (
            f"Itakura-Saito, CPU to scikit-learn's objective after {iterations} iterations, update={update!r}, {name}"
        )
        text = f"{found.seconds:.2f} s ({NAME})"
        if count is None:
            yield note(work, "**not reached**", text)
        else:
            yield compare(work, f"{mine:.3f} s, {count} iterations", text, found.seconds / mine, LEAST)


def seconds_to(target: float, structure: Factorisation, options: nz.EM, start: dict) -> tuple[float, int | None]:
    """(CPU seconds, iterations or None) to the target, preparation included, after a run to compile."""
    engine = Stepper(structure, options).engine
    for _ in range(2):
        began = time.process_time()
        problem = engine.prepare(structure, options, SERIAL)
        state, count = engine.init(problem, seed_key(1), start), 0
        while state.objective > target and count < 1000:
            state, _ = engine.step(problem, state, child(seed_key(1), count))
            count += 1
        seconds = time.process_time() - began
    return seconds, count if state.objective <= target else None

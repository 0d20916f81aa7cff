"""Simulated online EM over a power spectrogram: against the clock and NumPy; its memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import nmf_zoo as nz
from benchmarks.memory import memory
from benchmarks.rows import Row, at_most, compare, note

HOP = 0.016  # seconds, and the rest of the paper's settings (section 3): about 5600 spectra of 90 s of sound
F, K, SWEEPS, KEEP = 256, 3, 400, 200


def rows(quick: bool) -> Iterator[Row]:
    """Time of a frame at the paper's audio settings, beside NumPy; of a second pass; of mini-batches; memory."""
    X = spectrogram(F, K, 40 if quick else 200)
    sweeps, keep = (20, 10) if quick else (SWEEPS, KEEP)
    what = f"F={F}, K={K}, L={sweeps}, m={keep}"
    learn = least(lambda: begin(X, sweeps=sweeps, keep=keep), X)
    work = F * K * sweeps
    yield at_most(
        f"simulated online EM, {what}, 1 core: CPU time of a frame",
        f"{1e3 * learn:.2f} ms, {HOP / learn:.0f} times as fast as it plays",
        learn,
        HOP,
        f"{1e3 * HOP:.0f} ms, the hop",
    )
    theirs = numpy_sweep(X)
    yield compare(
        f"composite Gibbs sweep of a frame, {what}, with the statistics, against one in NumPy",
        f"{1e9 * learn / work:.2f} ns a cell and component",
        f"{1e9 * theirs / (F * K):.1f} ns",
        theirs / (learn / sweeps),
        2.5,
    )
    stream = begin(X, sweeps=sweeps, keep=keep)
    stream.update(X[:, :5])
    second = timed(lambda: stream.activations(X)) / X.shape[1]
    yield note(f"second pass, activations under the final W, {what}", f"{1e3 * second:.2f} ms a frame")
    yield moves(quick)
    yield from toy(quick)
    yield from batches(X, sweeps, keep)
    yield growth(600.0 if not quick else 4.0)


def spectrogram(n_frequencies: int, rank: int, n: int) -> np.ndarray:
    """Powers (F, n) from the model."""
    rng = np.random.default_rng(0)
    W = rng.gamma(0.5, size=(n_frequencies, rank)) + 1e-3
    return rng.exponential(size=(n_frequencies, n)) * (W @ (1.0 / rng.gamma(1.0, size=(rank, n))))


def begin(X: np.ndarray, cores: int = 1, rank: int = K, **options: Any) -> Any:
    """The paper's sampler, from a random start, but for these options."""
    model, paper = nz.is_nmf(None, rank, shape=(len(X), 1)), {"leaps": 0, "first_frames": 0}
    return nz.stream(model, engine=nz.SimulatedOnlineEM(**(paper | options)), random_seed=1, cores=cores)


def least(make: Any, X: np.ndarray, times: int = 4) -> float:
    """CPU seconds of a frame, one frame given at a time."""
    found = np.inf
    for _ in range(times):
        stream = make()
        began = time.process_time()
        for frame in X.T:
            stream.update(frame)
        found = min(found, (time.process_time() - began) / X.shape[1])
    return found


def timed(work: Any, times: int = 3, clock: Any = time.process_time) -> float:
    found = np.inf
    for _ in range(times):
        began = clock()
        work()
        found = min(found, clock() - began)
    return found


def numpy_sweep(X: np.ndarray) -> float:
    """CPU seconds of one sweep of one frame: components from the prior, then corrected; then the activations."""
    rng = np.random.default_rng(0)
    W, h, y, n = rng.gamma(0.5, size=(F, K)) + 1e-3, np.ones(K), np.sqrt(X[:, 0]), 200

    def sweeps() -> None:
        nonlocal h
        for _ in range(n):
            variance = W * h
            z = rng.standard_normal((2, F, K))
            c = (z[0] + 1j * z[1]) * np.sqrt(0.5 * variance)
            share = variance / variance.sum(axis=1, keepdims=True)
            c += share * (y - c.sum(axis=1))[:, None]
            h = (1.0 + ((c.real**2 + c.imag**2) / W).sum(axis=0)) / rng.gamma(1.0 + F, size=K)
            share**2 * X[:, :1] + variance * (1.0 - share)  # the statistic, before its average

    return timed(sweeps) / n


def moves(quick: bool) -> Row:
    """What a draw of the activations costs as good as an independent one, for the component that mixes worst."""
    copies, keep, costs = 20 if quick else 100, 200, []
    X = np.repeat(spectrogram(F, K, 1), copies, axis=1)  # one frame: its number keys its draws
    for leaps in (0, 2):
        means = []
        for kept in (1, keep):
            stream = begin(X, sweeps=200 + kept, keep=kept, leaps=leaps, batch=copies)
            stream.update(X[:, :1])
            seconds = timed(lambda stream=stream: stream.activations(X))
            means.append(np.log(stream.activations(X)["H_mean"].to_numpy()))
        multiple = keep * (means[1].var(axis=1) / means[0].var(axis=1)).max()
        costs.append(1e6 * multiple * seconds / copies / (200 + keep))
    return compare(
        f"an independent draw of a frame's activations, F={F}, K={K}: sweeps that end with 2 leaps, against plain",
        f"{costs[1]:.0f} us",
        f"{costs[0]:.0f} us",
        costs[0] / costs[1],
    )


def toy(quick: bool) -> Iterator[Row]:
    """What small frames cost, and what of it is Python."""
    X = spectrogram(10, 2, 50 if quick else 1000)
    alone = timed(lambda: begin(X, rank=2, sweeps=100, keep=1).update(X)) / X.shape[1]
    yield note("simulated online EM, F=10, K=2, L=100, m=1, one frame a step", f"{1e6 * alone:.0f} us a frame")


def batches(X: np.ndarray, sweeps: int, keep: int) -> Iterator[Row]:
    """Mini-batches on two cores."""
    options = {"sweeps": sweeps, "keep": keep, "batch": 20}
    one, two = (
        timed(lambda cores=cores: begin(X, cores, **options).update(X), clock=time.perf_counter) for cores in (1, 2)
    )
    yield compare(
        f"mini-batches of 20 frames on 2 cores, seconds; the same bits: {'yes' if identical(X, options) else 'no'}",
        f"{two:.2f} s",
        f"{one:.2f} s on 1",
        one / two,
    )


def identical(X: np.ndarray, options: Any) -> bool:
    found = []
    for cores in (1, 2):
        stream = begin(X, cores, **options)
        stream.update(X)
        found.append(stream.W.to_numpy())
    return bool(np.array_equal(*found))


def growth(seconds: float) -> Row:
    """Resident size after a tenth of so much sound and after all of it; few sweeps, which has no bearing on it."""
    stream, n = begin(np.empty((F, 0)), sweeps=2, keep=1), int(seconds / HOP)
    block, sizes = spectrogram(F, K, 100), []
    for seen in range(0, n, 100):
        stream.update(block)
        if seen >= n // 10:
            sizes.append(memory("VmRSS"))
    grown = sizes[-1] - sizes[0]
    what = f"memory of a stream from {seconds / 10:.0f} to {seconds:.0f} s of sound, {stream.columns_seen:,} frames"
    return at_most(what, f"{grown:+.1f} MiB", max(grown, 0.0), 8.0, "8 MiB")

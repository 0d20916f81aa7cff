"""Fits over blocks of a store beside the same fits in memory: CPU to a given divergence, and the time of an iteration.

One thread, float64. A store lies in the page cache; where it is compressed a row says so. A thread of its own reads the
next block, whose CPU is counted, and which the clock on the wall does not see where a core is idle.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.clusters import FEATURES, texts
from benchmarks.convergence import BEST_NIPS, divergence_constant, spread
from benchmarks.datasets import nips, used_words
from benchmarks.rows import Others, Row, at_most, by_clock, note, verdict

RANK, RANKS = 10, (10, 50)
STARTS, MOST = 9, 120  # seeds, and iterations that each may take
PIECES = 5  # blocks of the NIPS counts, which by default are one
SAMPLES = 60_000  # of the simulated texts: 4.5 million non-zeros, three blocks
ENGINES = {"VB": nz.VB(), "EM, momentum": nz.EM(accelerate="momentum"), "EM": nz.EM()}
CPU_LIMIT, CLOCK_LIMIT = 2.0, 1.3


def rows(quick: bool) -> Iterator[Row]:
    """CPU to 0.1 % of the best known divergence of NIPS counts; iterations over simulated texts."""
    with threadpool_limits(1), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        yield from to_divergence(Path(folder), quick)
        yield from of_iterations(Path(folder), quick)


def to_divergence(folder: Path, quick: bool) -> Iterator[Row]:
    """EM in memory, over the store as it is cut by default, and cut small, in turns; all that a call does counts."""
    X, _ = nips()
    X = used_words(sp.csc_array(X, dtype=np.float64))
    nz.write_blocks(folder / "nips.zarr", X)
    whole, small = (nz.open_blocks(folder / "nips.zarr", block=block) for block in (None, -(-X.shape[1] // PIECES)))
    declared = nz.poisson_nmf(None, RANK, shape=(X.shape[0], 1))
    runs = [{"model": nz.poisson_nmf(X, RANK)}, *({"model": declared, "data": blocks} for blocks in (whole, small))]
    target, most = 1.001 * BEST_NIPS - divergence_constant(X), 2 if quick else MOST
    for run in runs:
        cpu_to(target, 2, 0, **run)  # compiles
    seconds = [[cpu_to(target, most, seed, **run) for run in runs] for seed in range(1 if quick else STARTS)]
    theirs, *ours = ([*of_run] for of_run in zip(*seconds, strict=True))
    for blocks, own in zip((whole, small), ours, strict=True):
        yield judged(
            f"CPU to a KL within 0.1 % of the best known, NIPS counts, K={RANK}, EM over a compressed store in "
            f"{len(blocks.bounds) - 1} block(s)",
            own,
            theirs,
        )


def judged(work: str, ours: list[float], theirs: list[float]) -> Row:
    """A row of medians; where not half of our runs arrive there is no ratio but a loss."""
    limit, took, peer = f"{CPU_LIMIT:g} times that in memory", spread(ours), f"{spread(theirs)}, in memory"
    own, other = (float(np.median(seconds)) for seconds in (ours, theirs))
    if np.isfinite(own):
        return at_most(work, took, own, CPU_LIMIT * other, limit, peer)
    return note(work, f"{took}: **not reached**", peer) | {"must reach": limit, "met?": verdict(False)}


def cpu_to(target: float, most: int, seed: int, **how: Any) -> float:
    """CPU seconds from the call to an objective that is no more than the target; infinite if none comes."""
    found, began = np.inf, time.process_time()

    def on_step(step: nz.Step) -> bool:
        nonlocal found
        if step.info["objective"] <= target:
            found = time.process_time() - began
        return bool(np.isfinite(found))

    run = {"max_iter": most, "tol": 0.0, "random_seed": seed, "quiet": True, "cores": 1, "search": None}
    nz.fit(engine="em", on_step=on_step, **run, **how)
    return found


def of_iterations(folder: Path, quick: bool) -> Iterator[Row]:
    """One iteration over a store beside one in memory, by the clock; CPU seconds stand beside them."""
    X = texts(1000 if quick else SAMPLES)
    stores = {kind: folder / f"{kind}.zarr" for kind in ("uncompressed", "compressed")}
    for kind, path in stores.items():
        nz.write_blocks(path, X, compress=kind == "compressed")
    for rank in RANKS:
        for name, engine in ENGINES.items():
            others, declared = Others(), nz.gamma_nmf(None, rank, shape=(FEATURES, 1))
            in_memory = of_iteration(engine, quick, model=nz.gamma_nmf(X, rank))
            for kind, path in stores.items():
                blocks = nz.open_blocks(path)
                kept = folder / f"{name}-{rank}-{kind}.zarr"
                over = of_iteration(engine, quick, model=declared, data=blocks, store=kept)
                of = f"{len(blocks.bounds) - 1} block(s), {kind}, {X.nnz:,} non-zeros, K={rank}"
                yield by_clock(beside(f"one iteration of {name} over {of}", kind, over, in_memory), others)


def beside(work: str, kind: str, over: tuple[float, float], in_memory: tuple[float, float]) -> Row:
    """A row of (seconds by the clock, CPU seconds); nothing is asked of compressed stores."""
    took = f"{over[0]:.3f} s by the clock, {over[1]:.3f} of CPU"
    peer = f"{in_memory[0]:.3f} s, {in_memory[1]:.3f} of CPU, in memory"
    if kind == "compressed":
        return note(work, took, peer) | {"ratio": f"{over[0] / in_memory[0]:.2f} times that in memory"}
    return at_most(work, took, over[0], CLOCK_LIMIT * in_memory[0], f"{CLOCK_LIMIT:g} times that in memory", peer)


def of_iteration(engine: Any, quick: bool, **how: Any) -> tuple[float, float]:
    """The medians of (seconds by the clock, CPU seconds) of some iterations."""
    ends: list[tuple[float, float]] = []
    run = {"max_iter": 3 if quick else 12, "tol": 0.0, "random_seed": 1, "quiet": True, "cores": 1, "search": None}
    nz.fit(engine=engine, on_step=lambda step: ends.append((time.perf_counter(), time.process_time())), **run, **how)
    clock, cpu = np.median(np.diff(ends, axis=0), axis=0)
    return float(clock), float(cpu)

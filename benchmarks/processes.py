"""Many independent runs in one process and in two: the time that passes. Needs an idle machine with two cores."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pymc as pm

import nmf_zoo as nz
from benchmarks.datasets import gamma_counts
from benchmarks.rows import Others, Row, by_clock, compare, note

LEAST = 1.8  # times as fast
SHAPE, RANK = (60, 100), 4
LARGER, MORE = (300, 400), 8  # of chains and restarts, of which there are few


def rows(quick: bool) -> Iterator[Row]:
    """``select_rank``, ``calibrate``, chains and restarts, each of a size that takes some ten seconds."""
    if (os.cpu_count() or 1) < 2:
        yield note("two processes", "skipped: one core")
        return
    yield of_two("select_rank, 8 ranks, 10 restarts each, 60 x 100 counts", ranks_of, 1 if quick else 10)
    yield of_two("calibrate, 400 simulations, Gibbs, 20 x 30 counts", calibrated, 20 if quick else 400)
    yield of_two("sample, 4 chains of 400 + 400 sweeps, 300 x 400 counts, K=8", sampled, 10 if quick else 400)
    yield of_two("fit, 8 restarts of 1,000 iterations of VB, 300 x 400 counts, K=8", restarted, 10 if quick else 1000)


def of_two(work: str, run: Callable[..., np.ndarray], size: int) -> Row:
    """One process beside two, and two threads, all with their kernels loaded; and whether results are the same bits."""
    others, seconds, found = Others(), [], []

    def measure(**where: Any) -> None:
        run(min(size, 20), **where)
        began = time.perf_counter()
        found.append(run(size, **where))
        seconds.append(time.perf_counter() - began)

    for n_processes in (1, 2):
        with ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn")) as executor:
            measure(executor=executor)
    measure(cores=2)
    same = "same bits" if all(np.array_equal(found[0], other) for other in found[1:]) else "**different bits**"
    row = compare(
        f"2 processes, {work}",
        f"{seconds[1]:.1f} s, {same}",
        f"{seconds[0]:.1f} s (1 process), {seconds[2]:.1f} s (2 threads)",
        seconds[0] / seconds[1],
        LEAST,
    )
    return by_clock(row, others)


def ranks_of(restarts: int, **where: Any) -> np.ndarray:
    """The estimates of ranks 1 to 8."""
    run = {"restarts": min(restarts, 10), "search": None, "random_seed": 1, "quiet": True}
    return nz.select_rank(factorised, range(1, 9), **run, **where)["estimate"].to_numpy()


def factorised(rank: int) -> pm.Model:
    """Of a table that every process makes for itself."""
    return nz.gamma_nmf(gamma_counts(*SHAPE, RANK, 5.0), rank)


def calibrated(simulations: int, **where: Any) -> np.ndarray:
    """The ranks of the simulations."""
    run = {"simulations": simulations, "progressbar": False, "random_seed": 1}
    return nz.calibrate(declared, "gibbs", **run, **where)["rank"].to_numpy()


def declared() -> pm.Model:
    """Of data that are simulated."""
    return nz.gamma_nmf(None, 3, alpha_w=1.0, alpha_h=1.0, shape=(20, 30))


def larger() -> pm.Model:
    """Of the table of chains and restarts."""
    return nz.gamma_nmf(gamma_counts(*LARGER, MORE, 5.0), MORE)


def sampled(sweeps: int, **where: Any) -> np.ndarray:
    """Draws of W."""
    run = {"tune": sweeps, "chains": 4, "extend": 1, "start": "random", "random_seed": 1, "quiet": True}
    return nz.sample(sweeps, model=larger(), **run, **where).posterior["W"].to_numpy()


def restarted(iterations: int, **where: Any) -> np.ndarray:
    """Draws of W from the best of eight."""
    run = {"restarts": 8, "max_iter": iterations, "tol": 0.0, "search": None, "random_seed": 1, "quiet": True}
    return nz.fit(model=larger(), engine="vb", **run, **where).posterior["W"].to_numpy()

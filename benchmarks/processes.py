"""Many independent runs in one process and in two: the time that passes. Needs an idle machine with two cores."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import numpy as np
import pymc as pm

import nmf_zoo as nz
from benchmarks.datasets import gamma_counts
from benchmarks.rows import Others, Row, by_clock, compare, note

LEAST = 1.8  # times as fast
SHAPE, RANK = (60, 100), 4


def rows(quick: bool) -> Iterator[Row]:
    """``select_rank`` and ``calibrate``, each of a size that takes some ten seconds."""
    if (os.cpu_count() or 1) < 2:
        yield note("two processes", "skipped: one core")
        return
    yield of_two("select_rank, 8 ranks, 10 restarts each, 60 x 100 counts", ranks_of, 1 if quick else 10)
    yield of_two("calibrate, 400 simulations, Gibbs, 20 x 30 counts", calibrated, 20 if quick else 400)


def of_two(work: str, run: Callable[[Executor, int], Any], size: int) -> Row:
    """One process beside two, both with their kernels loaded; and whether the results are the same bits."""
    others, seconds, found = Others(), [], []
    for n_processes in (1, 2):
        with ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn")) as executor:
            run(executor, min(size, 20))
            began = time.perf_counter()
            found.append(run(executor, size))
            seconds.append(time.perf_counter() - began)
    same = "same bits" if np.array_equal(*found) else "**different bits**"
    row = compare(
        f"2 processes, {work}",
        f"{seconds[1]:.1f} s, {same}",
        f"{seconds[0]:.1f} s (1 process)",
        seconds[0] / seconds[1],
        LEAST,
    )
    return by_clock(row, others)


def ranks_of(executor: Executor, restarts: int) -> np.ndarray:
    """The estimates of ranks 1 to 8."""
    run = {"restarts": min(restarts, 10), "search": None, "random_seed": 1, "quiet": True, "executor": executor}
    return nz.select_rank(factorised, range(1, 9), **run)["estimate"].to_numpy()


def factorised(rank: int) -> pm.Model:
    """Of a table that every process makes for itself."""
    return nz.gamma_nmf(gamma_counts(*SHAPE, RANK, 5.0), rank)


def calibrated(executor: Executor, simulations: int) -> np.ndarray:
    """The ranks of the simulations."""
    run = {"simulations": simulations, "progressbar": False, "random_seed": 1, "executor": executor}
    return nz.calibrate(declared, "gibbs", **run)["rank"].to_numpy()


def declared() -> pm.Model:
    """Of data that are simulated."""
    return nz.gamma_nmf(None, 3, alpha_w=1.0, alpha_h=1.0, shape=(20, 30))

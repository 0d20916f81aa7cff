"""One thread and two on the same iterations: the time that passes, and whether the results are the same bits.

Needs an idle machine with two cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import nips
from benchmarks.iterations import PLAIN, Stepper, gap_given_W
from benchmarks.rows import Others, Row, by_clock, compare, fastest, note
from nmf_zoo.runtime.workers import SERIAL, Workers

REPEATS = 60  # the least of many: a thread waits for whatever else the machine does
RUNS = (
    ("plain EM iteration", nz.poisson_nmf, PLAIN["em"], "fit", 1.8),
    ("plain VB iteration", nz.gamma_nmf, PLAIN["vb"], "fit", 1.8),
    ("accelerated EM iteration", nz.poisson_nmf, "em", "fit", 1.8),
    ("Gibbs sweep", nz.gamma_nmf, "gibbs", "sample", 1.8),
    ("Gibbs sweep of GaP given W", gap_given_W, "gibbs", "sample", 1.7),
)


def arrays_of(state: Any) -> Iterator[np.ndarray]:
    """All arrays of a state, in order."""
    if isinstance(state, dict):
        state = tuple(state.values())
    if isinstance(state, tuple):
        for part in state:
            yield from arrays_of(part)
    elif isinstance(state, np.ndarray):
        yield state


def are_identical(one: Any, other: Any) -> bool:
    """Whether two states are the same bits."""
    pairs = zip(arrays_of(one), arrays_of(other), strict=True)
    return all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in pairs if a.flags.c_contiguous and a.size)


def rows(quick: bool) -> Iterator[Row]:
    """One row per engine."""
    if (os.cpu_count() or 1) < 2:
        yield note("two threads", "skipped: one core")
        return
    X, label = nips()
    two = Workers(2)
    with threadpool_limits(1):
        for name, declare, engine, verb, least in RUNS:
            structure = nz.read(declare(X, 10))
            alone, both = (Stepper(structure, engine, verb, workers) for workers in (SERIAL, two))
            others = Others()
            own, helped = fastest((alone, both), 2 if quick else REPEATS, time.perf_counter)
            same = "same bits" if are_identical(alone.state, both.state) else "**different bits**"
            work = f"2 threads, one {name}, {label}, K=10"
            took = f"{1e3 * helped:.1f} ms, {same}", f"{1e3 * own:.1f} ms (1 thread)"
            yield by_clock(compare(work, *took, own / helped, least), others)
    two.close()

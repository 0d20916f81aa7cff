"""The one driver: chains and restarts, seeds, threads, warm-up, thinning, progress, interruption, convergence, storage.

Streams: run -> chain -> {start, draw 0, draw 1, ..., step 0, step 1, ...}; a chain's draws depend on its seed and its
number, never on the threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.blocks import blocks, longest_block, run_block
from nmf_zoo.inference.engine import DRAW, START, STEPS, Engine
from nmf_zoo.inference.progress import Watch
from nmf_zoo.inference.traces import Chain, Trace
from nmf_zoo.inference.workers import OneBlasThread, Workers
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Array, Factorisation

Start = Mapping[str, Array]

STATUS = {
    "converged": "the residual fell below tol",
    "max_iter": "stopped at max_iter with the residual still above tol: raise max_iter, or tol if this is near enough",
    "all_iterations": "ran the max_iter iterations asked for (tol=0)",
    "interrupted": "stopped by the user; the solution is the last iterate",
}


@dataclass(frozen=True, kw_only=True)
class SampleRun:
    """How long to sample.

    Of the ``draws`` sweeps after ``tune`` every ``thin``-th is kept; of the variables, all or ``var_names``.
    """

    draws: int
    tune: int
    thin: int
    keep_warmup: bool
    cores: int
    progressbar: bool
    var_names: tuple[str, ...] | None = None

    @property
    def kept_draws(self) -> int:
        """Draws of each chain that are stored."""
        return -(-self.draws // self.thin)

    @property
    def kept_warmup(self) -> int:
        """Warm-up sweeps of each chain that are stored."""
        return -(-self.tune // self.thin) if self.keep_warmup else 0


@dataclass(frozen=True, kw_only=True)
class FitRun:
    """How long to iterate, and how many draws of the solution's distribution to make."""

    max_iter: int
    tol: float
    draws: int
    cores: int
    progressbar: bool


@dataclass
class Solution:
    """What one restart gave: the iterates' objective, where it stopped and why, and the draws of its solution."""

    objective: list[float]
    residual: float
    status: str
    values: dict[str, Array]
    parameters: dict[str, Array]


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_chains(
    engine: Engine, structure: Factorisation, options: Any, run: SampleRun, key: np.uint64, starts: Sequence[Start]
) -> tuple[list[Chain], bool]:
    """Sample one chain per start. Returns the chains, cut to the same length, and whether Ctrl-C stopped them.

    Chains that an interruption left far behind are dropped (see :func:`_fullest`).
    """

    def sample(problem: Any, chain: int, watch: Watch, stop: threading.Event) -> Chain:
        return _sample_chain(engine, problem, run, child(key, chain), starts[chain], stop, _reporter(watch, chain))

    total = run.tune + run.draws
    chains, stopped = _in_threads(engine, structure, options, run, sample, len(starts), total, "chain")
    chains = _fullest(chains)
    for part in ("warmup", "draws"):
        _cut([getattr(chain, part) for chain in chains])
    return chains, stopped


def _sample_chain(engine, problem, run, key, start, stop, report) -> Chain:
    result = Chain(Trace(run.kept_warmup), Trace(run.kept_draws))
    state = engine.init(problem, child(key, START), start)
    for block in blocks(0, run.tune, run.draws, run.thin, run.keep_warmup, longest_block(engine)):
        if stop.is_set():
            break
        state, values, stats = run_block(engine, problem, state, key, block)
        if stats:
            kept = values if run.var_names is None else {name: values[name] for name in run.var_names}
            (result.warmup if block.tuning else result.draws).extend(kept, stats)
        report(block.stop, "warm-up" if block.tuning else "draws", last=block.stop == run.tune + run.draws)
    return result


def _fullest(chains: list[Chain]) -> list[Chain]:
    """The chains that hold most draws together when cut to their shortest: after Ctrl-C some may not have begun."""
    lengths = [chain.draws.filled for chain in chains]
    shortest = max(lengths, key=lambda length: (length * sum(other >= length for other in lengths), length))
    return [chain for chain in chains if chain.draws.filled >= shortest]


def _cut(traces: list[Trace]) -> None:
    """Cut all traces to the length of the shortest (after an interruption they differ)."""
    shortest = min(trace.filled for trace in traces)
    for trace in traces:
        trace.filled = shortest
        for store in (trace.values, trace.stats):
            store.update({name: array[:shortest] for name, array in store.items()})


def run_restarts(
    engine: Engine, structure: Factorisation, options: Any, run: FitRun, key: np.uint64, starts: Sequence[Start]
) -> tuple[list[Solution], bool]:
    """Fit from each start. Returns the solutions, best objective first, and whether Ctrl-C stopped them."""

    def fit(problem: Any, restart: int, watch: Watch, stop: threading.Event) -> Solution:
        return _fit_once(engine, problem, run, child(key, restart), starts[restart], stop, _reporter(watch, restart))

    solutions, stopped = _in_threads(engine, structure, options, run, fit, len(starts), run.max_iter, "restart")
    sign = -1.0 if engine.maximise else 1.0
    return sorted(solutions, key=lambda solution: sign * solution.objective[-1]), stopped


def _fit_once(engine, problem, run, key, start, stop, report) -> Solution:
    state = engine.init(problem, child(key, START), start)
    objective, residual, status = [], np.inf, "max_iter" if run.tol > 0 else "all_iterations"
    for iteration in range(run.max_iter):
        state, info = engine.step(problem, state, child(key, STEPS, iteration))
        objective.append(float(info.objective))
        residual = float(info.residual)
        if not np.isfinite(info.objective):
            raise RunFailed(f"{engine.name}: the objective became {info.objective} at iteration {iteration + 1}")
        report(iteration + 1, f"objective {info.objective:.6g}, residual {residual:.2g}")
        if residual < run.tol or stop.is_set():
            status = "converged" if residual < run.tol else "interrupted"
            break
    report(len(objective), f"{status}: objective {objective[-1]:.6g}, residual {residual:.2g}", last=True)
    values, parameters = engine.finish(problem, state, child(key, DRAW), run.draws)
    return Solution(objective, residual, status, values, parameters)


def _reporter(watch: Watch, chain: int) -> Callable[..., None]:
    return lambda done, note="", last=False: watch.report(chain, done, note, last=last)


def _in_threads(engine, structure, options, run, work, n_jobs, total, word) -> tuple[list[Any], bool]:
    """Run one job per chain in threads; with cores to spare all share as many workers. BLAS stays on one thread."""
    side_by_side = max(1, min(n_jobs, run.cores))
    shared = closing(Workers(run.cores if run.cores > side_by_side else 1))
    watching, pooled = Watch(run.progressbar, word, n_jobs, total), ThreadPoolExecutor(side_by_side)
    stop = threading.Event()
    with OneBlasThread(), watching as watch, shared as workers, pooled as pool:  # the workers outlive the jobs
        try:
            problem = engine.prepare(structure, options, workers)
            futures = [pool.submit(work, problem, job, watch, stop) for job in range(n_jobs)]
            stopped = _wait(futures, stop)
        finally:
            stop.set()
    return [future.result() for future in futures], stopped


def _wait(futures: list[Future], stop: threading.Event) -> bool:
    """Wait for all, or for the first failure. Ctrl-C asks the jobs to stop after their step; a second one gives up."""
    try:
        wait(futures, return_when="FIRST_EXCEPTION")
    except KeyboardInterrupt:
        stop.set()
        wait(futures)
        return True
    return False

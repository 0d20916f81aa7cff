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
from nmf_zoo.inference.checkpoint import Checkpoint
from nmf_zoo.inference.engine import DRAW, START, STEPS, Engine
from nmf_zoo.inference.progress import Watch
from nmf_zoo.inference.saving import SavedChain, SavedFit
from nmf_zoo.inference.traces import Chain, Traces
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
    ``keep`` : "draws", "moments", or "store" for draws on disk
    """

    draws: int
    tune: int
    thin: int
    keep_warmup: bool
    cores: int
    progressbar: bool
    var_names: tuple[str, ...] | None = None
    keep: str = "draws"

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
    engine: Engine,
    structure: Factorisation,
    options: Any,
    run: SampleRun,
    key: np.uint64,
    starts: Sequence[Start],
    traces: Traces | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[list[Chain], bool]:
    """Sample one chain per start. Returns the chains, cut to the same length, and whether Ctrl-C stopped them.

    ``traces`` take what is kept; default in memory. Chains that an interruption left far behind are dropped. With a
    ``checkpoint`` the chains go on from it, and save themselves there.
    """
    traces = traces or Traces(len(starts), run.kept_warmup, run.kept_draws)

    def sample(problem: Any, chain: int, watch: Watch, stop: threading.Event) -> None:
        report, result = _reporter(watch, chain), traces.chains[chain]
        part = None if checkpoint is None else checkpoint.part(chain)
        _sample_chain(engine, problem, run, child(key, chain), starts[chain], result, part, stop, report)

    total = run.tune + run.draws
    _, stopped = _in_threads(engine, structure, options, run, sample, len(starts), total, "chain")
    return traces.level(), stopped


def _sample_chain(engine, problem, run, key, start, result, part, stop, report) -> None:
    def kept(values: Mapping[str, Array]) -> Mapping[str, Array]:
        return values if run.var_names is None else {name: values[name] for name in run.var_names}

    def draw(state: Any) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        values, stats = engine.draw(problem, state, child(key, DRAW, 0))
        return kept(values), stats

    saved = SavedChain(part, result)
    done, state = saved.load(run.tune, run.draws, engine.init(problem, child(key, START), start), draw)
    if done:
        report(done, "from the checkpoint", last=done == run.tune + run.draws)
    for block in blocks(done, run.tune, run.draws, run.thin, run.keep_warmup, longest_block(engine)):
        if stop.is_set():
            break
        state, values, stats = run_block(engine, problem, state, key, block)
        if stats:
            (result.warmup if block.tuning else result.draws).extend(kept(values), stats)
        done = block.stop
        saved.save(done, state)
        report(done, "warm-up" if block.tuning else "draws", last=done == run.tune + run.draws)
    saved.save(done, state, last=True)


def run_restarts(
    engine: Engine,
    structure: Factorisation,
    options: Any,
    run: FitRun,
    key: np.uint64,
    starts: Sequence[Start],
    checkpoint: Checkpoint | None = None,
) -> tuple[list[Solution], bool]:
    """Fit from each start. Returns the solutions, best objective first, and whether Ctrl-C stopped them.

    With a ``checkpoint`` the restarts go on from it, and save themselves there.
    """

    def fit(problem: Any, restart: int, watch: Watch, stop: threading.Event) -> Solution:
        report, part = _reporter(watch, restart), None if checkpoint is None else checkpoint.part(restart)
        return _fit_once(engine, problem, run, child(key, restart), starts[restart], part, stop, report)

    solutions, stopped = _in_threads(engine, structure, options, run, fit, len(starts), run.max_iter, "restart")
    sign = -1.0 if engine.maximise else 1.0
    return sorted(solutions, key=lambda solution: sign * solution.objective[-1]), stopped


def _fit_once(engine, problem, run, key, start, part, stop, report) -> Solution:
    saved = SavedFit(part)
    state, objective, residual = saved.load(run.max_iter, engine.init(problem, child(key, START), start))
    for iteration in range(len(objective), run.max_iter):
        if objective and (residual < run.tol or stop.is_set()):
            break
        state, info = engine.step(problem, state, child(key, STEPS, iteration))
        objective.append(float(info.objective))
        residual = float(info.residual)
        if not np.isfinite(info.objective):
            raise RunFailed(f"{engine.name}: the objective became {info.objective} at iteration {iteration + 1}")
        saved.save(state, objective, residual)
        report(iteration + 1, f"objective {info.objective:.6g}, residual {residual:.2g}")
    saved.save(state, objective, residual, last=True)
    status = _status(run, len(objective), residual)
    report(len(objective), f"{status}: objective {objective[-1]:.6g}, residual {residual:.2g}", last=True)
    values, parameters = engine.finish(problem, state, child(key, DRAW), run.draws)
    return Solution(objective, residual, status, values, parameters)


def _status(run: FitRun, iterations: int, residual: float) -> str:
    """Why a restart ended, a word of ``STATUS``."""
    if residual < run.tol:
        return "converged"
    if iterations < run.max_iter:
        return "interrupted"
    return "max_iter" if run.tol > 0 else "all_iterations"


def _reporter(watch: Watch, chain: int) -> Callable[..., None]:
    return lambda done, note="", last=False: watch.report(chain, done, note, last=last)


def _in_threads(engine, structure, options, run, work, n_jobs, total, word) -> tuple[list[Any], bool]:
    """Run one job per chain in threads, with the cores that are idle for all. BLAS stays on one thread."""
    side_by_side = max(1, min(n_jobs, run.cores))
    shared = closing(Workers(run.cores if run.cores > side_by_side else 1))
    watching, pooled = Watch(run.progressbar, word, n_jobs, total), ThreadPoolExecutor(side_by_side)
    stop, waiting = threading.Event(), iter(range(n_jobs - side_by_side))

    def job(problem: Any, number: int) -> Any:
        """One chain; if no other takes its place, its core goes to those that still run."""
        try:
            return work(problem, number, watch, stop)
        finally:
            if next(waiting, None) is None:
                workers.add_cores(1)

    with OneBlasThread(), watching as watch, shared as workers, pooled as pool:  # the workers outlive the jobs
        workers.add_cores(run.cores - side_by_side + 1 - workers.threads)  # idle are those without a chain
        try:
            problem = engine.prepare(structure, options, workers)
            futures = [pool.submit(job, problem, number) for number in range(n_jobs)]
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

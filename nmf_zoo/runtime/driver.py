"""The one driver: chains and restarts with their seeds, what is kept and saved of them, and how they ended.

Streams: run -> chain -> {start, draw 0, draw 1, ..., step 0, step 1, ...}; a chain's draws depend on its seed and its
number, never on the threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.checkpoint import Checkpoint, RunFiles
from nmf_zoo.runtime.engine import DRAW, START, Engine
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.progress import KERNELS
from nmf_zoo.runtime.run_one import Iterations, Sweeps, run_one
from nmf_zoo.runtime.saving import SavedChain, SavedFit
from nmf_zoo.runtime.stopping import BY_ON_STEP, EARLY, INTERRUPTED, OUT_OF_TIME, OnStep
from nmf_zoo.runtime.traces import ChainResult, Traces
from nmf_zoo.structure import Array, Factorisation

Start = Mapping[str, Array]

STATUS = {
    "converged": "the residual fell below tol",
    "max_iter": "stopped at max_iter with the residual still above tol: raise max_iter, or tol if this is near enough",
    "all_iterations": "ran the max_iter iterations asked for (tol=0)",
    INTERRUPTED: "stopped by the user; the solution is the last iterate",
    BY_ON_STEP: "on_step ended the run; the solution is the last iterate",
    OUT_OF_TIME: "the time was over; the solution is the last iterate: raise max_seconds if it is not near enough",
}
NOTHING_DONE = "stopped before the first iteration"


@dataclass(frozen=True, kw_only=True)
class SampleRun:
    """How long to sample.

    Of the ``draws`` sweeps after ``tune`` every ``thin``-th is kept; of the variables, all or ``var_names``.
    ``search`` : the one before the chains, or None; ``keep`` : "draws", "moments", or "store" for draws on disk;
    ``compiles`` : what is said where kernels are missing
    """

    draws: int
    tune: int
    thin: int
    keep_warmup: bool
    cores: int
    progressbar: bool
    compiles: str = KERNELS
    search: Any = None
    var_names: tuple[str, ...] | None = None
    keep: str = "draws"
    on_step: OnStep | None = None
    max_seconds: float | None = None

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
    """How long to iterate, with which ``search`` or none, and how many draws of the solution's distribution to make.

    ``compiles`` : as of :class:`SampleRun`
    """

    max_iter: int
    tol: float
    draws: int
    cores: int
    progressbar: bool
    compiles: str = KERNELS
    search: Any = None
    on_step: OnStep | None = None
    max_seconds: float | None = None


@dataclass
class Fitted:
    """Where one fit came to: the iterates' objective, the last residual, why it ended, and the engine's state."""

    objective: list[float]
    residual: float
    status: str
    state: Any


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
    alone: Sequence[Factorisation] = (),
) -> tuple[list[ChainResult], str]:
    """Sample one chain per start. Returns the chains, cut to the same length, and why the run ended early, else "".

    ``traces`` take what is kept; default in memory. Chains that were stopped far behind the others are dropped. With a
    ``checkpoint`` the chains go on from it, and save themselves there. ``alone`` : a structure for each chain, which
    then come one after the other, each with all cores.
    """
    traces = traces or Traces(len(starts), run.kept_warmup, run.kept_draws)
    length = Sweeps(
        tune=run.tune,
        draws=run.draws,
        thin=run.thin,
        keep_warmup=run.keep_warmup,
        tells_all=run.on_step is not None,
    )

    def sample(chain: int, job: Job) -> str:
        if alone and job.is_stopped():
            return job.is_stopped()
        part, problem = None if checkpoint is None else checkpoint.part(chain), problems[chain if alone else 0]
        return _sample_chain(engine, problem, length, run.var_names, starts[chain], traces.chains[chain], part, job)

    with _jobs(run, len(starts), "chain", length.total, 1 if alone else None) as jobs:
        problems = [engine.prepare(own, options, jobs.workers) for own in alone or (structure,)]
        early = jobs.run(sample, range(len(starts)), [child(key, chain) for chain in range(len(starts))])
    return traces.level(), next(filter(None, early.values()), "")


def _sample_chain(engine, problem, length, var_names, start, result, part, job) -> str:
    """Fill the chain's traces; why it ended early, or ""."""

    def kept(values: Mapping[str, Array]) -> Mapping[str, Array]:
        return values if var_names is None else {name: values[name] for name in var_names}

    def draw(state: Any) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        values, stats = engine.draw(problem, state, child(job.key, DRAW, 0))
        return kept(values), stats

    saved, ends = SavedChain(part, result), ""
    done, state = saved.load(length.tune, length.draws, engine.init(problem, child(job.key, START), start), draw)
    if done:
        job.report(done, "from the checkpoint", last=done == length.total)
    for at in run_one(engine, problem, state, replace(length, done=done), job):
        if at.stats:
            (result.warmup if at.step.is_warmup else result.draws).extend(kept(at.values), at.stats)
        done, state, ends = at.step.number, at.state, at.ends
        saved.save(done, state)
        job.report(done, "warm-up" if at.step.is_warmup else "draws", last=done == length.total)
    saved.save(done, state, last=True)
    if engine.finish is not None:
        result.left = engine.finish(problem, state, child(job.key, DRAW, length.total), 0)[1]
    return (ends or job.is_stopped()) if done < length.total else ""


def run_restarts(
    engine: Engine,
    structure: Factorisation,
    options: Any,
    run: FitRun,
    key: np.uint64,
    starts: Sequence[Start],
    checkpoint: Checkpoint | None = None,
    streams: Sequence[np.uint64] | None = None,
) -> tuple[list[Solution], str]:
    """Fit from each start. Returns the solutions, best objective first, and why the run ended early, else "".

    With a ``checkpoint`` the restarts go on from it, and save themselves there. ``streams`` : theirs, default children
    of ``key``.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C came before the first iteration
    """

    def fit(restart: int, job: Job) -> Solution:
        part = None if checkpoint is None else checkpoint.part(restart)
        return solution_of(engine, problem, run, fit_once(engine, problem, run, starts[restart], part, job), job.key)

    with _jobs(run, len(starts), "restart", run.max_iter) as jobs:
        problem = engine.prepare(structure, options, jobs.workers)
        keys = streams or [child(key, restart) for restart in range(len(starts))]
        solutions = list(jobs.run(fit, range(len(starts)), keys).values())
    if not solutions:
        raise KeyboardInterrupt(NOTHING_DONE)
    sign = -1.0 if engine.maximise else 1.0
    early = next((solution.status for solution in solutions if solution.status in EARLY), "")
    return sorted(solutions, key=lambda solution: sign * solution.objective[-1]), early


def fit_once(engine: Engine, problem: Any, run: FitRun, start: Start, part: RunFiles | None, job: Job) -> Fitted:
    """One fit, from ``start`` or from where its part of a checkpoint ends."""
    saved, ends = SavedFit(part), ""
    state, objective, residual = saved.load(run.max_iter, engine.init(problem, child(job.key, START), start))
    length = Iterations(max_iter=run.max_iter, tol=run.tol, done=len(objective), residual=residual)
    for at in run_one(engine, problem, state, length, job):
        state, info, ends = at.state, at.step.info, at.ends
        objective.append(float(info["objective"]))
        residual = float(info["residual"])
        saved.save(state, objective, residual)
        job.report(at.step.number, f"objective {objective[-1]:.6g}, residual {residual:.2g}")
    saved.save(state, objective, residual, last=True)
    if engine.close is not None:
        state, objective[-1] = engine.close(problem, state)
    status = _status(run, len(objective), residual, ends or job.is_stopped())
    job.report(len(objective), f"{status}: objective {objective[-1]:.6g}, residual {residual:.2g}", last=True)
    return Fitted(objective, residual, status, state)


def solution_of(engine: Engine, problem: Any, run: FitRun, fitted: Fitted, key: np.uint64) -> Solution:
    """The draws of a fit whose stream is ``key``."""
    assert engine.finish is not None
    values, parameters = engine.finish(problem, fitted.state, child(key, DRAW), run.draws)
    return Solution(fitted.objective, fitted.residual, fitted.status, values, parameters)


def _status(run: FitRun, iterations: int, residual: float, early: str) -> str:
    """Why a restart ended, a word of ``STATUS``."""
    if residual < run.tol:
        return "converged"
    if iterations < run.max_iter:
        return early
    return "max_iter" if run.tol > 0 else "all_iterations"


def _jobs(run: SampleRun | FitRun, n_jobs: int, word: str, total: int, side_by_side: int | None = None) -> Jobs:
    """The chains or restarts of a run, with the cores that are idle for all."""
    return Jobs(
        n_jobs,
        cores=run.cores,
        word=word,
        total=total,
        progressbar=run.progressbar,
        compiles=run.compiles,
        on_step=run.on_step,
        max_seconds=run.max_seconds,
        side_by_side=side_by_side,
    )

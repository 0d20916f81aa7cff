"""The one driver: chains and restarts with their seeds, what is kept and saved of them, and how they ended.

Streams: run -> chain -> {start, draw 0, draw 1, ..., step 0, step 1, ...}; a chain's draws depend on its seed and its
number, and on those of a chain that it follows, never on the threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.checkpoint import ADVICE, Checkpoint, RunFiles
from nmf_zoo.runtime.engine import DRAW, START, Engine
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.progress import KERNELS
from nmf_zoo.runtime.run_one import Iterations, StepsOf, Sweeps, run_one
from nmf_zoo.runtime.saving import SavedChain, SavedFit
from nmf_zoo.runtime.stopping import BEHIND, BY_ON_STEP, EARLY, INTERRUPTED, OUT_OF_TIME, OnStep
from nmf_zoo.runtime.traces import ChainResult, ChainRound, Traces
from nmf_zoo.structure import Array, Factorisation

Start = Mapping[str, Array]

STATUS = {
    "converged": "the residual fell below tol",
    "max_iter": "stopped at max_iter with the residual still above tol: raise max_iter, or tol if this is near enough",
    "all_iterations": "ran the max_iter iterations asked for (tol=0)",
    INTERRUPTED: "stopped by the user; the solution is the last iterate",
    BY_ON_STEP: "on_step ended the run; the solution is the last iterate",
    BEHIND: "other fits of the search came further",
    OUT_OF_TIME: "the time was over; the solution is the last iterate: raise max_seconds if it is not near enough",
}
NOTHING_DONE = "stopped before the first iteration"
ANEW = 2  # times the draws that were asked for: so long are rounds before which draws are left out, if they may be


@dataclass(frozen=True, kw_only=True)
class SampleRun:
    """How long to sample.

    Of the ``draws`` sweeps after ``tune`` every ``thin``-th is kept; of the variables, all or ``var_names``.
    ``search`` : the one before the chains, or None; ``keep`` : "draws", "moments", or "store" for draws on disk;
    ``compiles`` : what is said where kernels are missing. ``extend`` : how many times the ``draws`` the chains may go
    on to; ``extend_for_ess`` : how many times the ``draws`` they keep for effective draws alone;
    ``too_short`` : (traces, whether there are as many) -> why chains should go on, "" if they need not, whether one is
    still on its way, so that what all drew by then is left out, and whose state each takes then, its own by default;
    ``executor`` : where steps are made, or None
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
    extend: int = 1
    extend_for_ess: int = 1
    too_short: Callable[[Traces, bool], tuple[str, bool, Sequence[int]]] | None = None
    executor: Any = None

    @property
    def kept_draws(self) -> int:
        """Draws of each chain that are stored."""
        return -(-self.draws // self.thin)

    @property
    def kept_statistics(self) -> int:
        """Draws of each chain whose statistics may be stored: where there are no others, more of them as it goes on."""
        return self.kept_draws * (self.extend if self.keep == "moments" else 1)

    @property
    def written_times(self) -> float:
        """How often a checkpoint writes them, at most: those that are left out when chains go on stay in its rows."""
        return 1.0 + (self.extend - 1) / self.anew

    @property
    def anew(self) -> int:
        """How many times the ``draws`` chains go on for where others are left out."""
        return min(ANEW, max(self.extend - 1, 1))

    @property
    def kept_warmup(self) -> int:
        """Warm-up sweeps of each chain that are stored."""
        return -(-self.tune // self.thin) if self.keep_warmup else 0


@dataclass(frozen=True, kw_only=True)
class FitRun:
    """How long to iterate, with which ``search`` or none, and how many draws of the solution's distribution to make.

    ``compiles``, ``executor`` : as of :class:`SampleRun`; ``left_after`` : (objective so far, iterations that it has
    seen) -> after how many a fit is left, 0 where it goes on
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
    executor: Any = None
    left_after: Callable[[Sequence[float], int], int] = lambda objective, seen: 0


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

    Chains go on together, and keep as many draws. While none is on its way they are those of a longer run, bit for bit,
    of which fewer sweeps are kept: for as many sweeps again, and every second. Where one is still on its way what there
    is by then is left out, and some chains may follow others.
    """
    traces = traces or Traces(len(starts), run.kept_warmup, run.kept_draws)
    chains = [_Chain(engine, run, result, len(starts)) for result in traces.chains]

    def begin(chain: int, job: Job) -> _Chain:
        part, own = None if checkpoint is None else checkpoint.part(chain), chains[chain]
        if own.saved is None:
            own.begin(problems[chain if alone else 0], starts[chain], part, job)
        return own

    def follow(chain: int, job: Job) -> None:
        own, leader = chains[chain], chains[rounds[-1].leaders[chain]]
        if own is not leader and len(own.result.rounds) < len(rounds):
            own.lengthen(rounds)
            own.follow(leader)

    def sample(chain: int, job: Job) -> str:
        if alone and job.is_stopped():
            return job.is_stopped()
        own = begin(chain, job)
        if not job.is_stopped():  # else it may not have followed another
            own.lengthen(rounds)
        return own.finish(job)

    def go_on(reason: str) -> list[str]:
        if reason:
            jobs.lengthen(run.tune + rounds[-1].length(run.draws), reason)
            _save_all_or_none(chains)
            jobs.run(follow, numbers, keys)
            _save_all_or_none(chains)
        return list(jobs.run(sample, numbers, keys).values())

    steps_of = StepsOf(engine, structure, options)
    with _jobs(run, len(starts), "chain", run.tune + run.draws, steps_of, 1 if alone else None) as jobs:
        problems = [engine.prepare(own, options, jobs.workers) for own in alone or (structure,)]
        numbers, keys = range(len(starts)), [child(key, chain) for chain in range(len(starts))]
        if checkpoint is not None and not alone:
            jobs.run(begin, numbers, keys)  # of some it may hold a round that others have not begun
        rounds = traces.furthest.rounds
        _check_level(run, chains, rounds)
        ends = go_on("" if traces.is_level else "others of this run have")
        while not jobs.stop and not any(ends):
            reason, rounds = _further(run, traces)
            if not reason:
                break
            ends = go_on(reason)
        rounds = traces.furthest.rounds
        if not traces.is_level:  # stopped when some had not gone on yet
            ends.append(jobs.stop.reason)
            jobs.run(lambda chain, job: chains[chain].lengthen(rounds), numbers, keys)
    return traces.level(), next(filter(None, ends), "")


def _check_level(run: SampleRun, chains: Sequence[_Chain], rounds: Sequence[ChainRound]) -> None:
    """What a checkpoint holds of chains is of one moment: some may be about to begin the round that others have."""
    for number, chain in enumerate(chains):
        lacking = rounds[len(chain.result.rounds) :]
        if len(lacking) > 1 or any(chain.done < run.tune + each.discarded for each in lacking):
            got = f"chain {number} after {chain.done} sweeps, and others that have gone on from later ones"
            raise InputError("checkpoint", got, "what this run wrote", ADVICE)


def _further(run: SampleRun, traces: Traces) -> tuple[str, list[ChainRound]]:
    """Why chains go on, "" where they need not, or may not; and all their rounds by then, one more."""
    ahead, numbers = traces.furthest, range(len(traces.chains))
    longer, anew = ChainRound(ahead.discarded, 2 * ahead.kept, numbers), _anew(run, ahead)
    if run.too_short is None or not (_is_allowed(run, longer) or _is_allowed(run, anew)):
        return "", []
    try:
        is_full = longer.kept > run.extend_for_ess or not _is_allowed(run, longer)
        reason, is_on_the_way, leaders = run.too_short(traces, is_full)
    except KeyboardInterrupt:  # what was asked for is there
        return "", []
    following = anew._replace(leaders=leaders or numbers) if is_on_the_way else longer
    return (reason if _is_allowed(run, following) else ""), [*ahead.rounds, following]


def _anew(run: SampleRun, ahead: ChainResult) -> ChainRound:
    """A round of one length, before which all is left out; longer if a stop would go back to more than twice that."""
    return ChainRound(ahead.now.length(run.draws), max(run.anew, ahead.kept // 2), ())


def _is_allowed(run: SampleRun, to: ChainRound) -> bool:
    """Whether chains may be as long as that."""
    return to.length(run.draws) <= run.draws * run.extend


def _save_all_or_none(chains: Sequence[_Chain]) -> None:
    """Where one is not saved, none is from here on: a checkpoint has all chains in one round, or about to begin it."""
    if not all(chain.is_saved for chain in chains):
        for chain in chains:
            chain.save_no_more()


class _Chain:
    """A chain on its way, between sweeps that were asked for at once and those that follow.

    Attributes
    ----------
    result : its traces, which it fills
    done : sweeps that it has made
    saved : what it saves of itself; None before it has begun
    """

    def __init__(self, engine: Engine, run: SampleRun, result: ChainResult, chains: int):
        self._engine, self._run, self.result, self._chains = engine, run, result, chains
        self.saved: SavedChain | None = None
        self.done = 0

    def begin(self, problem: Any, start: Start, part: RunFiles | None, job: Job) -> None:
        """From ``start``, or from where its part of a checkpoint ends."""

        def draw(state: Any) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
            assert self._engine.draw is not None
            values, stats = self._engine.draw(problem, state, child(job.key, DRAW, 0))
            return self._kept(values), stats

        saved = SavedChain(part, self.result, self._chains)
        fresh = self._engine.init(problem, child(job.key, START), start)
        self.done, self._state = saved.load(self._run.tune, self._run.draws, self._run.extend, fresh, draw)
        self._problem, self.saved = problem, saved
        if self.done:
            job.report(self.done, "from the checkpoint", total=self._length.total)

    def lengthen(self, rounds: Sequence[ChainRound]) -> None:
        """Make room for the draws of all rounds. In a thread, where no Ctrl-C comes between two draws that move."""
        own = self.result if self.saved is None else self.saved
        for each in rounds[len(self.result.rounds) :]:
            own.lengthen(each)

    @property
    def is_saved(self) -> bool:
        """Whether its checkpoint, if it has one, knows all of it."""
        return self.saved is not None and self.saved.has(self.done)

    def save_no_more(self) -> None:
        """Leave its part of the checkpoint as it is."""
        if self.saved is not None:
            self.saved.close()

    def follow(self, leader: _Chain) -> None:
        """Go on from the state of a chain that has not gone on yet. Saved at once: that chain is about to."""
        assert self.saved is not None
        self._state = deepcopy(leader._state)
        self.saved.save(self.done, self._state, last=True)

    def finish(self, job: Job) -> str:
        """Fill the traces to its length; why it ended early, or ""."""
        assert self.saved is not None
        ends, length = "", self._length
        for at in run_one(self._engine, self._problem, self._state, replace(length, done=self.done), job):
            if at.stats:
                trace = self.result.warmup if at.step.is_warmup else self.result.draws
                trace.extend(self._kept(at.values), at.stats)
            self.done, self._state, ends = at.step.number, at.state, at.ends
            self.saved.save(self.done, self._state)
            job.report(self.done, "warm-up" if at.step.is_warmup else "draws", last=self.done == length.total)
        self.saved.save(self.done, self._state, last=True)
        if self._engine.finish is not None:
            key = child(job.key, DRAW, length.total)
            self.result.left = self._engine.finish(self._problem, self._state, key, 0)[1]
        return (ends or job.is_stopped()) if self.done < length.total else ""

    @property
    def _length(self) -> Sweeps:
        run = self._run
        return Sweeps(
            tune=run.tune,
            draws=self.result.now.length(run.draws),
            thin=run.thin * self.result.every,
            keep_warmup=run.keep_warmup,
            discarded=self.result.discarded,
            tells_all=run.on_step is not None,
        )

    def _kept(self, values: Mapping[str, Array]) -> Mapping[str, Array]:
        names = self._run.var_names
        return values if names is None else {name: values[name] for name in names}


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

    with _jobs(run, len(starts), "restart", run.max_iter, StepsOf(engine, structure, options)) as jobs:
        problem = engine.prepare(structure, options, jobs.workers)
        keys = streams or [child(key, restart) for restart in range(len(starts))]
        solutions = list(jobs.run(fit, range(len(starts)), keys).values())
    if not solutions:
        raise KeyboardInterrupt(NOTHING_DONE)
    sign = -1.0 if engine.maximise else 1.0
    early = next((solution.status for solution in solutions if solution.status in EARLY), "")
    return sorted(solutions, key=lambda solution: sign * solution.objective[-1]), early


def fit_once(
    engine: Engine, problem: Any, run: FitRun, start: Start | Fitted, part: RunFiles | None, job: Job
) -> Fitted:
    """One fit, from ``start`` or from where its part of a checkpoint ends.

    A fit goes on from another one as if that had not ended; its state is overwritten.
    """
    saved, ends = SavedFit(part), ""
    if isinstance(start, Fitted):
        begun = start
    else:
        begun = Fitted([], np.inf, "", engine.init(problem, child(job.key, START), start))
    state, objective, residual = saved.load(run.max_iter, begun.state)
    if not objective:
        objective, residual = list(begun.objective), begun.residual
    length = Iterations(max_iter=run.max_iter, tol=run.tol, done=len(objective), residual=residual)
    left = run.left_after(objective, 0)
    for at in () if left else run_one(engine, problem, state, length, job):
        state, ends, seen = at.state, at.ends, len(objective)
        objective.extend(float(step.info["objective"]) for step in at.steps)
        residual = float(at.step.info["residual"])
        saved.save(state, objective, residual)
        job.report(at.step.number, f"objective {objective[-1]:.6g}, residual {residual:.2g}")
        left = 0 if ends else run.left_after(objective, seen)
        if left:
            break
    saved.save(state, objective, residual, last=True)
    if left:
        job.report(left, f"{BEHIND}: objective {objective[left - 1]:.6g}", last=True)
        return Fitted(objective[:left], residual, BEHIND, state)
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


def _jobs(
    run: SampleRun | FitRun, n_jobs: int, word: str, total: int, steps_of: StepsOf, side_by_side: int | None = None
) -> Jobs:
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
        executor=run.executor,
        steps_of=steps_of,
        side_by_side=side_by_side,
    )

"""One chain or restart of one engine, step by step: every loop over an engine's steps is this one.

``run_one`` is a generator. It yields after each step (an iteration, or a block of sweeps), so that whoever runs it
keeps draws, saves, reports, or leaves::

    for at in run_one(engine, problem, engine.init(problem, child(job.key, START), {}), Iterations(max_iter=100), job):
        print(at.step.number, at.step.info["objective"])

Streams: a chain's own -> {start, draw 0, draw 1, ..., step 0, step 1, ...}.

The steps of a job with ``remote`` are made there, in stretches of some seconds: the state goes there and comes back
with what was kept. How steps are cut into stretches decides nothing, as blocks and checkpoints decide nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.blocks import Block, blocks, equal_blocks, longest_block, run_block
from nmf_zoo.runtime.engine import STEPS, Engine
from nmf_zoo.runtime.jobs import Job
from nmf_zoo.runtime.remote import Remote, Stopped, asked_to_end
from nmf_zoo.runtime.stopping import Step
from nmf_zoo.runtime.workers import SERIAL
from nmf_zoo.structure import Array, Factorisation

FIRST_STRETCH, STRETCH = 0.1, 2.0  # seconds of steps made elsewhere before they come back: half of the first, the most
WORTH_SENDING = 5e6  # bytes of a state for each of these seconds at least: sending it takes a small part of them


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """How long an optimiser runs: until its residual falls below ``tol``.

    ``done`` : iterations of an earlier session, which left this ``residual``
    """

    max_iter: int
    tol: float = 0.0
    done: int = 0
    residual: float = np.inf

    @property
    def is_over(self) -> bool:
        """Whether there is no iteration left to do."""
        return self.done >= self.max_iter or (self.done > 0 and self.residual < self.tol)

    def after(self, at: At) -> Iterations:
        """What is left of it."""
        return replace(self, done=at.step.number, residual=float(at.step.info["residual"]))


@dataclass(frozen=True, kw_only=True)
class Sweeps:
    """How long a sampler runs, and which sweeps are kept: every ``thin``-th of the ``draws``, from the first on.

    ``discarded`` : how many of the ``draws`` come before the first that may be kept, all of them ``done``; ``done`` :
    sweeps of an earlier session; ``block`` : how many come at a time, when that matters; ``tells_all`` : of a block
    that keeps none the last one is drawn, too, for its statistics
    """

    tune: int
    draws: int
    thin: int = 1
    keep_warmup: bool = False
    discarded: int = 0
    done: int = 0
    block: int | None = None
    tells_all: bool = False

    @property
    def total(self) -> int:
        """Sweeps in all."""
        return self.tune + self.draws

    @property
    def is_over(self) -> bool:
        """Whether there is no sweep left to do."""
        return self.done >= self.total

    def after(self, at: At) -> Sweeps:
        """What is left of it."""
        return replace(self, done=at.step.number)


class At(NamedTuple):
    """Where a chain or restart is after a step.

    Attributes
    ----------
    state : of the engine, which its next step may overwrite
    step : what there is to say of it
    values, stats : variables and statistics of the sweeps that are kept, (kept, ...) each; none of optimisers
    ends : why it was the last one, "" when there is more, or nothing more to do
    before : what there is to say of steps that were made elsewhere and came with it
    """

    state: Any
    step: Step
    values: Mapping[str, Array]
    stats: Mapping[str, Array]
    ends: str = ""
    before: tuple[Step, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All since the one before, this one last."""
        return (*self.before, self.step)


@dataclass
class StepsOf:
    """What steps in other processes share: the engine and the model, laid out where it has come to."""

    engine: Engine
    structure: Factorisation
    options: Any

    @cached_property
    def problem(self) -> Any:
        return self.engine.prepare(self.structure, self.options, SERIAL)


def run_one(engine: Engine, problem: Any, state: Any, length: Iterations | Sweeps, job: Job) -> Iterator[At]:
    """Go on from ``state``. A fit that is stopped before its first iteration makes it; a chain makes no sweep."""
    there = job.remote
    steps = _here(engine, problem, state, length, job)
    for at in steps if there is None else _elsewhere(there, engine, problem, state, length, job):
        ends = job.ends_after(at.step)
        yield at._replace(ends=ends)
        if ends:
            return


def _here(engine: Engine, problem: Any, state: Any, length: Iterations | Sweeps, job: Job) -> Iterator[At]:
    if isinstance(length, Iterations):
        return _iterations(engine, problem, state, length, job)
    return _sweeps(engine, problem, state, length, job)


def _elsewhere(
    remote: Remote, engine: Engine, problem: Any, state: Any, length: Iterations | Sweeps, job: Job
) -> Iterator[At]:
    """One stretch after the other; a fit that is stopped before its first iteration makes it here."""
    seconds = FIRST_STRETCH
    while not length.is_over:
        sent = cloudpickle.dumps(state)
        seconds = max(min(2.0 * seconds, STRETCH), len(sent) / WORTH_SENDING)
        try:
            told = sent, length, job.number, job.key, seconds
            at = remote.call(_stretch, *told, is_stopped=job.is_stopped)
        except Stopped:
            at = next(_here(engine, problem, state, length, job), None)
        if at is None:
            return
        state, length = at.state, length.after(at)
        yield at


def _stretch(
    shared: StepsOf, sent: bytes, length: Iterations | Sweeps, number: int, key: np.uint64, seconds: float
) -> At | None:
    """Steps for some seconds, or until Ctrl-C: where the last came to, with what all of them kept. Never both of the
    warm-up and after it."""
    made, kept, began = list[At](), list[At](), time.perf_counter()
    with asked_to_end() as stop:
        job = Job(number, key, is_stopped=lambda: stop.reason)
        for at in _here(shared.engine, shared.problem, cloudpickle.loads(sent), length, job):
            made.append(at)
            if at.stats:  # copies: a sweep by itself may have the state's own arrays, which the next one overwrites
                kept.append(at._replace(values=_copied(at.values), stats=_copied(at.stats)))
            is_warm = isinstance(length, Sweeps) and at.step.number == length.tune
            if is_warm or stop or time.perf_counter() - began >= seconds:
                break
    if not made:
        return None
    values, stats = _joined([at.values for at in kept]), _joined([at.stats for at in kept])
    return At(made[-1].state, made[-1].step, values, stats, before=tuple(at.step for at in made[:-1]))


def _copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.array(array) for name, array in arrays.items()}


def _joined(blocks: list[Mapping[str, Array]]) -> dict[str, Array]:
    """The kept sweeps of some blocks."""
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]} if blocks else {}


def _iterations(engine: Engine, problem: Any, state: Any, length: Iterations, job: Job) -> Iterator[At]:
    residual, watch, streams = length.residual, _Stopwatch(), child(job.key, STEPS)
    for iteration in range(length.done, length.max_iter):
        if iteration > 0 and (residual < length.tol or job.is_stopped()):
            return
        with watch:
            state, info = engine.step(problem, state, child(streams, iteration))
        residual = float(info.residual)
        if not np.isfinite(info.objective):
            raise RunFailed(f"{engine.name}: the objective became {info.objective} at iteration {iteration + 1}")
        step = Step(
            chain=job.number,
            number=iteration + 1,
            total=length.max_iter,
            is_warmup=False,
            info=info._asdict(),
            seconds=watch.last,
        )
        yield At(state, step, {}, {})


def _sweeps(engine: Engine, problem: Any, state: Any, length: Sweeps, job: Job) -> Iterator[At]:
    watch = _Stopwatch()
    for block in _blocks(engine, length, watch):
        if job.is_stopped():
            return
        asked = block.with_last() if length.tells_all and not block.kept else block
        with watch:
            state, values, stats = run_block(engine, problem, state, job.key, asked)
        step = Step(
            chain=job.number,
            number=block.stop,
            total=length.total,
            is_warmup=block.tuning,
            info={name: array[-1] for name, array in stats.items()},
            seconds=watch.last,
        )
        yield At(state, step, *((values, stats) if block.kept else ({}, {})))


class _Stopwatch:
    """Times an engine's steps. Called, it tells the seconds of all; ``last`` of the last one."""

    def __init__(self) -> None:
        self.total = self.last = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        self.last = time.perf_counter() - self._began
        self.total += self.last

    def __call__(self) -> float:
        return self.total


def _blocks(engine: Engine, length: Sweeps, clock: Callable[[], float]) -> Iterator[Block]:
    how = (length.done, length.tune, length.draws, length.thin, length.keep_warmup)
    ours = equal_blocks(*how, length.block) if length.block else blocks(*how, longest_block(engine), clock)
    return (block if block.tuning else block._replace(base=block.base + length.discarded) for block in ours)

"""One chain or restart of one engine, step by step: every loop over an engine's steps is this one.

``run_one`` is a generator. It yields after each step (an iteration, or a block of sweeps), so that whoever runs it
keeps draws, saves, reports, or leaves::

    for at in run_one(engine, problem, engine.init(problem, child(job.key, START), {}), Iterations(max_iter=100), job):
        print(at.step.number, at.step.info["objective"])

Streams: a chain's own -> {start, draw 0, draw 1, ..., step 0, step 1, ...}.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.blocks import Block, blocks, equal_blocks, longest_block, run_block
from nmf_zoo.runtime.engine import STEPS, Engine
from nmf_zoo.runtime.jobs import Job
from nmf_zoo.runtime.stopping import Step
from nmf_zoo.structure import Array


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """How long an optimiser runs: until its residual falls below ``tol``.

    ``done`` : iterations of an earlier session, which left this ``residual``
    """

    max_iter: int
    tol: float = 0.0
    done: int = 0
    residual: float = np.inf


@dataclass(frozen=True, kw_only=True)
class Sweeps:
    """How long a sampler runs, and which sweeps are kept: every ``thin``-th of the ``draws``, from the first on.

    ``done`` : sweeps of an earlier session; ``block`` : how many come at a time, when that matters; ``tells_all`` : of
    a block that keeps none the last one is drawn, too, for its statistics
    """

    tune: int
    draws: int
    thin: int = 1
    keep_warmup: bool = False
    done: int = 0
    block: int | None = None
    tells_all: bool = False

    @property
    def total(self) -> int:
        """Sweeps in all."""
        return self.tune + self.draws


class At(NamedTuple):
    """Where a chain or restart is after a step.

    Attributes
    ----------
    state : of the engine, which its next step may overwrite
    step : what there is to say of it
    values, stats : variables and statistics of the sweeps that are kept, (kept, ...) each; none of optimisers
    ends : why it was the last one, "" when there is more, or nothing more to do
    """

    state: Any
    step: Step
    values: Mapping[str, Array]
    stats: Mapping[str, Array]
    ends: str = ""


def run_one(engine: Engine, problem: Any, state: Any, length: Iterations | Sweeps, job: Job) -> Iterator[At]:
    """Go on from ``state``. A fit that is stopped before its first iteration makes it; a chain makes no sweep."""
    if isinstance(length, Iterations):
        steps = _iterations(engine, problem, state, length, job)
    else:
        steps = _sweeps(engine, problem, state, length, job)
    for at in steps:
        ends = job.ends_after(at.step)
        yield at._replace(ends=ends)
        if ends:
            return


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
    if length.block is not None:
        return equal_blocks(length.done, length.tune, length.draws, length.thin, length.keep_warmup, length.block)
    longest = longest_block(engine)
    return blocks(length.done, length.tune, length.draws, length.thin, length.keep_warmup, longest, clock)

"""The loop of a search: rounds of local fits, each round's starts made of what the rounds before it found.

Streams: search -> fit -> as a restart's, with the proposal's beside them. The first fit is restart 0 of a run without a
search. What a round begins at depends on the rounds before it alone, and a round has always the same size, so that the
threads decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.checkpoint import Checkpoint
from nmf_zoo.runtime.driver import NOTHING_DONE, FitRun, Fitted, Solution, fit_once, solution_of
from nmf_zoo.runtime.engine import DRAW, Engine
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.stopping import EARLY
from nmf_zoo.search.optima import Optima, Optimum, Point
from nmf_zoo.search.options import Search
from nmf_zoo.search.proposals import components_of, fresh_start, next_start
from nmf_zoo.structure import Factorisation

ROUND = 4  # fits whose starts know the same of one another: as many cores as a search can use at once
PARENTS = 6  # optima that new starts are made of
DRAWS = 8  # of an optimum's distribution, whose mean stands for it
LARGEST = 1e140  # cell of that mean: products of totals are numbers still
PROPOSAL = 3  # stream of a fit's start


def run_search(
    engine: Engine,
    structure: Factorisation,
    options: Any,
    run: FitRun,
    search: Search,
    key: np.uint64,
    checkpoint: Checkpoint | None = None,
) -> tuple[Solution, Optima, str]:
    """Search, and draw from the best optimum; the last is why the search ended early, else "".

    With a ``checkpoint`` the search goes on from it, and saves itself there.

    Raises
    ------
    RunFailed : a fit failed
    KeyboardInterrupt : Ctrl-C came before the first iteration
    """
    optima, early = Optima(engine.maximise), ""

    def fit(item: tuple[str, Point], job: Job) -> Fitted:
        part = None if checkpoint is None else checkpoint.part(_name(job.number, item[1]))
        return fit_once(engine, problem, length, item[1], part, job)

    with _jobs(run, search.fits) as jobs:
        problem = engine.prepare(structure, options, jobs.workers)
        for numbers in _rounds(search.fits):
            length = _length(run, search, optima, len(numbers))
            if length.max_iter == 0:
                break
            keys = [child(key, number) for number in numbers]
            items = [_start(structure, search, optima, number, key) for number, key in zip(numbers, keys, strict=True)]
            found = jobs.run(fit, items, keys, note=lambda *_: optima.note(), first=numbers[0])
            for number, fitted in found.items():
                point = _point(engine, structure, problem, fitted, keys[number - numbers[0]])
                way = items[number - numbers[0]][0]
                components = components_of(structure, point)
                optima.add(Optimum(fitted.objective[-1], point, components, way, number), fitted)
            early = jobs.stop.reason or next((one.status for one in found.values() if one.status in EARLY), "")
            if early:
                break
        if not optima.found:
            raise KeyboardInterrupt(NOTHING_DONE)
        return solution_of(engine, problem, run, optima.fitted, child(key, optima.number)), optima, early


def _rounds(fits: int) -> Iterator[range]:
    """The numbers of the fits of each round."""
    return (range(first, min(first + ROUND, fits)) for first in range(0, fits, ROUND))


def _name(number: int, start: Point) -> str:
    """Of a fit's part of a checkpoint: in a session with more iterations it may begin elsewhere than it did before."""
    digest = blake2b(b"".join(np.ascontiguousarray(start[name]).tobytes() for name in sorted(start)), digest_size=8)
    return f"{number}-{digest.hexdigest()}" if start else str(number)


def _length(run: FitRun, search: Search, optima: Optima, fits: int) -> FitRun:
    """How long each fit of a round may be: its part of the iterations that are left.

    After the first round none, if that is less than fits have taken so far: they would end on their way.
    """
    if search.iterations is None:
        return run
    share = max(search.iterations - optima.iterations, 0) // fits
    if not optima.fits:
        share = max(share, 1)
    elif share < optima.iterations / optima.fits:
        share = 0
    return replace(run, max_iter=min(run.max_iter, share))


def _start(structure: Factorisation, search: Search, optima: Optima, number: int, key: np.uint64) -> tuple[str, Point]:
    """How the fit of this number begins: anew in the first round, which has nothing to go on from."""
    if number < search.fresh or not optima.found:
        return fresh_start(structure, number, child(key, PROPOSAL))
    parents = [optimum.point for optimum in optima.found[:PARENTS] if optimum.point is not None]
    return next_start(structure, parents, number, child(key, PROPOSAL))


def _point(engine: Engine, structure: Factorisation, problem: Any, fitted: Fitted, key: np.uint64) -> Point:
    """Factors and hyperparameters of a solution, about the mean of its distribution, none beyond `LARGEST`."""
    assert engine.finish is not None
    values, _ = engine.finish(problem, fitted.state, child(key, DRAW), DRAWS)
    names = {structure.W.name, structure.H.name, *structure.unknowns}
    means = {name: np.sum(value / len(value), axis=0) for name, value in values.items() if name in names}
    return {name: np.clip(mean, -LARGEST, LARGEST) for name, mean in means.items()}


def _jobs(run: FitRun, fits: int) -> Jobs:
    """One bar, which counts the fits; the seconds are the search's."""
    return Jobs(
        fits,
        cores=run.cores,
        word="search",
        progressbar=run.progressbar,
        compiles=run.compiles,
        on_step=run.on_step,
        max_seconds=run.max_seconds,
        turns=1,
    )

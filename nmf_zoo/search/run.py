"""The loop of a search: rounds of local fits, each round's starts made of what the rounds before it found.

Streams: search -> fit -> as a restart's, with the proposal's beside them. The first fit is restart 0 of a run without a
search. What a round begins at depends on the rounds before it alone, and a round has always the same size, so that the
threads decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import numpy as np

from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.checkpoint import Checkpoint
from nmf_zoo.runtime.driver import NOTHING_DONE, FitRun, Fitted, Solution, fit_once, solution_of
from nmf_zoo.runtime.engine import DRAW, Engine
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.run_one import StepsOf
from nmf_zoo.runtime.stopping import BEHIND, EARLY, OUT_OF_TIME
from nmf_zoo.search.optima import NEAR, Optima, Optimum, Point
from nmf_zoo.search.options import Search
from nmf_zoo.search.proposals import PARENTS, components_of, fresh_start, next_start
from nmf_zoo.search.race import Race
from nmf_zoo.structure import Factorisation

ROUND = 4  # fits whose starts know the same of one another: as many cores as a search can use at once
DRAWS = 8  # of an optimum's distribution, whose mean stands for it
LARGEST = 1e140  # cell of that mean: products of totals are numbers still
PROPOSAL, FIT = 3, 4  # streams of a fit's start, and, within a job, of other fits than the first


def run_search(
    engine: Engine,
    structure: Factorisation,
    options: Any,
    run: FitRun,
    search: Search,
    key: np.uint64,
    checkpoint: Checkpoint | None = None,
    most: int = 1,
) -> tuple[list[Solution], Optima, str]:
    """Search, and draw from the best optimum; the last is why the search ended early, else "".

    With a ``checkpoint`` the search goes on from it, and saves itself there. ``most`` : how many optima are drawn from,
    of those that are near the best.

    Raises
    ------
    RunFailed : a fit failed
    KeyboardInterrupt : Ctrl-C came before the first iteration
    """
    optima = Optima(engine.maximise)
    race = None if engine.is_noisy else Race(engine.maximise, NEAR if engine.maximise else 0.0)
    with _jobs(run, search.fits, StepsOf(engine, structure, options)) as jobs:
        problem = engine.prepare(structure, options, jobs.workers)
        fits = _Fits(engine, structure, problem, optima, jobs, key, checkpoint)
        early = _fill(optima, structure, run, search, partial(child, key), fits.of_round, race)
        if not optima.found:
            raise KeyboardInterrupt(NOTHING_DONE)
        early = fits.go_on(run, search, early)
        near = optima.near()[:most]
        return [solution_of(engine, problem, run, one.fitted, child(key, one.source)) for one in near], optima, early


@dataclass
class _Fits:
    """The local fits of a search: what they share."""

    engine: Engine
    structure: Factorisation
    problem: Any
    optima: Optima
    jobs: Jobs
    key: np.uint64
    checkpoint: Checkpoint | None

    def of_round(self, round_: Round) -> tuple[dict[int, Local], str]:
        """By number, and why they ended early, else ""."""

        def fit(start: Point, job: Job) -> Fitted:
            part = self._part(_name(job.number, start))
            length = round_.lengths[job.number - round_.numbers[0]]
            return fit_once(self.engine, self.problem, length, start, part, job)

        found, early = self._run(fit, round_.starts, round_.keys, round_.numbers[0])
        return {number: self._local(number, fitted) for number, fitted in found.items()}, early

    def go_on(self, run: FitRun, search: Search, ended: str) -> str:
        """The best fit goes on from where it stopped at the last of its iterations, unless the search ``ended`` early.

        Returns why it ended early after all, else "". If the time cuts it short nothing is kept of it.
        """
        optima, best = self.optima, self.optima.best
        stopped, more = cast(Fitted, best.fitted), _length(run, search, optima, 1).max_iter
        without = None if optima.replay is None else replace(optima.replay, goes_on=False)
        if ended:
            optima.replay = without
        if ended or not search.goes_on or more == 0 or stopped.status != "max_iter" or not self._can_go_on:
            return ended
        done = len(stopped.objective)
        name, length = f"{_name(best.source, best.point or {})}-goes-on", replace(run, max_iter=done + more)

        def fit(begun: Fitted, job: Job) -> Fitted:
            return fit_once(self.engine, self.problem, length, begun, self._part(name), job)

        copy = deepcopy(stopped)  # steps overwrite the state that they are given
        found, early = self._run(fit, [copy], [child(self.key, best.source)], best.source)
        if early == OUT_OF_TIME or not found:
            optima.replay = without
            return early
        local = self._local(best.source, found[best.source])
        optima.go_on(local.fitted, local.iterations - done, local.point, components_of(self.structure, local.point))
        if early:
            optima.replay = None
        return early

    @property
    def _can_go_on(self) -> bool:
        """Not from where a fit was closed; and of objectives with errors the best is not the best."""
        return not self.engine.is_noisy and self.engine.close is None

    def _run(self, fit: Callable[[Any, Job], Fitted], begun: list, keys: list, first: int) -> tuple[dict, str]:
        found = self.jobs.run(fit, begun, keys, note=lambda *_: self.optima.note(), first=first)
        early = self.jobs.stop.reason or next((one.status for one in found.values() if one.status in EARLY), "")
        return found, early

    def _part(self, name: str) -> Any:
        return None if self.checkpoint is None else self.checkpoint.part(name)

    def _local(self, number: int, fitted: Fitted) -> Local:
        if fitted.status == BEHIND:
            return Local(fitted.objective[-1], len(fitted.objective), {}, fitted)
        key = child(self.key, number)
        point = point_of_solution(self.engine, self.structure, self.problem, fitted.state, key)
        return Local(fitted.objective[-1], len(fitted.objective), point, fitted)


def search_within(
    job: Job,
    structure: Factorisation,
    search: Search,
    max_iter: int,
    fit: Callable[[Point, int, Job], Local],
    maximise: bool,
) -> Optima:
    """Search in one piece of work of many, one fit after the other: for a rank, for a split of the data.

    Parameters
    ----------
    max_iter : of a fit
    fit : (start, max_iter, job) -> a fit from there; the first job is this one, others have streams of their own
    maximise : whether a higher objective is better

    Raises
    ------
    KeyboardInterrupt : the piece was asked to stop
    """
    optima = Optima(maximise)

    def make(round_: Round) -> tuple[dict[int, Local], str]:
        found = {}
        each = zip(round_.numbers, round_.starts, round_.keys, round_.lengths, strict=True)
        for number, start, key, length in each:
            found[number] = fit(start, length.max_iter, replace(job, key=key))
            if job.is_stopped():
                raise KeyboardInterrupt
        return found, ""

    run = FitRun(max_iter=max_iter, tol=0.0, draws=1, cores=1, progressbar=False)
    _fill(optima, structure, run, search, partial(key_within, job.key), make)
    return optima


def key_within(key: np.uint64, number: int) -> np.uint64:
    """The stream of a fit of :func:`search_within`: the first has the job's, as the fit without a search."""
    return child(key, FIT, number) if number else key


class Local(NamedTuple):
    """Where a local fit came to: its objective, after how many iterations, values by variable name, all it gave."""

    objective: float
    iterations: int
    point: Point
    fitted: Any


class Round(NamedTuple):
    """Fits whose starts know the same: their numbers, where they begin, their streams, and how long they may be."""

    numbers: range
    starts: list[Point]
    keys: list[np.uint64]
    lengths: list[FitRun]


def _fill(
    optima: Optima,
    structure: Factorisation,
    run: FitRun,
    search: Search,
    keys: Callable[[int], np.uint64],
    make: Callable[[Round], tuple[dict[int, Local], str]],
    race: Race | None = None,
) -> str:
    """All rounds; why they ended early, else "". In a ``race`` fits that fall behind are left.

    Of a round that the time cut short nothing is kept, unless it is the first: no clock could cut the fits at the same
    iterations again, and without them the same search is one of fewer fits.
    """
    begun_anew = 0
    for numbers in _rounds(search.fits):
        length = _length(run, search, optima, len(numbers))
        if length.max_iter == 0:
            break
        fresh = [search.begins_anew(number, optima.iterations) for number in numbers]
        own = [keys(number) for number in numbers]
        begun = [_start(structure, optima, *one) for one in zip(numbers, fresh, own, strict=True)]
        lengths = [_raced(length, race, anew) for anew in fresh]
        found, early = make(Round(numbers, [start for _, start in begun], own, lengths))
        is_whole = len(found) == len(numbers) and not any(_is_cut_short(local.fitted) for local in found.values())
        if not is_whole and early == OUT_OF_TIME and optima.found:
            return early
        for number, local in found.items():
            at = number - numbers[0]
            if race is not None:
                if local.fitted.status == BEHIND:
                    optima.leave(local.iterations)
                    continue
                race.add(fresh[at], local.fitted.objective)
            way, _ = begun[at]
            components = components_of(structure, local.point)
            optimum = Optimum(local.objective, local.point, components, way, number)
            optima.add(optimum, local.fitted, local.iterations)
        begun_anew += sum(fresh)
        optima.replay = search.cut_to(numbers.stop, begun_anew) if is_whole else None
        if early or not optima.found:
            return early
        if search.begins_anew(numbers.stop, optima.iterations) and optima.found_all(search.enough):
            break
    return ""


def _raced(length: FitRun, race: Race | None, anew: bool) -> FitRun:
    """The same, and that the fit may be left."""
    return length if race is None else replace(length, left_after=partial(race.left_after, anew))


def _is_cut_short(fitted: Any) -> bool:
    """Whether a fit ended before its last iteration; those within other work are not stopped."""
    return isinstance(fitted, Fitted) and fitted.status in EARLY


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


def _start(structure: Factorisation, optima: Optima, number: int, anew: bool, key: np.uint64) -> tuple[str, Point]:
    """How the fit of this number begins: anew in the first round, which has nothing to go on from."""
    if anew or not optima.found:
        return fresh_start(structure, number, child(key, PROPOSAL), {one.way for one in optima.found[:PARENTS]})
    parents = [optimum.point for optimum in optima.found[:PARENTS] if optimum.point is not None]
    return next_start(structure, parents, number, child(key, PROPOSAL))


def point_of_solution(engine: Engine, structure: Factorisation, problem: Any, state: Any, key: np.uint64) -> Point:
    """Factors and hyperparameters of a solution, about the mean of its distribution, none beyond `LARGEST`."""
    assert engine.finish is not None
    values, _ = engine.finish(problem, state, child(key, DRAW), DRAWS)
    names = {structure.W.name, structure.H.name, *structure.unknowns}
    means = {name: np.sum(value / len(value), axis=0) for name, value in values.items() if name in names}
    return {name: np.clip(mean, -LARGEST, LARGEST) for name, mean in means.items()}


def _jobs(run: FitRun, fits: int, steps_of: StepsOf) -> Jobs:
    """One bar, which counts the fits; the seconds are the search's."""
    return Jobs(
        fits,
        cores=run.cores,
        word="search",
        progressbar=run.progressbar,
        compiles=run.compiles,
        on_step=run.on_step,
        max_seconds=run.max_seconds,
        executor=run.executor,
        steps_of=steps_of,
        turns=1,
    )

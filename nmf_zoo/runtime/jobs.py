"""Many independent pieces of work, side by side: chains, restarts, ranks to be judged, simulations.

What a piece gives depends on its item and its random stream, never on who else is there, on the order in which pieces
end, or on where they run::

    with Jobs(len(items), cores=4, word="chain", total=100) as jobs:
        problem = prepare(jobs.workers)
        found = jobs.run(work, items, keys)      {number: work(item, job)}, in the order of the items

Ctrl-C, or whoever else sets ``jobs.stop``, asks all pieces to end after their step; each decides what to make of that:
it returns what it has, or raises KeyboardInterrupt and is left out. The first failure stops the others and is raised.
A shelf keeps the results of pieces on disk, so that those which were done are not done again.

Pieces run in threads. With any other ``concurrent.futures.Executor`` they run where it runs them, if items and results
can be sent there; the work goes to each process once. Nobody but a terminal can ask a piece in another process to stop:
those that run come to their end, the others are not begun; and it has one thread, and no progress bar of its own.

Or pieces stay here, in threads that wait, and only the steps of their engines are made there, some seconds' worth at a
time (``steps_of``): chains and fits, which show and save how far they are, and keep what they have when they are asked
to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.runtime.progress import KERNELS, Watch
from nmf_zoo.runtime.remote import Remote, Unseen, asked_to_end, is_near
from nmf_zoo.runtime.stopping import FAILED, INTERRUPTED, Observer, OnStep, Step, Stop
from nmf_zoo.runtime.workers import SERIAL, OneBlasThread, Workers

Item = TypeVar("Item")
Result = TypeVar("Result")
AT_ONCE = 64  # pieces that wait at a time for steps made elsewhere: their states are here


def _go_on() -> str:
    return ""


def _say_nothing(*_: Any, **__: Any) -> None:
    pass


def _nobody_looks(step: Step) -> str:
    return ""


@dataclass(frozen=True)
class Job:
    """One piece's place in a run.

    Attributes
    ----------
    number : among the pieces; of a chain or restart its own
    key : its random stream
    workers : threads for maps inside the piece
    report : report(done, note) moves its progress bar
    is_stopped : true when it is asked to end: the reason
    observe : to be called after a step of an engine, "" or why it ends here
    remote : where steps of an engine are made, if not here
    """

    number: int
    key: np.uint64
    workers: Workers = SERIAL
    report: Callable[..., None] = _say_nothing
    is_stopped: Callable[[], Any] = _go_on
    observe: Callable[[Step], str] = _nobody_looks
    remote: Remote | None = None

    def ends_after(self, step: Step) -> str:
        """Why it ends after this step; "" when it goes on."""
        return self.observe(step) or (INTERRUPTED if self.is_stopped() else "")


Work = Callable[[Any, Job], Any]


class Shelf(Protocol):
    """Keeps the results of pieces by their number."""

    def load(self, number: int) -> Any | None:
        """The result of an earlier session."""

    def save(self, number: int, result: Any) -> None:
        """Keep a result."""


class Jobs:
    """The pieces of a run, as a context.

    Parameters
    ----------
    n_jobs : how many pieces there are
    cores : threads in all; those without a piece help the others
    word : what a piece is called beside its progress bar
    total : steps of a piece, which then has a bar of its own; without it one bar counts the pieces
    progressbar : whether bars are shown
    compiles : what is compiled where kernels are not in the cache; see :class:`~nmf_zoo.runtime.progress.Watch`
    on_step, max_seconds : see :func:`nmf_zoo.sample`
    executor : where the pieces run, an Executor or Dask's Client; default threads of our own. It is left open
    steps_of : what the steps of pieces share, of which no more than these are made in an executor of other processes
    turns : parts of ``max_seconds``, one after the other; default as often as pieces take each other's places
    side_by_side : how many pieces there are at a time; default one for each core

    Attributes
    ----------
    workers : threads that the pieces share, those of cores without a piece
    stop : asks the pieces to end, and says why they were asked
    """

    def __init__(
        self,
        n_jobs: int,
        *,
        cores: int,
        word: str,
        total: int | None = None,
        progressbar: bool = False,
        compiles: str = KERNELS,
        on_step: OnStep | None = None,
        max_seconds: float | None = None,
        executor: Any = None,
        steps_of: Any = None,
        turns: int | None = None,
        side_by_side: int | None = None,
    ):
        steps_away = steps_of is not None and not is_near(executor)
        self._away = (executor, steps_of) if steps_away else None
        self._remote: Remote | None = None  # where the steps of the pieces are made, if not here
        executor = None if steps_away else executor
        self._is_near = is_near(executor)
        self._has_bars = total is not None and self._is_near
        bars = (1, n_jobs) if total is None or not self._is_near else (n_jobs, total)
        for name, value in (("on_step", on_step), ("max_seconds", max_seconds)):
            if value is not None and not self._is_near:
                got, expected = f"{value!r} with {type(executor).__name__}", "None where chains run in other processes"
                raise InputError(name, got, expected, "leave one of them out")
        self._n, self._ended, self._executor = n_jobs, 0, executor
        self._side_by_side = max(1, min(n_jobs, AT_ONCE if steps_away else cores))
        self._side_by_side = self._side_by_side if side_by_side is None else side_by_side
        self._watch, self._resources = Watch(progressbar, word, *bars, compiles), ExitStack()
        own = cores if steps_away else 1 if executor is not None else cores - self._side_by_side + 1
        self.stop, self.workers = Stop(), Workers(own)
        self._turns = -(-n_jobs // self._side_by_side) if turns is None else turns
        self._observer = Observer(on_step, max_seconds, self._turns, self.stop)

    def __enter__(self) -> Jobs:
        for resource in (OneBlasThread(), self._watch, closing(self.workers)):
            self._resources.enter_context(resource)
        if self._away is not None:
            self._remote = self._resources.enter_context(closing(Remote(*self._away)))
        if self._executor is None:  # the workers outlive the pieces
            self._executor = self._resources.enter_context(ThreadPoolExecutor(self._side_by_side))
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop(FAILED if error[0] else "")
        self._resources.__exit__(*error)

    def run(
        self,
        work: Callable[[Item, Job], Result],
        items: Sequence[Item],
        keys: Sequence[np.uint64],
        shelf: Shelf | None = None,
        note: Callable[[int, Result], str] = lambda number, result: "",
        first: int = 0,
    ) -> dict[int, Result]:
        """``work(item, job)`` of every item, by number; pieces that raised KeyboardInterrupt are left out.

        ``shelf`` keeps results. ``note(number, result)`` goes beside the one bar; it is called in this thread.
        ``first`` is the number of the first piece, where others ran before: a run may be called again.
        """
        numbers = range(first, first + len(items))
        found = {} if shelf is None else _from(shelf, numbers)
        for number, result in found.items():
            self._count(note(number, result))

        def finish(number: int, result: Result) -> None:
            if shelf is not None and number not in found:
                shelf.save(number, result)
            found[number] = result
            self._count(note(number, result))

        todo = [number for number in numbers if number not in found]
        with nullcontext() if self._is_near else closing(Remote(self._executor, work)) as remote:
            submit = self._submitter(work, len(todo), remote)

            def begin(number: int, **how: Any) -> Future:
                return submit(number, items[number - first], keys[number - first], **how)

            self._collect(todo, begin, finish)
        self._lend(-self._side_by_side)  # all of its pieces gave theirs away
        if self._observer.failure is not None:
            raise self._observer.failure
        return dict(sorted(found.items()))

    def lengthen(self, total: int, reason: str) -> None:
        """The pieces, which have come to their end, are about to go on to ``total`` steps."""
        if self._has_bars:
            self._watch.lengthen(total, reason)

    def _count(self, note: str) -> None:
        """A piece has ended, or one that had gone on."""
        self._ended = min(self._ended + 1, self._n)
        if not self._has_bars:
            self._watch.report(0, self._ended, note, last=self._ended == self._n)

    def _submitter(self, work: Work, n_todo: int, remote: Remote | None) -> Callable[..., Future]:
        """``submit(number, item, key)``."""
        executor = self._executor
        assert executor is not None, "use Jobs as a context"
        if remote is not None:
            return partial(remote.submit, _far_away)
        waiting = iter(range(n_todo - self._side_by_side))
        self._lend(max(self._side_by_side - n_todo, 0))

        def near(number: int, item: Any, key: np.uint64) -> Any:
            """One piece, unless another has failed; if none takes its place, its core goes to those that still run."""
            if self.stop.reason == FAILED:
                raise KeyboardInterrupt
            try:
                return work(item, self._job(number, key))
            except KeyboardInterrupt:
                raise
            except BaseException:
                self.stop(FAILED)
                raise
            finally:
                if next(waiting, None) is None:
                    self._lend(1)

        return lambda number, item, key: executor.submit(copy_context().run, near, number, item, key)

    def _lend(self, count: int) -> None:
        """Cores of pieces to those that run; pieces whose steps are made elsewhere have none."""
        if self._is_near and self._remote is None:
            self.workers.add_cores(count)

    def _job(self, number: int, key: np.uint64) -> Job:
        turn = min(number // self._side_by_side, self._turns - 1)

        def report(done: int, note: str = "", **how: Any) -> None:
            if self._has_bars:
                self._watch.report(number, done, note, **how)

        def observe(step: Step) -> str:
            return self._observer.after(step, turn)

        return Job(number, key, self.workers, report, lambda: self.stop.reason, observe, self._remote)

    def _collect(self, todo: list[int], begin: Callable[..., Future], finish: Callable[[int, Any], None]) -> None:
        """Begin all, and finish each when it ends, in this thread. A second Ctrl-C gives up."""
        left: dict[Future, int] = {}
        ended_ones: SimpleQueue[Future] = SimpleQueue()

        def submit(number: int, **how: Any) -> None:
            future = begin(number, **how)
            left[future] = number
            future.add_done_callback(ended_ones.put)

        try:
            for number in todo:
                submit(number)
            while left and not _has_failed(future := ended_ones.get()):
                number = left[future]
                if future.exception() is None and isinstance(future.result(), Unseen):
                    submit(number, sends=True)
                elif future.exception() is None:
                    finish(number, future.result())
                del left[future]
        except KeyboardInterrupt:
            self.stop(INTERRUPTED)
        if left and (not self._is_near or self.stop.reason == FAILED):
            _cancel(left)
        try:
            wait(left)
        finally:
            _cancel(left)
        for future, number in left.items():
            if not future.cancelled() and future.exception() is None and not isinstance(future.result(), Unseen):
                finish(number, future.result())
        for future in filter(_has_failed, left):
            if isinstance(future.exception(), BrokenExecutor) and self.stop.reason == INTERRUPTED:
                return  # Ctrl-C in a terminal ends processes that wait for work
            future.result()


def _has_failed(future: Future) -> bool:
    """Whether it raised anything but KeyboardInterrupt, by which a piece says that it was cut short."""
    return not future.cancelled() and not isinstance(future.exception(), KeyboardInterrupt | None)


def _cancel(futures: Iterable[Future]) -> None:
    """Those that have not begun."""
    for future in futures:
        future.cancel()


def _from(shelf: Shelf, numbers: Iterable[int]) -> dict[int, Any]:
    loaded = {number: shelf.load(number) for number in numbers}
    return {number: result for number, result in loaded.items() if result is not None}


def _far_away(work: Work, number: int, item: Any, key: np.uint64) -> Any:
    """One piece in another process."""
    with asked_to_end() as stop:
        return work(item, Job(number, key, is_stopped=lambda: stop.reason))

"""A search over ranks: one job per rank and restart, in threads, each saved as soon as it is done.

A job's stream is keyed by its rank and restart, so that its numbers depend on neither the threads nor the order, nor
on which other ranks and restarts were asked for. On disk::

    run.json, lock          the search: method, options, seed (:mod:`nmf_zoo.inference.checkpoint`)
    rank_5/run.json         the model of rank 5
    rank_5/0.state          what restart 0 of rank 5 found

A job that was cut short is done again from its start; those that were done are read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.checkpoint import Checkpoint, open_checkpoint
from nmf_zoo.inference.evidence import EvidenceRun, Job, Method
from nmf_zoo.inference.facts import run_facts
from nmf_zoo.inference.progress import Watch
from nmf_zoo.inference.workers import OneBlasThread, Workers
from nmf_zoo.kernels.streams import child
from nmf_zoo.structure import Factorisation


class Outcome(NamedTuple):
    """What a job found: an estimate or bound in nats, its own error, what a bound lacks (about), its time and end."""

    estimate: float
    standard_error: float
    shortfall: float
    seconds: float
    status: str
    shortfall_error: float = np.nan


OUTCOME = [float, float, float, float, str, float]  # as it is saved
INTERRUPTED = Outcome(np.nan, np.nan, np.nan, np.nan, "interrupted")


class OneRun(EvidenceRun):
    """A method's run of a single chain: in the caller's thread, with the threads and the Ctrl-C of the search."""

    def __init__(self, key: np.uint64, workers: Workers, report: Any, is_stopped: Any):
        super().__init__(chains=1, key=key)
        self._job = Job(0, key, workers, report, is_stopped)

    def each(self, work: Any, total: int) -> list[Any]:
        return [work(self._job)]


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and how.

    Attributes
    ----------
    method, options : how a model is judged
    structures : the model of every rank
    restarts : jobs of every rank
    key : the search's stream
    same_splits : restart j of every rank has the same stream, so that all see the same random split of the data
    """

    method: Method
    options: Any
    structures: Mapping[int, Factorisation]
    restarts: int
    key: np.uint64
    same_splits: bool = False

    @property
    def jobs(self) -> list[tuple[int, int]]:
        """(rank, restart), the slow ones first, so that no thread is left with one at the end."""
        return [(rank, restart) for restart in range(self.restarts) for rank in sorted(self.structures, reverse=True)]

    def stream(self, rank: int, restart: int) -> np.uint64:
        """The stream of a job."""
        return child(self.key, restart) if self.same_splits else child(self.key, restart, rank)

    def judge(self, rank: int, restart: int, workers: Workers, report: Any, is_stopped: Any) -> Outcome:
        """Do one job."""
        began = time.perf_counter()
        run = OneRun(self.stream(rank, restart), workers, report, is_stopped)
        try:
            found = self.method.estimate(self.structures[rank], self.options, run)
        except RunFailed as error:
            if is_stopped():
                return INTERRUPTED
            return INTERRUPTED._replace(seconds=time.perf_counter() - began, status=f"failed: {error}")
        if is_stopped():  # what it found is that of a run cut short
            return INTERRUPTED
        status: Any = found.statistics.get("status", ["complete"])
        missing, off = (found.statistics.get(name, [np.nan]) for name in ("shortfall", "shortfall_error"))
        numbers: Any = (found.log_evidence, found.standard_error, missing, off)
        value, spread, lacks, doubt = (float(array[0]) for array in numbers)
        return Outcome(value, spread, lacks, time.perf_counter() - began, str(status[0]), doubt)


class Shelf:
    """Where the outcomes of a search are kept on disk; without a checkpoint, nowhere."""

    def __init__(self, search: Search, checkpoint: Checkpoint | None):
        self._folders = {} if checkpoint is None else dict(_rank_folders(search, checkpoint))

    def load(self, rank: int, restart: int) -> Outcome | None:
        saved = self._folders[rank].part(restart).load(OUTCOME) if rank in self._folders else None
        return None if saved is None else Outcome(*saved.tree)

    def save(self, rank: int, restart: int, outcome: Outcome) -> None:
        if rank in self._folders and outcome.status != INTERRUPTED.status:
            self._folders[rank].part(restart).save(list(outcome), {})


def _rank_folders(search: Search, checkpoint: Checkpoint):
    """Yields (rank, its folder), each with the facts of its model; the lock is the search's."""
    for rank, structure in search.structures.items():
        facts = run_facts(search.method, search.options, structure)  # type: ignore[arg-type]
        folder = open_checkpoint(checkpoint.path / f"rank_{rank}", facts, checkpoint.entropy, True)
        folder.close()
        yield rank, folder


@contextmanager
def search_folder(path: Any, method: Method, options: Any, entropy: Any, is_seeded: bool):
    """The checkpoint of a search, new or to go on from; None without a path."""
    if path is None:
        yield None
        return
    facts = {"method": method.name, "options": repr(options)}
    with closing(open_checkpoint(Path(path), facts, entropy, is_seeded)) as opened:
        yield opened


def run_search(search: Search, shelf: Shelf, cores: int, progressbar: bool) -> dict[tuple[int, int], Outcome]:
    """The outcomes by (rank, restart), those of an earlier session among them. Ctrl-C leaves the others interrupted."""
    saved = {job: shelf.load(*job) for job in search.jobs}
    done = {job: outcome for job, outcome in saved.items() if outcome is not None}
    todo, stop = [job for job in search.jobs if job not in done], threading.Event()
    side_by_side = max(1, min(len(todo), cores))
    watching = Watch(progressbar, "models", 1, len(search.jobs))
    board, waiting = Board(watching, done), iter(range(len(todo) - side_by_side))

    def work(job: tuple[int, int]) -> Outcome:
        if stop.is_set():
            return INTERRUPTED
        try:
            outcome = search.judge(*job, workers, lambda *_, **__: None, stop.is_set)
        finally:
            if next(waiting, None) is None:  # no other takes its place: its core goes to those that still run
                workers.add_cores(1)
        shelf.save(*job, outcome)
        board.add(job, outcome)
        return outcome

    with OneBlasThread(), watching, closing(Workers()) as workers, ThreadPoolExecutor(side_by_side) as pool:
        workers.add_cores(cores - side_by_side)
        board.show()
        futures = {job: pool.submit(work, job) for job in todo}
        _wait(list(futures.values()), stop)
    return done | {job: future.result() for job, future in futures.items()}


def _wait(futures: Sequence[Future], stop: threading.Event) -> None:
    """Wait for all, or for the first failure; Ctrl-C asks the jobs to stop, a second one gives up."""
    try:
        wait(futures, return_when="FIRST_EXCEPTION")
    except KeyboardInterrupt:
        stop.set()
        wait(futures)
    finally:
        if any(future.done() and future.exception() for future in futures):
            stop.set()


class Board:
    """The progress bar: how many jobs are done, and which rank leads."""

    def __init__(self, watch: Watch, done: Mapping[tuple[int, int], Outcome]):
        self._watch, self._lock = watch, threading.Lock()
        self._done, self._best = 0, (-np.inf, 0)
        for (rank, _), outcome in done.items():
            self._count(rank, outcome)

    def add(self, job: tuple[int, int], outcome: Outcome) -> None:
        with self._lock:
            self._count(job[0], outcome)
        self.show()

    def show(self) -> None:
        value, rank = self._best
        note = f"best {value:.6g} at rank {rank}" if rank else ""
        self._watch.report(0, self._done, note)

    def _count(self, rank: int, outcome: Outcome) -> None:
        self._done += 1
        value = outcome.estimate + (outcome.shortfall if np.isfinite(outcome.shortfall) else 0.0)
        if value > self._best[0]:
            self._best = (value, rank)

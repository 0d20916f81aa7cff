"""A search over ranks: one job per rank and restart, in threads, each saved as soon as it is done.

A job's stream is keyed by its rank and restart, so that its numbers depend on neither the threads nor the order, nor
on which other ranks and restarts were asked for. On disk::

    run.json, lock          the search: method, options, seed (:mod:`nmf_zoo.runtime.checkpoint`)
    rank_5/run.json         the model of rank 5
    rank_5/0.state          what restart 0 of rank 5 found

A job that was cut short is done again from its start; those that were done are read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.inference.evidence.contract import EvidenceRun, Method
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.runtime.checkpoint import Checkpoint, RunFiles, open_checkpoint
from nmf_zoo.runtime.jobs import Job, Jobs
from nmf_zoo.runtime.run_fingerprint import run_facts
from nmf_zoo.runtime.state_patterns import Each, OneOf
from nmf_zoo.search.options import Search
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
LEFT_OUT = "left out"  # of fits that a search had no iterations left for
INTERRUPTED = Outcome(np.nan, np.nan, np.nan, np.nan, "interrupted")


class OneRun(EvidenceRun):
    """A method's run of a single chain: the search's job is its chain."""

    def __init__(self, job: Job, search: Search | None = None):
        super().__init__(chains=1, key=job.key, search=search)
        self._job = replace(job, number=0)

    def each(self, work: Any, total: int) -> list[Any]:
        return [work(self._job)]


@dataclass(frozen=True, kw_only=True)
class RankSearch:
    """What is searched, and how.

    Attributes
    ----------
    method, options : how a model is judged
    structures : the model of every rank
    restarts : jobs of every rank
    key : the search's stream
    same_splits : restart j of every rank has the same stream, so that all see the same random split of the data
    of_modes : the search for the best mode in every job, or None. A job of a bound then gives an outcome for each fit
    """

    method: Method
    options: Any
    structures: Mapping[int, Factorisation]
    restarts: int
    key: np.uint64
    same_splits: bool = False
    of_modes: Search | None = None

    @property
    def runs(self) -> int:
        """Outcomes of every rank: of restarts, or of the fits of the one search for the best bound."""
        is_one_search = self.of_modes is not None and self.method.is_bound
        return self.of_modes.fits if is_one_search and self.of_modes is not None else self.restarts

    @property
    def jobs(self) -> list[tuple[int, int]]:
        """(rank, restart), the slow ones first, so that no thread is left with one at the end."""
        return [(rank, restart) for restart in range(self.restarts) for rank in sorted(self.structures, reverse=True)]

    def stream(self, rank: int, restart: int) -> np.uint64:
        """The stream of a job."""
        return child(self.key, restart) if self.same_splits else child(self.key, restart, rank)

    def judge(self, item: tuple[int, int], job: Job) -> list[Outcome]:
        """Do one job: its outcome, or those of its fits. What a run found that was cut short is dropped."""
        if job.is_stopped():
            raise KeyboardInterrupt
        began = time.perf_counter()
        try:
            found = self.method.estimate(self.structures[item[0]], self.options, OneRun(job, self.of_modes))
        except RunFailed as error:
            if job.is_stopped():
                raise KeyboardInterrupt from None
            return [INTERRUPTED._replace(seconds=time.perf_counter() - began, status=f"failed: {error}")]
        if job.is_stopped():
            raise KeyboardInterrupt
        n = len(found.log_evidence)
        missing, off = (found.statistics.get(name, np.full(n, np.nan)) for name in ("shortfall", "shortfall_error"))
        seconds = np.full(n, (time.perf_counter() - began) / n)
        status: Any = found.statistics.get("status", ["complete"] * n)
        numbers = np.transpose([found.log_evidence, found.standard_error, missing, seconds, off]).tolist()
        return [
            Outcome(value, spread, lacks, took, str(word), doubt)
            for (value, spread, lacks, took, doubt), word in zip(numbers, status, strict=True)
        ]


class Outcomes:
    """Where the outcomes of a search are kept on disk; without a checkpoint, nowhere."""

    def __init__(self, search: RankSearch, checkpoint: Checkpoint | None):
        self._jobs = search.jobs
        self._folders = {} if checkpoint is None else dict(_rank_folders(search, checkpoint))

    def load(self, number: int) -> list[Outcome] | None:
        part = self._part(number)
        saved = None if part is None else part.load(OneOf(OUTCOME, Each(OUTCOME)))
        if saved is None:
            return None
        is_one = isinstance(saved.tree[0], float)
        return [Outcome(*tree) for tree in ([saved.tree] if is_one else saved.tree)]

    def save(self, number: int, outcomes: list[Outcome]) -> None:
        part = self._part(number)
        if part is not None:
            part.save(list(outcomes[0]) if len(outcomes) == 1 else [list(outcome) for outcome in outcomes], {})

    def _part(self, number: int) -> RunFiles | None:
        rank, restart = self._jobs[number]
        return self._folders[rank].part(restart) if rank in self._folders else None


def _rank_folders(search: RankSearch, checkpoint: Checkpoint):
    """Yields (rank, its folder), each with the facts of its model; the lock is the search's."""
    for rank, structure in search.structures.items():
        facts = run_facts(search.method, search.options, structure)  # type: ignore[arg-type]
        folder = open_checkpoint(checkpoint.path / f"rank_{rank}", facts, checkpoint.entropy, True)
        folder.close()
        yield rank, folder


@contextmanager
def search_folder(
    path: Any, method: Method, options: Any, entropy: Any, is_seeded: bool, of_modes: Search | None = None
):
    """The checkpoint of a search, new or to go on from; None without a path."""
    if path is None:
        yield None
        return
    facts = {"method": method.name, "options": repr(options)} | ({"search": repr(of_modes)} if of_modes else {})
    with closing(open_checkpoint(Path(path), facts, entropy, is_seeded)) as opened:
        yield opened


def run_rank_search(
    search: RankSearch, shelf: Outcomes, cores: int, progressbar: bool, executor: Executor | None = None
) -> dict[tuple[int, int], Outcome]:
    """The outcomes by (rank, restart), those of an earlier session among them. Ctrl-C leaves the others interrupted.

    Of jobs that are searches there is one for each fit, in the place of restarts.
    """
    items, leader = search.jobs, Leader(search)
    with Jobs(len(items), cores=cores, word="models", progressbar=progressbar, executor=executor) as jobs:
        found = jobs.run(search.judge, items, [search.stream(*item) for item in items], shelf, leader.note)
    made = {item: found.get(number, [INTERRUPTED]) for number, item in enumerate(items)}
    runs, left_out = search.runs, [INTERRUPTED._replace(status=LEFT_OUT)]
    return {
        (rank, restart + fit): outcome
        for (rank, restart), outcomes in made.items()
        for fit, outcome in enumerate((outcomes + runs * left_out)[: runs // search.restarts])
    }


class Leader:
    """Which rank leads, for the progress bar."""

    def __init__(self, search: RankSearch):
        self._jobs, self._best = search.jobs, (-np.inf, 0)

    def note(self, number: int, outcomes: list[Outcome]) -> str:
        """After one more job."""
        for outcome in outcomes:
            value = outcome.estimate + (outcome.shortfall if np.isfinite(outcome.shortfall) else 0.0)
            self._best = max(self._best, (value, self._jobs[number][0]), key=lambda pair: pair[0])
        return f"best {self._best[0]:.6g} at rank {self._best[1]}" if self._best[1] else ""

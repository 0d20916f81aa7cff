"""Models, data and engines at random, by the thousand: ``python -m tests.property.fuzz --cases 20000 --seed 1``.

Each case is a program (:mod:`tests.property.everything`), a pure function of the seed and its number. They run in
processes forked from one that has every kernel compiled, so that a crash or a hang is a case that failed. What is done
is in the progress file, from which the same command goes on. In the end: of each cause of failure the smallest program,
and a table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from tests.property.everything.picks import Picks, random_picks, replayed, simplest
from tests.property.everything.setting import EARLIER, ENGINES, FAMILIES, Case, Outcome, case_of, run

LONGEST = 200.0  # seconds of a case: kernels that the warm-up did not need compile for up to 110
WARM = 400  # cases of another seed that compile the kernels
BLOCK = 200  # cases of a process: what it keeps of them ends with it
SHRINKS = 300  # tries to make a failing case smaller
WORDS = ("ran", "refused", "failed")
Make = Callable[[Picks], Case]


class Record(NamedTuple):
    """A line of the progress file."""

    number: int
    engine: str
    word: str
    reason: str
    place: str
    seconds: float
    compiled: list[str]

    @property
    def signature(self) -> str:
        return Outcome(self.word, self.reason, self.place).signature


def run_case(number: int, case: Case) -> Record:
    """Run it here, and note what numba compiled."""
    from numba.core import event

    began = time.perf_counter()
    with event.install_recorder("numba:compile") as recorder:
        outcome = run(case)
    compiled = [str(found.data["dispatcher"].py_func.__qualname__) for _, found in recorder.buffer if found.is_start]
    return Record(number, case.engine, *outcome.__dict__.values(), time.perf_counter() - began, compiled)


def work(numbers: list[int], seed: int, make: Make, pipe: Any) -> None:
    """In a forked process: run the cases, and send what became of each."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        for number in numbers:
            pipe.send(number)
            pipe.send(run_case(number, make(random_picks(seed, number))))


class Worker:
    """A process with a block of cases, watched."""

    def __init__(self, numbers: list[int], seed: int, make: Make):
        self.left, self.seed, self.make = numbers, seed, make
        self.pipe, theirs = mp.get_context("fork").Pipe(duplex=False)
        self.process = mp.get_context("fork").Process(target=work, args=(numbers, seed, make, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.began, self.current = time.monotonic(), None

    def receive(self) -> Record | None:
        """What came: a record, or None when a case began. EOFError: the process has ended."""
        found = self.pipe.recv()
        self.began = time.monotonic()
        if isinstance(found, Record):
            self.left, self.current = self.left[1:], None
            return found
        self.current = found
        return None

    def lost(self, why: str) -> Record:
        """The case that the process died of, or that took too long."""
        self.process.kill()
        self.process.join()
        number, self.left = self.left[0], self.left[1:]
        engine = self.make(random_picks(self.seed, number)).engine
        return Record(number, engine, "failed", why, why, time.monotonic() - self.began, [])


def records(numbers: list[int], seed: int, make: Make, processes: int) -> Iterator[Record]:
    """Run the cases, block by block."""
    blocks = [numbers[at : at + BLOCK] for at in range(0, len(numbers), BLOCK)]
    workers: list[Worker] = []
    while blocks or workers:
        while blocks and len(workers) < processes:
            workers.append(Worker(blocks.pop(0), seed, make))
        ready = wait([worker.pipe for worker in workers], timeout=1.0)
        for worker in list(workers):
            record = None
            if worker.pipe in ready:
                try:
                    record = worker.receive()
                except EOFError:
                    workers.remove(worker)
                    worker.process.join()
                    if worker.left:
                        record = worker.lost(f"crash: exit code {worker.process.exitcode}")
            elif time.monotonic() - worker.began > LONGEST:
                workers.remove(worker)
                record = worker.lost(f"hang: more than {LONGEST:.0f} s")
            if record and worker not in workers and worker.left:
                blocks.insert(0, worker.left)
            if record:
                yield record


def forked(do: Callable[[], Any]) -> Any:
    """What a function gives in a process of its own; a record of the crash or hang where that ends it."""
    ours, theirs = mp.get_context("fork").Pipe(duplex=False)
    process = mp.get_context("fork").Process(target=lambda: theirs.send(do()), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(LONGEST) else f"hang: more than {LONGEST:.0f} s"
    except EOFError:
        process.join()
        return f"crash: exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def shrunk(record: Record, seed: int, make: Make) -> Case:
    """The smallest case that fails for the same cause."""
    picks, is_fatal = random_picks(seed, record.number), record.reason.startswith(("crash", "hang"))
    case = make(picks)

    def still_fails(tried: Picks) -> bool:
        case = make(tried)
        if is_fatal:
            return forked(lambda: run(case)) == record.reason
        outcome = run(case)
        return outcome.word == "failed" and outcome.signature == record.signature

    def search() -> list[int]:
        return simplest(picks.made, still_fails, SHRINKS)

    found = search() if is_fatal else forked(search)
    return make(replayed(found)) if isinstance(found, list) else case


def warm_up(engines: list[str], families: list[str]) -> None:
    """Compile what the cases need, here, where all workers inherit it."""
    without_threads = [engine for engine in engines if engine != "nuts"]  # nutpie's threads don't survive a fork
    for number in range(WARM if without_threads else 0):
        run(case_of(random_picks(-1, number), without_threads, families))


def read_progress(path: Path | None) -> dict[int, Record]:
    if path is None or not path.exists():
        return {}
    lines = [Record(*json.loads(line)) for line in path.read_text().splitlines() if line.endswith("]")]
    return {record.number: record for record in lines}


def table(found: dict[int, Record]) -> str:
    """Engine x (ran, refused, failed)."""
    counts = Counter((record.engine, record.word) for record in found.values())
    rows = [(engine, *(counts[engine, word] for word in WORDS)) for engine in ENGINES]
    rows.append(("all", *(sum(row[at] for row in rows) for at in (1, 2, 3))))
    lines = ["| engine | ran | refused | failed |", "|---|---:|---:|---:|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def show_failures(found: dict[int, Record], seed: int, make: Make) -> None:
    causes: dict[str, list[Record]] = {}
    for record in found.values():
        if record.word == "failed":
            causes.setdefault(record.signature, []).append(record)
    for same in sorted(causes.values(), key=len, reverse=True):
        numbers = [record.number for record in same]
        print(f"\n{len(same)} cases, {numbers[:5]}: {same[0].place}\n{same[0].reason[:500]}\n")
        print(shrunk(min(same), seed, make).source, flush=True)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    of = "which models: earlier ones, or overdispersed counts, errors of measurement, data in blocks"
    parser.add_argument("--models", nargs="+", choices=FAMILIES, default=list(EARLIER), help=of)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="progress file: what it holds is not run again")
    asked = parser.parse_args(given)
    found = read_progress(asked.resume)
    numbers = [number for number in range(asked.first, asked.first + asked.cases) if number not in found]
    make = partial(case_of, engines=asked.engines, families=asked.models)
    warm_up(asked.engines, asked.models)
    began = time.monotonic()
    for done, record in enumerate(records(numbers, asked.seed, make, asked.processes), start=1):
        found[record.number] = record
        if asked.resume:
            with asked.resume.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if record.word == "failed":
            print(f"case {record.number}, {record.engine}: {record.place}: {record.reason[:200]}", flush=True)
        if done % 1000 == 0:
            print(f"{done} cases, {(time.monotonic() - began) / done:.3f} s each", flush=True)
    show_failures(found, asked.seed, make)
    print(table(found))
    late = Counter(name for record in found.values() if record.engine != "nuts" for name in record.compiled)
    print(f"seconds of a case: {sum(record.seconds for record in found.values()) / max(len(found), 1):.3f}")
    print(f"compiled after the warm-up: {dict(late)}")
    return int(any(record.word == "failed" for record in found.values()))


if __name__ == "__main__":
    sys.exit(main())

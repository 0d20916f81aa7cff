"""Rows of the benchmark table, and how work is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

REPEATS = 5
BUSY = 0.1  # cores of other programs from which on a machine is not idle
COLUMNS = ("work", "ours", "peer", "ratio", "must reach", "met?")
Row = dict[str, str]


def compare(work: str, ours: str, peer: str, ratio: float, least: float | None = None) -> Row:
    """A row whose ``ratio`` (more is better for us) must reach ``least``, if that is not None."""
    text = f"{ratio:.1f}x better" if ratio >= 1.0 else f"{1.0 / ratio:.1f}x worse"
    must, met = ("", "") if least is None else (f"{least:g}x", verdict(ratio >= least))
    return dict(zip(COLUMNS, (work, ours, peer, text, must, met), strict=True))


def at_most(work: str, ours: str, value: float, most: float, limit: str, peer: str = "") -> Row:
    """A row whose ``value`` must not exceed ``most``; ``limit`` says so in words."""
    return dict(
        zip(COLUMNS, (work, ours, peer, f"{value / most:.2f} of it", limit, verdict(value <= most)), strict=True)
    )


def note(work: str, ours: str, peer: str = "") -> Row:
    """A row without a target; also for what could not be run."""
    return dict(zip(COLUMNS, (work, ours, peer, "", "", ""), strict=True))


class Others:
    """How many cores other programs have had since it was made; 0 where the system does not say."""

    def __init__(self) -> None:
        self._began = self._now()

    def __call__(self) -> float:
        seconds, busy = (now - then for now, then in zip(self._now(), self._began, strict=True))
        return max(busy, 0.0) / seconds

    @staticmethod
    def _now() -> tuple[float, float]:
        """(seconds on the clock, CPU seconds of all programs but this one and its processes that have ended)"""
        stat = Path("/proc/stat")
        user, nice, system, _, _, *others = stat.read_text().split(maxsplit=9)[1:9] if stat.exists() else ["0"] * 8
        busy = sum(map(int, (user, nice, system, *others))) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy - sum(os.times()[:4])


def by_clock(row: Row, others: Others) -> Row:
    """A row timed by the clock on the wall, which says nothing where other programs ran."""
    cores = others()
    if cores <= BUSY:
        return row
    judged = "**not valid**" if row["met?"] else ""
    return row | {"work": f"{row['work']} (other programs had {cores:.1f} cores)", "met?": judged}


def verdict(met: bool) -> str:
    """What stands in the last column."""
    return "yes" if met else "**no**"


def fastest(works: Sequence[Callable[[], object]], times: int, clock: Callable[[], float] = time.process_time) -> list:
    """The least time of each work, run in turn, so that all see the same machine; CPU seconds unless told otherwise.

    Each runs once before, to compile and to fill caches.
    """
    for work in works:
        work()
    least = [float("inf")] * len(works)
    for _ in range(times):
        for i, work in enumerate(works):
            began = clock()
            work()
            least[i] = min(least[i], clock() - began)
    return least


def cpu_of(work: Callable[[], object], calls: int = 1) -> Callable[[], float]:
    """A work for `medians`: the CPU seconds of one of so many calls."""

    def run() -> float:
        began = time.process_time()
        for _ in range(calls):
            work()
        return (time.process_time() - began) / calls

    return run


def medians(works: Sequence[Callable[[], float]], times: int = REPEATS) -> list[float]:
    """The median of the seconds that each work says it took, run in turn, so that all see the same machine.

    Each runs once before, to compile and to fill caches.
    """
    for work in works:
        work()
    seconds = [[work() for work in works] for _ in range(times)]
    return [median(of_one) for of_one in zip(*seconds, strict=True)]

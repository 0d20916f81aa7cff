"""One progress bar per chain or restart, on standard error, where people watch long runs; what is compiled before."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from nmf_zoo.kernels.compile.cache import when_compiling

KERNELS = "kernels"  # that a run compiles, where nobody says of which engine
REFRESH = 0.1  # seconds between two updates of a bar
BESIDE_NOTE = 48  # columns that the rest of a line takes with a bar of two


class Watch:
    """Progress of several chains; does nothing when ``enabled`` is False.

    When a kernel has to be compiled inside, one line says so: ``compiles`` names what, and about how long it takes.
    """

    def __init__(self, enabled: bool, word: str, chains: int, total: int, compiles: str = KERNELS):
        self._due = [0.0] * chains
        self._compiles, self._lock, self._listening = compiles, threading.Lock(), ExitStack()
        self._bars = _columns() if enabled else None
        add = self._bars.add_task if self._bars is not None else None
        words = [word] if chains == 1 else [f"{word} {i}" for i in range(chains)]
        self._tasks = [] if add is None else [add(each, total=total, note="") for each in words]

    def __enter__(self) -> Watch:
        if self._bars is not None:
            self._bars.start()
            self._listening.enter_context(when_compiling(self._say_compiling))
        return self

    def __exit__(self, *_) -> None:
        if self._bars is not None:
            self._listening.close()
            self._bars.stop()

    def _say_compiling(self, _: str) -> None:
        """Once, whichever thread comes first."""
        with self._lock:
            said, self._compiles = self._compiles, ""
        if said:
            self._print(f"compiling {said}, once")

    def lengthen(self, total: int, reason: str) -> None:
        """Say that all chains go on to ``total``, and why."""
        if self._bars is None:
            return
        self._print(f"all chains go on to {total:,} sweeps: {reason}")
        for task in self._tasks:
            self._bars.update(task, total=total)

    def _print(self, line: str) -> None:
        assert self._bars is not None
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def report(self, chain: int, done: int, note: str = "", *, last: bool = False, total: int | None = None) -> None:
        """Say how far a chain is, and, where that is new, of how many steps; cheap enough to be called at each."""
        if self._bars is None or (not last and time.monotonic() < self._due[chain]):
            return
        self._due[chain] = time.monotonic() + REFRESH
        self._bars.update(self._tasks[chain], completed=done, note=note, total=done if last else total)


def _columns() -> Progress:
    """On a narrow terminal the bar shrinks and the note ends in an ellipsis; the numbers stay whole."""
    console = Console(file=sys.stderr)
    note = Column(no_wrap=True, overflow="ellipsis", max_width=max(console.width - BESIDE_NOTE, 9))
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("left"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=note),
        console=console,
    )

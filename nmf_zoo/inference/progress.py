"""One progress bar per chain or restart, on standard error, where people watch long runs."""

from __future__ import annotations

import sys
import time

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

STARTING = "compiling, if this is the first run"  # a minute or two on a new machine, and cached from then on
REFRESH = 0.1  # seconds between two updates of a bar
BESIDE_NOTE = 48  # columns that the rest of a line takes with a bar of two


class Watch:
    """Progress of several chains; does nothing when ``enabled`` is False."""

    def __init__(self, enabled: bool, word: str, chains: int, total: int):
        self._due = [0.0] * chains
        self._bars = _columns() if enabled else None
        add = self._bars.add_task if self._bars is not None else None
        words = [word] if chains == 1 else [f"{word} {i}" for i in range(chains)]
        self._tasks = [] if add is None else [add(each, total=total, note=STARTING) for each in words]

    def __enter__(self) -> Watch:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bars is not None:
            self._bars.stop()

    def report(self, chain: int, done: int, note: str = "", *, last: bool = False) -> None:
        """Say how far a chain is; cheap enough to be called at every step."""
        if self._bars is None or (not last and time.monotonic() < self._due[chain]):
            return
        self._due[chain] = time.monotonic() + REFRESH
        self._bars.update(self._tasks[chain], completed=done, note=note, total=done if last else None)


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

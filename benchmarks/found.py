"""What each part of the benchmarks found last, and tables of it.

Every part keeps its rows in ``build/benchmarks`` when it has run, quick runs aside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from benchmarks.rows import COLUMNS, Row

KEPT = Path(__file__).parents[1] / "build" / "benchmarks"


class Found(NamedTuple):
    """The rows of a part, how long it took, the day, and the load average of the machine at the end."""

    part: str
    rows: list[Row]
    seconds: float
    day: str
    load: float


def found_now(part: str, rows: list[Row], seconds: float) -> Found:
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0
    return Found(part, rows, round(seconds), str(date.today()), load)


def keep(found: Found) -> None:
    """Write what a part found."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{found.part}.json").write_text(json.dumps(found._asdict(), indent=1), encoding="utf-8")


def kept(part: str) -> Found | None:
    """What a part found last; None where it has not run."""
    path = KEPT / f"{part}.json"
    return Found(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def has_target(row: Row) -> bool:
    """Whether a row is judged; a part that failed is, too."""
    return bool(row["must reach"] or row["met?"])


def table_of(rows: Iterable[Row], columns: tuple[str, ...] = COLUMNS) -> Iterator[str]:
    """The lines of a table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield line_of(row, columns)


def line_of(row: Row, columns: tuple[str, ...] = COLUMNS) -> str:
    return f"| {' | '.join(row.get(column, '') for column in columns)} |"


def when(whole: Iterable[Found]) -> str:
    """How long each part took, on which day, beside what load."""
    parts = [f"{one.part} {one.seconds:.0f} s, {one.day} (load average {one.load:g})" for one in whole]
    minutes = sum(one.seconds for one in whole) / 60
    return f"Measured in {minutes:.0f} minutes: {'; '.join(parts)}."

"""The table of targets: what each part found last, row by row, where the row must reach something.

Every part keeps its rows in ``build/benchmarks`` when it has run, quick runs aside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from benchmarks.rows import Row

PARTS = (
    *("small_tables", "iterations", "convergence", "hierarchies", "mixing", "itakura_saito_mixing"),
    *("itakura_saito", "kernels", "precision", "threads", "hmm", "particle_filter", "report"),
)
KEPT = Path(__file__).parents[1] / "build" / "benchmarks"
COLUMNS = ("row", "measured", "target", "met?")


class Found(NamedTuple):
    """The rows of a part, the day, and the load average of the machine at the end."""

    part: str
    rows: list[Row]
    day: str
    load: float


def keep(part: str, rows: list[Row]) -> Found:
    """Write what a part found, and return it."""
    found = Found(part, rows, str(date.today()), round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0)
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{part}.json").write_text(json.dumps(found._asdict(), indent=1), encoding="utf-8")
    return found


def kept(part: str) -> Found | None:
    """What a part found last; None where it has not run."""
    path = KEPT / f"{part}.json"
    return Found(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def lines(found: Iterable[Found]) -> Iterator[str]:
    """The table, and when its parts were measured, beside what load, below it."""
    whole = list(found)
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for row in (row for one in whole for row in one.rows if row["must reach"] or row["met?"]):
        beside = " beside ".join(filter(None, (row["ours"], row["peer"])))
        yield f"| {row['work']} | {beside}: {row['ratio']} | {row['must reach']} | {row['met?']} |"
    yield ""
    yield f"Measured: {', '.join(f'{one.part} {one.day} (load average {one.load:g})' for one in whole)}."

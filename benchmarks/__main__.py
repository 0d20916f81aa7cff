"""Print the benchmark table: ``python -m benchmarks [--quick] [--kept] [--write docs/benchmarks.md] [part ...]``.

Without parts, those of the standard table; the others, which take long, run by name. ``--write`` puts what all parts
of the standard table found last into a page, and ``--kept`` does not run again what has run before.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import found
from benchmarks.rows import COLUMNS, Row, note

STANDARD = (
    "threads",
    "hmm",
    "particle_filter",
    "kernels",
    "iterations",
    "precision",
    "memory",
    "start",
    "small_tables",
    "convergence",
    "hierarchies",
    "refit",
    "mixing",
    "itakura_saito",
    "itakura_saito_vb",
    "itakura_saito_mixing",
    "particle_gibbs",
    "composite",
    "report",
    "marginal",
    "mcem",
    "evidence",
    "rank",
    "streaming",
    "online_frames",
    "audio",
    "look_ahead",
    "particle_online",
)
BY_NAME = (
    "clusters",
    "compiling",
    "errors_of_measurement",
    "large_table",
    "minibatches",
    "over_blocks",
    "overdispersed_rank",
    "overdispersion",
    "posterior",
    "processes",
    "relevance",
    "same_bits",
    "scaling",
    "search",
    "shrinkage",
    "smooth_activations",
    "trajectories",
)
PACKAGES = (
    "nmf_zoo",
    "numba",
    "numpy",
    "scipy",
    "pymc",
    "arviz",
    "scikit-learn",
    "nutpie",
    "gensim",
    "hpfrec",
    "hmmlearn",
    "particles",
    "statsmodels",
)
BEGIN, BEGIN_OTHERS = "<!-- rows with a target: make bench -->", "<!-- rows without a target: make bench -->"
END = "<!-- end -->"


def main() -> None:
    """Run the parts asked for, print the table as it grows, and write it into a page if asked to."""
    arguments = parse()
    warnings.simplefilter("ignore")  # notes on empty rows and short runs would break into the table
    parts = arguments.parts or [*STANDARD]
    if arguments.kept:
        parts = [part for part in parts if found.kept(part) is None]
    for line in table(parts, arguments.quick):
        print(line, flush=True)
    if arguments.write:
        write_standard(arguments.write)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [*STANDARD, *BY_NAME]
    parser.add_argument(
        "parts",
        nargs="*",
        choices=[[], *names],
        metavar="part",
        help=f"default: {', '.join(STANDARD)}; by name: {', '.join(BY_NAME)}",
    )
    parser.add_argument("--kept", action="store_true", help="leave out parts that have run before")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast it is")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help=f"put the standard table between {BEGIN}, {BEGIN_OTHERS} and {END} of a page",
    )
    return parser.parse_args()


def table(parts: Sequence[str], quick: bool) -> Iterator[str]:
    """What it is measured on and the rows of the parts, as they come, then how long each took."""
    command = " ".join(["python -m benchmarks", *(["--quick"] if quick else []), *(parts if len(parts) < 5 else [])])
    yield from machine(command)
    if quick:
        yield "Quick: small sizes and few repeats, so these figures say nothing."
    yield ""
    yield from found.table_of([])
    through = []
    for part in parts:
        rows, began = [], time.perf_counter()
        for row in rows_of(part, quick):
            rows.append(row)
            yield found.line_of(row)
        through.append(found.found_now(part, rows, time.perf_counter() - began))
        if not quick:
            found.keep(through[-1])
    yield ""
    yield found.when(through)


def rows_of(part: str, quick: bool) -> Iterator[Row]:
    """The rows of a part; a failure is a row, too, and does not cost the others."""
    try:
        yield from import_module(f"benchmarks.{part}").rows(quick)
    except Exception as error:
        failed = note(part, f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        yield failed | {"met?": "**failed**"}


def machine(command: str) -> Iterator[str]:
    """What the figures belong to."""
    load = f", load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    yield f"`{command}`, {date.today()}, {processor()}, {os.cpu_count()} cores{load}."
    yield f"Python {platform.python_version()}, {', '.join(f'{name} {installed(name)}' for name in PACKAGES)}."


def processor() -> str:
    """The processor's name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def write_standard(page: Path) -> None:
    """Put what all parts of the standard table found last into a page."""
    whole = [kept for part in STANDARD if (kept := found.kept(part)) is not None]
    rows = [row for one in whole for row in one.rows]
    judged = [*machine("make bench"), "", *found.table_of(filter(found.has_target, rows)), "", found.when(whole)]
    others = found.table_of((row for row in rows if not found.has_target(row)), COLUMNS[:4])
    write(page, "\n".join(judged), BEGIN)
    write(page, "\n".join(others), BEGIN_OTHERS)


def write(page: Path, text: str, begin: str) -> None:
    """Replace what stands between the markers of the page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{page}: got a page without {begin} ... {END}; expected both markers; add them")
    page.write_text(f"{before}{begin}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

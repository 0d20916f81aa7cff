"""Print the benchmark table: ``python -m benchmarks [--quick] [--write docs/benchmarks.md] [part ...]``.

``python -m benchmarks targets [part ...]`` prints the table of targets instead; with ``--kept`` parts that have run
before are not run again.
"""

from __future__ import annotations

import argparse
import os
import platform
import warnings
from collections.abc import Iterator
from datetime import date
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from benchmarks import targets
from benchmarks.rows import COLUMNS, Row, note

PARTS = (
    "kernels",
    "iterations",
    "convergence",
    "small_tables",
    "hierarchies",
    "refit",
    "shrinkage",
    "relevance",
    "overdispersion",
    "overdispersed_rank",
    "smooth_activations",
    "search",
    "posterior",
    "mixing",
    "itakura_saito_mixing",
    "mcem",
    "trajectories",
    "itakura_saito",
    "itakura_saito_vb",
    "composite",
    "threads",
    "scaling",
    "precision",
    "memory",
    "report",
    "start",
    "compiling",
    "rank",
    "streaming",
    "minibatches",
    "clusters",
    "online_frames",
    "audio",
    "marginal",
    "evidence",
    "hmm",
    "particle_filter",
    "look_ahead",
    "particle_online",
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
    "hpfrec",
    "hmmlearn",
    "particles",
)
BEGIN, END = "<!-- benchmarks: make bench -->", "<!-- end -->"
TARGETS, BEGIN_TARGETS = "targets", "<!-- targets: python -m benchmarks targets -->"


def main() -> None:
    """Run the parts asked for, print the table as it grows, and write it into a page if asked to."""
    arguments = parse()
    warnings.simplefilter("ignore")  # notes on empty rows and short runs would break into the table
    lines, of_targets = [], TARGETS in arguments.parts
    parts = [part for part in arguments.parts if part != TARGETS]
    if of_targets:
        found = table_of_targets(parts or [*targets.PARTS], arguments.quick, arguments.kept)
    else:
        found = table(parts or [part for part in PARTS if is_there(part)], arguments.quick)
    for line in found:
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        write(arguments.write, "\n".join(lines), BEGIN_TARGETS if of_targets else BEGIN)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [*PARTS, TARGETS]
    parser.add_argument(
        "parts", nargs="*", choices=[[], *names], metavar="part", help=f"{', '.join(names)}; default all parts"
    )
    parser.add_argument("--kept", action="store_true", help="of the targets: take what parts found before")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast it is")
    places = f"{BEGIN} (of targets: {BEGIN_TARGETS}) and {END}"
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"put the table between {places} of a page")
    return parser.parse_args()


def is_there(part: str) -> bool:
    return find_spec(f"benchmarks.{part}") is not None


def table(parts: list[str], quick: bool) -> Iterator[str]:
    """The lines of the table, and what it was measured on before them."""
    yield from machine(parts, quick)
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for part in parts:
        for row in rows_of(part, quick):
            yield "| " + " | ".join(row.get(column, "") for column in COLUMNS) + " |"


def table_of_targets(parts: list[str], quick: bool, with_kept: bool) -> Iterator[str]:
    """The lines of the table of targets: parts run now, but with ``with_kept`` for those that have run before."""
    yield from machine([TARGETS], quick)
    found = [(targets.kept(part) if with_kept else None) or run(part, quick) for part in parts]
    yield from targets.lines(found)


def run(part: str, quick: bool) -> targets.Found:
    """All rows of a part."""
    rows = list(rows_of(part, quick))
    return targets.Found(part, rows, str(date.today()), 0.0) if quick else targets.kept(part)


def rows_of(part: str, quick: bool) -> Iterator[Row]:
    """The rows of a part, kept when it is through; a failure is a row, too, and does not cost the others."""
    found = []
    try:
        for row in import_module(f"benchmarks.{part}").rows(quick):
            found.append(row)
            yield row
    except Exception as error:
        failed = note(part, f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        found.append(failed | {"met?": "**failed**"})
        yield found[-1]
    if not quick:
        targets.keep(part, found)


def machine(parts: list[str], quick: bool) -> Iterator[str]:
    """What the figures belong to."""
    command = " ".join(["python -m benchmarks", *(["--quick"] if quick else []), *(parts if len(parts) < 5 else [])])
    load = f", load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    yield f"`{command}`, {date.today()}, {processor()}, {os.cpu_count()} cores{load}."
    yield f"Python {platform.python_version()}, {', '.join(f'{name} {installed(name)}' for name in PACKAGES)}."
    if quick:
        yield "Quick: small sizes and few repeats, so these figures say nothing."
    yield ""


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


def write(page: Path, text: str, begin: str = BEGIN) -> None:
    """Replace what stands between the markers of the page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{page}: got a page without {begin} ... {END}; expected both markers; add them")
    page.write_text(f"{before}{begin}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

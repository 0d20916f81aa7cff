"""Print the benchmark table: ``python -m benchmarks [--quick] [--write docs/benchmarks.md] [part ...]``."""

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

from benchmarks.rows import COLUMNS, note

PARTS = (
    "kernels",
    "iterations",
    "convergence",
    "hierarchies",
    "refit",
    "shrinkage",
    "relevance",
    "overdispersion",
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
    "precision",
    "memory",
    "start",
    "compiling",
    "rank",
    "streaming",
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


def main() -> None:
    """Run the parts asked for, print the table as it grows, and write it into a page if asked to."""
    arguments = parse()
    warnings.simplefilter("ignore")  # notes on empty rows and short runs would break into the table
    lines = []
    for line in table(arguments.parts or [part for part in PARTS if is_there(part)], arguments.quick):
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        write(arguments.write, "\n".join(lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], metavar="part", help=f"{', '.join(PARTS)}; default all"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast it is")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"put the table between {BEGIN} and {END} of a page")
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


def rows_of(part: str, quick: bool) -> Iterator[dict[str, str]]:
    """The rows of a part; a failure is a row, too, and does not cost the others."""
    try:
        yield from import_module(f"benchmarks.{part}").rows(quick)
    except Exception as error:
        yield note(part, f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")


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


def write(page: Path, text: str) -> None:
    """Replace what stands between the markers of the page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{page}: got a page without {BEGIN} ... {END}; expected both markers; add them")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

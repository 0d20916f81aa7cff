"""``nmf-zoo compare``: several engines on one model, as a table and a picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

from nmf_zoo.cli import catalogue
from nmf_zoo.cli.declare import declare
from nmf_zoo.cli.output import PICTURES, Formats, check_output, complete_or_absent
from nmf_zoo.cli.values import parse_seed
from nmf_zoo.errors import InputError

TABLES: Formats = {".csv": ((), "")}
LENGTHS = ("draws", "tune", "chains", "max_iter", "cores")
COLUMNS = {  # of the printed table: heading, width and format
    "seconds": ("seconds", 10, ".2f"),
    "ess_bulk_per_second": ("ESS bulk/s", 12, ".4g"),
    "ess_tail_per_second": ("ESS tail/s", 12, ".4g"),
    "ess_aligned": ("ESS aligned", 13, ".0f"),
    "rhat": ("R-hat", 8, ".3f"),
    "rhat_aligned": ("aligned", 9, ".3f"),
    "distance": ("distance", 10, ".3f"),
    "agrees": ("agrees", 8, ""),
}


def run_compare(arguments: argparse.Namespace) -> int:
    outputs = arguments.output or []
    for path in outputs:
        check_output(path, {**TABLES, **PICTURES}, arguments.force)
    names = parse_engines("--engines", arguments.engines)
    seed = None if arguments.random_seed is None else parse_seed("--random-seed", arguments.random_seed)
    given = {name: getattr(arguments, name) for name in LENGTHS if getattr(arguments, name) is not None}
    model = declare(arguments, arguments.rank)

    import nmf_zoo as nz

    found = nz.compare_engines(
        model, names, reference=arguments.reference, random_seed=seed, progressbar=not arguments.quiet, **given
    )
    for path in outputs:
        with complete_or_absent(path) as partial:
            _write(found, partial)
    print("\n".join(table_lines(found)))
    if outputs and not arguments.quiet:
        print(f"wrote {', '.join(map(str, outputs))}")
    return 0


def parse_engines(flag: str, text: str) -> list[str]:
    """``gibbs,vb,nuts``"""
    names = [name for name in text.split(",") if name]
    wrong = [name for name in names if name not in catalogue.engines()]
    if wrong or not names:
        allowed = f"engines separated by commas: {', '.join(catalogue.engines())}"
        raise InputError(flag, repr(wrong[0] if wrong else text), allowed)
    return names


def _write(found: Any, path: Path) -> None:
    if path.suffix == ".csv":
        found.table.to_csv(path)
        return
    from nmf_zoo.plots import plot_comparison

    plot_comparison(found).savefig(path, dpi=150)


def table_lines(found: Any) -> Iterator[str]:
    """One line per engine."""
    shown = {name: how for name, how in COLUMNS.items() if name in found.table}
    yield f"{'':16}" + "".join(f"{heading:>{width}}" for heading, width, _ in shown.values())
    for engine, row in found.table.iterrows():
        yield f"{engine:16}" + "".join(f"{_cell(row[name], form):>{width}}" for name, (_, width, form) in shown.items())
    yield f"distance: of posterior means of W H from those of {found.reference}, the largest, in posterior sd"


def _cell(value: Any, form: str) -> str:
    if value is None or (isinstance(value, float) and isnan(value)):
        return "-"
    return format(value, form) if form else ("yes" if value else "no")

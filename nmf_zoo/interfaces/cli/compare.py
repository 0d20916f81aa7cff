"""``nmf-zoo compare``: several engines on one model, as a table and a picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from math import isnan
from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError, did_you_mean
from nmf_zoo.files import replacing, write_figure
from nmf_zoo.interfaces.cli import catalogue
from nmf_zoo.interfaces.cli.fit import declare, make_options
from nmf_zoo.interfaces.cli.output import PICTURES, Formats, check_output
from nmf_zoo.interfaces.cli.values import parse_seed, parse_value, parse_yes_no

TABLES: Formats = {".csv": ((), "")}
LENGTHS = ("draws", "tune", "chains", "max_iter", "cores")
COLUMNS = {  # of the printed table: heading, width and format
    "seconds": ("seconds", 10, ".2f"),
    "compiling": ("compiling", 11, ".2f"),
    "ess_bulk_per_second": ("ESS bulk/s", 12, ".4g"),
    "ess_tail_per_second": ("ESS tail/s", 12, ".4g"),
    "ess_aligned": ("ESS aligned", 13, ".0f"),
    "rhat": ("R-hat", 8, ".3f"),
    "rhat_aligned": ("aligned", 9, ".3f"),
    "distance": ("distance", 10, ".3f"),
    "spread": ("spread", 8, ".2f"),
    "agrees": ("agrees", 8, ""),
}


def run_compare(arguments: argparse.Namespace) -> int:
    outputs = arguments.output or []
    for path in outputs:
        check_output(path, {**TABLES, **PICTURES}, arguments.force)
    given_engines = parse_engines("--engines", arguments.engines)
    seed = None if arguments.random_seed is None else parse_seed("--random-seed", arguments.random_seed)
    given = {name: getattr(arguments, name) for name in LENGTHS if getattr(arguments, name) is not None}
    model = declare(arguments, arguments.rank)

    import nmf_zoo as nz

    engines = {text: _engine(name, options) for text, (name, options) in given_engines.items()}
    found = nz.compare_engines(
        model,
        list(engines.values()),
        reference=_label(arguments.reference, engines),
        random_seed=seed,
        progressbar=not arguments.quiet,
        **given,
    )
    for path in outputs:
        with replacing(path, "output") as partial:
            _write(found, partial)
    print("\n".join(table_lines(found)))
    if outputs and not arguments.quiet:
        print(f"wrote {', '.join(map(str, outputs))}")
    return 0


def parse_engines(flag: str, text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """``gibbs,gibbs:moves=scale,shear,nuts:target_accept=0.9`` as what was written -> (name, options).

    A part that names no engine belongs to the one before it: another option, or more of a value.
    """
    allowed = catalogue.engines()
    written: list[str] = []
    for part in text.split(","):
        if part.partition(":")[0] in allowed or (part and not written):
            written.append(part)
        elif part:
            written[-1] += f",{part}"
    if not written or len(set(written)) < len(written):
        raise InputError(flag, repr(text), "engines separated by commas, each once")
    return {own: _parse_engine(flag, own) for own in written}


def _parse_engine(flag: str, text: str) -> tuple[str, dict[str, Any]]:
    """The name of one engine, and its options."""
    name, colon, rest = text.partition(":")
    if name not in catalogue.engines() or (not colon and "," in text):
        wrong = name.partition(",")[2] or name  # what follows an engine without options is meant to be another one
        allowed = f"engines separated by commas: {', '.join(catalogue.engines())}"
        do = did_you_mean(wrong, catalogue.engines()) or "options follow a colon, e.g. gibbs:moves=scale"
        raise InputError(flag, repr(wrong), allowed, do)
    options = catalogue.engines()[name].arguments
    values: dict[str, str] = {}
    for part in rest.split(",") if rest else []:
        option, equals, value = part.partition("=")
        if equals and option.replace("-", "_") in options and option not in values:
            last = option.replace("-", "_")
            values[last] = value
        elif not equals and values:
            values[last] += f",{part}"
        else:
            expected = f"options of {name}, each once: {', '.join(options) or 'it has none'}"
            raise InputError(flag, repr(text), expected, "" if option in values else did_you_mean(option, options))
    return name, {option: _parse_option(options[option], value) for option, value in values.items()}


def _parse_option(argument: Any, text: str) -> Any:
    return parse_yes_no(argument.flag, text) if argument.annotation == "bool" else parse_value(argument, text)


def _engine(name: str, options: Mapping[str, Any]) -> Any:
    """What ``nz.compare_engines`` takes: the name, or the options where some are given."""
    from nmf_zoo.inference.registry import named

    return make_options(named(name)[0].options, options) if options else name


def _label(reference: str | None, engines: Mapping[str, Any]) -> str | None:
    """How the table calls the reference: it may be given as it was written in ``--engines``."""
    from nmf_zoo.workbench.compare_engines import label_of

    return label_of(engines[reference]) if reference is not None and reference in engines else reference


def _write(found: Any, path: Path) -> None:
    if path.suffix == ".csv":
        found.table.to_csv(path)
        return
    from nmf_zoo.plots import plot_comparison

    write_figure(plot_comparison(found), path)


def table_lines(found: Any) -> Iterator[str]:
    """One line per engine."""
    shown = {name: how for name, how in COLUMNS.items() if name in found.table}
    first = max(16, *(len(engine) + 2 for engine in found.table.index))
    yield f"{'':{first}}" + "".join(f"{heading:>{width}}" for heading, width, _ in shown.values())
    for engine, row in found.table.iterrows():
        cells = (f"{_cell(row[name], form):>{width}}" for name, (_, width, form) in shown.items())
        yield f"{engine:{first}}" + "".join(cells)
    yield f"distance, spread: means of W H less those of {found.reference}, in sd; sd over its sd; the worst cell"


def _cell(value: Any, form: str) -> str:
    if value is None or (isinstance(value, float) and isnan(value)):
        return "-"
    return format(value, form) if form else ("yes" if value else "no")

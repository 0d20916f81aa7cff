"""``nmf-zoo models`` and ``nmf-zoo engines``: what there is, from the registries."""

from __future__ import annotations

import argparse

from nmf_zoo.cli import catalogue
from nmf_zoo.cli.parser import NOT_HYPERPARAMETERS

TOY = [[3, 0, 5, 1, 2], [1, 4, 0, 2, 6]]  # more samples than features, so that a flat W has a proper posterior


def run_models(arguments: argparse.Namespace) -> int:
    for name, entry in catalogue.models().items():
        own = [argument for argument in entry.arguments.values() if argument.name not in NOT_HYPERPARAMETERS]
        print(f"{name:13}{entry.summary.replace('``', '')}")
        print(f"{'':13}{' '.join(argument.flag for argument in own) or 'no hyperparameters'}")
    return 0


def run_engines(arguments: argparse.Namespace) -> int:
    print(engine_table(arguments.markdown))
    return 0


def engine_table(markdown: bool = False) -> str:
    """Model x engine, by the engines' verdicts on a small complete matrix of counts; the reasons stand below."""
    from nmf_zoo.engines import VERBS, verdict
    from nmf_zoo.models import MODELS
    from nmf_zoo.reading import read

    reasons: list[str] = []
    rows = [["model", *(f"{name} ({verb})" for name, verb in VERBS.items())]]
    for name, builder in MODELS.items():
        structure = read(builder(TOY, rank=1))
        rows.append([name, *(_mark(verdict(structure, engine).reason, reasons) for engine in VERBS)])
    table = _as_markdown(rows) if markdown else _as_text(rows)
    return "\n".join([*table, "", *(f"{number}. no: {reason}" for number, reason in enumerate(reasons, start=1))])


def _mark(reason: str, reasons: list[str]) -> str:
    if not reason:
        return "yes"
    if reason not in reasons:
        reasons.append(reason)
    return f"no ({reasons.index(reason) + 1})"


def _as_text(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    return ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _as_markdown(rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]

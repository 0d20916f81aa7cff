"""Delimited text. What is a header and what is a label is decided by these rules, and never guessed when mixed:

- number: in plain decimal notation, such as ``12``, ``-0.5`` or ``1.2e3``. Other notations (``0x10``, ``1+2j``,
  ``1_000``, ``1,5``, ``1 000``, ``1d5``, ``inf``, digits beyond ASCII) are neither numbers nor text: an error.
- separator: the extension's (comma for .csv, tab for .tsv and .txt); if one of the first two lines has none of it, the
  one of comma, tab and semicolon that both have, or else the first of these that the first line has.
- header: the first line, when its first cell is blank, or none of its cells is a number, or it is one cell shorter than
  the second line and that begins with a label, or has no numbers itself. A first line of numbers is data, also with one
  label in front. Some numbers and some not are an error.
- row labels: the first column, when the header's first cell is blank, or the header is one cell shorter, or the first
  cell below the header is text; if that alone decides, and half of the column or more are numbers, that is an error.
- missing cells: blank (not in the very first cell), NA, N/A, NaN, null or None. Anything else that is not a number is
  an error with its line and column.
- labels may be any text without control characters but tabs and line breaks.
"""

from __future__ import annotations

import csv
import gzip
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np

from nmf_zoo.errors import InputError, number_of
from nmf_zoo.interfaces.tables.arrays import Matrix

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
MISSING = {"", "na", "n/a", "nan", "-nan", "null", "none"}
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
PLAIN = re.compile(r"[0-9+\-.eE \t,]*")  # nothing but numbers, if float takes them
GROUPED = re.compile(r"[\s,'’_]")  # what separates thousands
DECIMAL = r"[+-]?(\d+\.?\d*|\.\d+)([ed][+-]?\d+)?"
FOREIGN = re.compile(
    rf"{DECIMAL}|\(?({DECIMAL})[+-]{DECIMAL}[ij]\)?|[+-]?(0x[0-9a-f]+|0o[0-7]+|0b[01]+|inf|infinity)", re.IGNORECASE
)
A_NUMBER, MISSED, ALMOST, TEXT = "a number", "missing", "a number in another notation", "text"
HINT = "say what it is with --header yes|no, --row-labels yes|no"
IN_PLACE = "text may stand in one header line and in the first column only"
POINT = (
    "write plain decimal numbers, with a point and without separators of thousands; pandas.read_csv(..., decimal=',') "
    "reads decimal commas"
)
Line = tuple[int, list[str]]


def open_text(path: Path) -> TextIO:
    """UTF-8 text, through gzip when the name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def read_text(path: Path, suffix: str, header: bool | None = None, row_labels: bool | None = None) -> Matrix:
    """Read a delimited table; None decides by the rules above."""
    with open_text(path) as file:
        lines = _lines(path, file, SEPARATORS[suffix])
        first, second = next(lines, None), next(lines, None)
        if first is None:
            raise InputError(str(path), "a file without a line", "a table of numbers")
        if header is None:
            header = _is_header(path, first, second)
        top = second if header else first
        if top is None:
            raise InputError(str(path), "a header and nothing below it", "a table of numbers")
        is_guess = row_labels is None
        if row_labels is None:
            row_labels, is_guess = _has_row_labels(first if header else None, top)
        rest = lines if header or second is None else chain([second], lines)
        places, labels, rows = _read_body(path, chain([top], rest), len(top[1]), row_labels)
    names = _column_names(path, first, len(top[1]), row_labels) if header else None
    if row_labels and is_guess:
        _refuse_numbers(path, places, labels)
    return Matrix(np.array(rows), labels if row_labels else None, names)


def _lines(path: Path, file: TextIO, separator: str) -> Iterator[Line]:
    """(line number, cells) of the lines that aren't empty."""
    head, below = file.readline(), file.readline()
    if separator not in head or (below and separator not in below):
        others = [other for other in ",\t;" if other in head]
        separator = next((other for other in others if other in below), others[0] if others else separator)
    file.seek(0)
    reader = csv.reader(file, delimiter=separator, strict=True)
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield reader.line_num, cells
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise InputError(where, f"quotes or a cell that can't be read ({error})", "every quote closed") from error


def kind_of(cell: str) -> str:
    """What a cell is: a number, missing, a number in another notation, or text."""
    cell = cell.strip()
    if NUMBER.fullmatch(cell):
        return A_NUMBER
    if cell.lower() in MISSING:
        return MISSED
    plain = unicodedata.normalize("NFKC", GROUPED.sub("", cell)).replace("\N{MINUS SIGN}", "-")
    return ALMOST if FOREIGN.fullmatch(plain) else TEXT


def _is_header(path: Path, first: Line, second: Line | None) -> bool:
    line, cells = first
    if not cells[0].strip():
        return True
    kinds = [kind_of(cell) for cell in cells]
    names_only = not {A_NUMBER, ALMOST} & set(kinds)
    if second is not None and len(second[1]) == len(cells) + 1:
        if names_only or kind_of(second[1][0]) == TEXT:
            return True
        got = f"{number_of(len(cells), 'cell')} with numbers among them above {len(cells) + 1}"
        raise InputError(f"{path}, line {line}", got, "as many cells as below, or a header line without numbers", HINT)
    skipped = 1 if len(cells) > 1 else 0
    numbers = [kind in (A_NUMBER, MISSED) for kind in kinds[skipped:]]
    if all(numbers):
        return False
    if names_only and not any(numbers):
        return True
    column = kinds.index(ALMOST) if ALMOST in kinds else skipped + numbers.index(False)
    where = f"{path}, line {line}, column {column + 1}"
    raise InputError(where, repr(cells[column]), "a number, or a header line without numbers", HINT)


def _has_row_labels(header: Line | None, top: Line) -> tuple[bool, bool]:
    """Whether there are row labels, and whether only the first of them says so."""
    is_text = kind_of(top[1][0]) in (ALMOST, TEXT)
    if header is not None and not header[1][0].strip():
        return True, False
    if header is not None and len(header[1]) == len(top[1]) - 1:
        return True, is_text and any(kind_of(cell) in (A_NUMBER, ALMOST) for cell in header[1])
    return len(top[1]) > 1 and is_text, True


def _read_body(
    path: Path, lines: Iterator[Line], width: int, labelled: bool
) -> tuple[list[int], list[str], list[np.ndarray]]:
    """Line numbers, first cells, and numbers of the lines."""
    if width == labelled:
        raise InputError(str(path), "row labels and nothing beside them", "a table of numbers", HINT)
    places, labels, rows = [], [], []
    for line, cells in lines:
        if len(cells) != width:
            raise InputError(f"{path}, line {line}", number_of(len(cells), "cell"), f"{width}, as in the lines above")
        places.append(line)
        labels.append(cells[0].strip())
        rows.append(_numbers(path, line, cells, int(labelled)))
    return places, labels, rows


def _numbers(path: Path, line: int, cells: list[str], skipped: int) -> np.ndarray:
    values = cells[skipped:]
    if PLAIN.fullmatch(",".join(values)):
        with suppress(ValueError):
            row = np.array([*map(float, values)])
            if np.isfinite(row).all():
                return row
    return np.array([_number(path, line, i, cells[i]) for i in range(skipped, len(cells))])


def _number(path: Path, line: int, column: int, cell: str) -> float:
    kind, where = kind_of(cell), f"{path}, line {line}, column {column + 1}"
    if kind == MISSED:
        return np.nan
    if kind != A_NUMBER:
        hint = HINT if column == 0 else POINT if kind == ALMOST else IN_PLACE
        raise InputError(where, repr(cell), "a number, or nothing for a missing cell", hint)
    number = float(cell)
    if not np.isfinite(number):
        raise InputError(where, repr(cell), f"a number up to {np.finfo(np.float64).max:.1e}")
    return number


def _refuse_numbers(path: Path, places: list[int], labels: list[str]) -> None:
    """Refuse a column of numbers that its first cell made labels."""
    kinds = [kind_of(label) for label in labels]
    if kinds[0] == ALMOST or 2 * sum(kind in (A_NUMBER, ALMOST) for kind in kinds) >= len(kinds):
        bad = next(place for place, kind in enumerate(kinds) if kind not in (A_NUMBER, MISSED))
        where = f"{path}, line {places[bad]}, column 1"
        raise InputError(where, repr(labels[bad]), "a number, as in other cells of its column, or labels", HINT)


def _column_names(path: Path, header: Line, width: int, labelled: bool) -> list[str]:
    line, cells = header
    names = [cell.strip() for cell in cells]
    n_columns = width - labelled
    if len(names) not in (n_columns, width):
        raise InputError(
            f"{path}, line {line}", f"a header of {number_of(len(names), 'cell')}", f"{width}, as in the lines below"
        )
    return names[-n_columns:]

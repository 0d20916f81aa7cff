"""Delimited text. What is a header and what is a label is decided by these rules, and never guessed when mixed:

- separator: the extension's (comma for .csv, tab for .tsv and .txt); if one of the first two lines has none of it, the
  one of comma, tab and semicolon that both have, or else the first of these that the first line has.
- header: the first line, when its first cell is blank, or it is one cell shorter than the second line, or none of its
  cells after the first is a number. A first line of numbers is data. Some numbers and some not are an error.
- row labels: the first column, when the header's first cell is blank, or the header is one cell shorter, or the first
  cell below the header is not a number.
- missing cells: blank (not in the very first cell), NA, N/A, NaN, null or None. Anything else that is not a number is
  an error with its line and column.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.tables.matrix import Matrix

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
MISSING = {"", "na", "n/a", "nan", "null", "none"}
HINT = "say what it is with --header yes|no, --row-labels yes|no"
TEXT = "text may stand in one header line and in the first column only"
POINT = (
    "write numbers with a decimal point, and without separators of thousands; pandas.read_csv(..., decimal=',') reads "
    "decimal commas"
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
        lines = _lines(file, SEPARATORS[suffix])
        first, second = next(lines, None), next(lines, None)
        if first is None:
            raise InputError(str(path), "a file without a line", "a table of numbers")
        if header is None:
            header = _is_header(path, first, second)
        top = second if header else first
        if top is None:
            raise InputError(str(path), "a header and nothing below it", "a table of numbers")
        if row_labels is None:
            row_labels = _has_row_labels(first if header else None, top)
        rest = lines if header or second is None else chain([second], lines)
        labels, rows = _read_body(path, chain([top], rest), len(top[1]), row_labels)
    names = _column_names(path, first, len(top[1]), row_labels) if header else None
    return Matrix(np.array(rows), labels if row_labels else None, names)


def _lines(file: TextIO, separator: str) -> Iterator[Line]:
    """(line number, cells) of the lines that aren't empty."""
    head, below = file.readline(), file.readline()
    if separator not in head or (below and separator not in below):
        others = [other for other in ",\t;" if other in head]
        separator = next((other for other in others if other in below), others[0] if others else separator)
    file.seek(0)
    reader = csv.reader(file, delimiter=separator)
    for cells in reader:
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield reader.line_num, cells


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in MISSING
    return True


def _is_header(path: Path, first: Line, second: Line | None) -> bool:
    line, cells = first
    is_shorter = second is not None and len(second[1]) == len(cells) + 1
    if is_shorter or not cells[0].strip():
        return True
    skipped = 1 if len(cells) > 1 else 0
    are_numbers = [_is_number(cell) for cell in cells[skipped:]]
    if any(are_numbers) and not all(are_numbers):
        column = skipped + are_numbers.index(False)
        where = f"{path}, line {line}, column {column + 1}"
        raise InputError(where, repr(cells[column]), "a number, or a header line without numbers", HINT)
    return not any(are_numbers)


def _has_row_labels(header: Line | None, top: Line) -> bool:
    if header is not None and (not header[1][0].strip() or len(header[1]) == len(top[1]) - 1):
        return True
    return len(top[1]) > 1 and not _is_number(top[1][0])


def _read_body(path: Path, lines: Iterator[Line], width: int, labelled: bool) -> tuple[list[str], list[np.ndarray]]:
    if width == labelled:
        raise InputError(str(path), "row labels and nothing beside them", "a table of numbers", HINT)
    labels, rows = [], []
    for line, cells in lines:
        if len(cells) != width:
            raise InputError(f"{path}, line {line}", f"{len(cells)} cells", f"{width}, as in the lines above")
        labels.append(cells[0].strip())
        rows.append(_numbers(path, line, cells, int(labelled)))
    return labels, rows


def _numbers(path: Path, line: int, cells: list[str], skipped: int) -> np.ndarray:
    try:
        return np.array([*map(float, cells[skipped:])])
    except ValueError:
        return np.array([_number(path, line, i, cells[i]) for i in range(skipped, len(cells))])


def _number(path: Path, line: int, column: int, cell: str) -> float:
    if not _is_number(cell):
        where = f"{path}, line {line}, column {column + 1}"
        hint = HINT if column == 0 else POINT if _is_number(cell.replace(",", "").replace(" ", "")) else TEXT
        raise InputError(where, repr(cell), "a number, or nothing for a missing cell", hint)
    return np.nan if cell.strip().lower() in MISSING else float(cell)


def _column_names(path: Path, header: Line, width: int, labelled: bool) -> list[str]:
    line, cells = header
    names = [cell.strip() for cell in cells]
    n_columns = width - labelled
    if len(names) not in (n_columns, width):
        raise InputError(f"{path}, line {line}", f"a header of {len(names)} cells", f"{width}, as in the lines below")
    return names[-n_columns:]

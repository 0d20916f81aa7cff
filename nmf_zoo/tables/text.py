"""Delimited text. What is a header and what is a label is decided by these rules, and never guessed when mixed:

- separator: the extension's (comma for .csv, tab for .tsv and .txt); if the first line has none of it, the one of comma, tab
  and semicolon that it has.
- header: the first line, when none of its cells after the first is a number, or when its first cell is blank, or when
  it is one cell shorter than the second line. A first line of numbers is data. Anything in between is an error.
- row labels: the first column, when the header's first cell is blank, or the header is one cell shorter, or the first cell
  below the header is not a number.
- missing cells: blank, NA, N/A, NaN, null or None. Anything else that is not a number is an error with line and column.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.tables.matrix import Matrix

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
MISSING = {"", "na", "n/a", "nan", "null", "none"}
HINT = "say which it is with header= and row_labels= (--header, --row-labels: yes or no)"
Line = tuple[int, list[str]]


def open_text(path: Path) -> TextIO:
    """UTF-8 text, through gzip when the name ends in .gz."""
    opener = gzip.open if path.suffix == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without blank ones at its end: one label each."""
    with open_text(path) as file:
        return file.read().rstrip().splitlines()


def read_text(path: Path, suffix: str, header: bool | None = None, row_labels: bool | None = None) -> Matrix:
    """Read a delimited table; None decides by the rules above."""
    with open_text(path) as file:
        lines = _cells(file, SEPARATORS[suffix])
        first = next(lines, None)
        if first is None:
            raise InputError(str(path), "a file without a line", "a table of numbers")
        second = next(lines, None)
        has_header = _is_header(path, first, second) if header is None else header
        body = [line for line in (None if has_header else first, second) if line is not None]
        if not body:
            raise InputError(str(path), "a header and nothing below it", "a table of numbers")
        has_labels = _has_labels(first if has_header else None, body[0]) if row_labels is None else row_labels
        names, rows = [], []
        width = len(body[0][1])
        for number, cells in _chain(body, lines):
            if len(cells) != width:
                raise InputError(f"{path}, line {number}", f"{len(cells)} cells", f"{width}, as above")
            names.append(cells[0])
            rows.append(_numbers(path, number, cells, int(has_labels)))
    if width == has_labels:
        raise InputError(str(path), "row labels and nothing beside them", "a table of numbers", HINT)
    columns = _column_names(path, first[1], width, has_labels) if has_header else None
    return Matrix(np.array(rows), names if has_labels else None, columns).as_counts()


def _cells(file: TextIO, separator: str) -> Iterator[Line]:
    """(line number, cells) of the lines that are not blank."""
    head = file.readline()
    if separator not in head:
        separator = next((other for other in ",\t;" if other in head), separator)
    file.seek(0)
    reader = csv.reader(file, delimiter=separator)
    for cells in reader:
        if any(cells):
            yield reader.line_num, cells


def _chain(head: list[Line], tail: Iterator[Line]) -> Iterator[Line]:
    yield from head
    yield from tail


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in MISSING
    return True


def _is_header(path: Path, first: Line, second: Line | None) -> bool:
    number, cells = first
    if second is not None and len(second[1]) == len(cells) + 1:
        return True
    if len(cells) > 1 and not cells[0].strip() and second is not None:
        return not _is_number(second[1][0]) or not all(map(_is_number, cells)) or _is_blank_corner_of_names(cells)
    are_numbers = [_is_number(cell) for cell in (cells[1:] or cells)]
    if any(are_numbers) and not all(are_numbers):
        column = are_numbers.index(False) + 1 + (len(cells) > 1)
        where = f"{path}, line {number}, column {column}"
        raise InputError(where, repr(cells[column - 1]), "a number, or a header line without numbers", HINT)
    return not any(are_numbers)

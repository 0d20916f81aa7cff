"""Matrix Market files, read here: SciPy's parser reads beyond the end of a file whose last line is cut.

A banner (``%%MatrixMarket matrix coordinate real general``), comments (%), a line of sizes, and a line for each entry:
row, column and value, counted from 1 (``coordinate``), or the values column by column (``array``). Of a symmetric
matrix the lower triangle is there.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.sparse import from_parts

LAYOUTS = {"coordinate": 3, "array": 2}  # and how many numbers the line of sizes has
FIELDS = ("real", "double", "integer", "unsigned-integer", "pattern")
SYMMETRIES = ("general", "symmetric", "skew-symmetric")
LARGEST = 2.0**53  # whole numbers are exact up to there


def read_entries(path: Path) -> Any:
    """The matrix of a file: a SciPy COO array where it lists coordinates, else a dense array."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        content = file.read()
    head = re.match(rb"([^\n]*)\n(?:[ \t\r]*(?:%[^\n]*)?\n)*([^\n]*)\n?", content)
    banner, sizes = (line.decode("latin-1") for line in head.groups()) if head else ("", "")
    layout, field, symmetry = _read_banner(path, banner)
    where = f"{path}, line {content[: head.start(2) if head else 0].count(bytes([10])) + 1}"
    if not re.fullmatch(r"\d{1,18}( \d{1,18})*", " ".join(sizes.split())) or len(sizes.split()) != LAYOUTS[layout]:
        expected = "rows, columns and entries" if layout == "coordinate" else "rows and columns"
        raise InputError(where, repr(sizes[:60]), f"{expected}, as whole numbers")
    rows, columns, *entries = map(int, sizes.split())
    if symmetry != "general" and rows != columns:
        raise InputError(where, f"a {symmetry} matrix {rows} x {columns}", "as many rows as columns")
    body = _read_body(path, content[head.end() if head else 0 :])
    if layout == "array":
        return _fill(path, body, (rows, columns), symmetry)
    return _list(path, body, (rows, columns), entries[0], field, symmetry)


def _read_banner(path: Path, banner: str) -> tuple[str, str, str]:
    words = banner.lower().split()
    allowed = (("%%matrixmarket",), ("matrix",), tuple(LAYOUTS), FIELDS, SYMMETRIES)
    if len(words) != len(allowed) or any(word not in names for word, names in zip(words, allowed, strict=True)):
        got = f"a file that can't be read (its first line is {' '.join(banner.split())[:80]!r})"
        expected = "%%MatrixMarket matrix " + " ".join("|".join(names) for names in allowed[2:])
        raise InputError(f"{path}, line 1", got, expected)
    return words[2], words[3], words[4]


def _read_body(path: Path, text: bytes) -> np.ndarray:
    """The numbers of all lines, (lines, numbers of a line)."""
    import pandas as pd

    if b"\0" in text:
        raise InputError(str(path), "a NUL byte", "a text file")
    if not text.strip():
        return np.empty((0, 0))
    given = {"header": None, "dtype": np.float64, "keep_default_na": False, "quoting": csv.QUOTE_NONE}
    frame = pd.read_csv(io.BytesIO(text), sep=r"\s+", encoding="latin-1", float_precision="round_trip", **given)
    numbers = frame.to_numpy()
    if np.isnan(numbers).any():
        entry = int(np.argmax(np.isnan(numbers).any(axis=1)))
        raise InputError(f"{path}, entry {entry + 1}", "fewer numbers than in the first, or nan", "numbers")
    return numbers


def _fill(path: Path, body: np.ndarray, shape: tuple[int, int], symmetry: str) -> np.ndarray:
    n = shape[0]
    expected = {"general": n * shape[1], "symmetric": n * (n + 1) // 2, "skew-symmetric": n * (n - 1) // 2}[symmetry]
    if len(body) != expected or (expected and body.shape[1] != 1):
        raise InputError(
            str(path), f"{len(body):,} lines of {body.shape[1]} numbers", f"{expected:,} lines of one number"
        )
    if symmetry == "general":
        return body.reshape(shape[::-1]).T
    found = np.zeros(shape)
    columns, rows = np.triu_indices(n, int(symmetry != "symmetric"))  # the lower triangle, column by column
    found[columns, rows] = -body.ravel() if symmetry == "skew-symmetric" else body.ravel()
    found[rows, columns] = body.ravel()
    return found


def _list(path: Path, body: np.ndarray, shape: tuple[int, int], entries: int, field: str, symmetry: str) -> Any:
    width = 2 if field == "pattern" else 3
    if len(body) != entries or (entries and body.shape[1] != width):
        got = f"{len(body):,} lines of {body.shape[1]} numbers"
        raise InputError(str(path), got, f"{entries:,} lines of {width}, as the line of sizes says")
    body = body.reshape(entries, width)
    index = body[:, :2]
    is_bad = (index != np.floor(index)) | (index < 1) | (index > np.minimum(shape, LARGEST))
    if is_bad.any():
        entry, side = np.argwhere(is_bad)[0]
        got, expected = (
            f"the {('row', 'column')[side]} {index[entry, side]:g}",
            f"a whole number from 1 to {shape[side]}",
        )
        raise InputError(f"{path}, entry {entry + 1}", got, expected)
    row, col = index.T.astype(np.int64) - 1
    values = np.ones(entries) if field == "pattern" else body[:, 2]
    if symmetry != "general":
        mirrored = row != col
        sign = -1.0 if symmetry == "skew-symmetric" else 1.0
        row, col = np.concatenate([row, col[mirrored]]), np.concatenate([col, row[mirrored]])
        values = np.concatenate([values, sign * values[mirrored]])
    return from_parts(str(path), "coo", shape, {"data": values, "row": row, "col": col})

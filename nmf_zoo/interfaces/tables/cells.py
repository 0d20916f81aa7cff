"""Folders of single-cell counts as 10x writes them: a matrix of features by barcodes, and the names of both.

``matrix.mtx`` with ``features.tsv`` (identifier, name, kind of feature) or, of earlier versions, ``genes.tsv``
(identifier, name), and ``barcodes.tsv``; each may be packed (``.gz``).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nmf_zoo.errors import InputError, not_one_of, number_of
from nmf_zoo.interfaces.tables.arrays import Matrix, check_numbers
from nmf_zoo.interfaces.tables.market import read_entries
from nmf_zoo.interfaces.tables.text import open_text

MATRIX, FEATURES, BARCODES = ("matrix.mtx",), ("features.tsv", "genes.tsv"), ("barcodes.tsv",)


def read_folder(folder: Path, suffix: str, key: str | None = None) -> Matrix:
    """Counts of features in barcodes; ``key`` is the kind of features to take, where there are several.

    A feature is called by its name; names that several have are followed by the identifier.
    """
    values = check_numbers(str(folder), read_entries(_find(folder, MATRIX)))
    where = _find(folder, FEATURES)
    features = _read_lines(where, values.shape[0], "feature")
    barcodes = [line[0] for line in _read_lines(_find(folder, BARCODES), values.shape[1], "barcode")]
    names = [line[1] if len(line) > 1 and line[1] else line[0] for line in features]
    often = Counter(names)
    labels = [
        f"{name} ({line[0]})" if often[name] > 1 and line[0] != name else name
        for name, line in zip(names, features, strict=True)
    ]
    chosen = _choose(where, [line[2] if len(line) > 2 else "" for line in features], key)
    if len(chosen) < len(labels):
        values, labels = values[chosen], [labels[row] for row in chosen]
    return Matrix(values, labels, barcodes)


def _find(folder: Path, names: tuple[str, ...]) -> Path:
    """The first file of these names that is there, packed or not."""
    for path in (folder / f"{name}{packed}" for name in names for packed in ("", ".gz")):
        if path.is_file():
            return path
    expected = " or ".join(f"{name}[.gz]" for name in names)
    raise InputError(str(folder), f"a folder without {expected}", "a file, or a folder as 10x writes it")


def _read_lines(path: Path, number: int, what: str) -> list[list[str]]:
    with open_text(path) as file:
        lines = [line.rstrip("\r\n").split("\t") for line in file]
    if len(lines) != number:
        raise InputError(str(path), number_of(len(lines), "line"), f"{number:,}, one per {what} of the matrix")
    return lines


def _choose(path: Path, kinds: list[str], key: str | None) -> list[int]:
    """The rows of one kind of features; all where there is one."""
    known = list(dict.fromkeys(kinds))
    if key is None and len(known) > 1:
        raise InputError(str(path), f"features of {len(known)} kinds, {known}", "one kind", "choose with --key")
    if key is not None and key not in known:
        raise not_one_of("key", key, known)
    return [row for row, kind in enumerate(kinds) if key in (None, kind)]

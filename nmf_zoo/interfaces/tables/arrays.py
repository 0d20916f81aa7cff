"""Binary and sparse formats: NumPy, SciPy, Matrix Market, Parquet.

What a header promises is held against the bytes that are there before memory is asked for.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.interfaces.tables.market import read_entries
from nmf_zoo.labels import are_counted
from nmf_zoo.sparse import from_parts, read_sparse


@dataclass(frozen=True)
class Matrix:
    """A matrix and the labels that came with it.

    Attributes
    ----------
    values : (rows, columns) array, or a SciPy sparse array; NaN is a missing cell
    rows, columns : labels, or None
    exposure : (columns,) of the samples, or None
    observed : "stored" where cells that a sparse array does not list are missing; None where they are zeros
    background : as a declaration takes it, or None
    """

    values: Any
    rows: list[Any] | None = None
    columns: list[Any] | None = None
    exposure: np.ndarray | None = None
    observed: str | None = None
    background: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.values, np.ndarray)

    def transposed(self) -> Matrix:
        """Rows for columns."""
        return Matrix(self.values.T, self.columns, self.rows)


# -- arrays ----------------------------------------------------------------------------------------------------------


NPY_MAGIC = b"\x93NUMPY"
NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MOST_DEFLATED = 1032  # bytes that one byte of a deflated stream can become


def read_npy(path: Path, suffix: str) -> Matrix:
    with open(path, "rb") as file:
        return Matrix(check_numbers(str(path), _read_array(str(path), file, path.stat().st_size)))


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def _read_header(where: str, file: IO[bytes]) -> _Header:
    if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
        raise InputError(where, "a file of another kind", "a NumPy array written by numpy.save")
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version not in NPY_HEADERS:
        raise InputError(where, f"NumPy's format {version}", f"one of {', '.join(map(str, NPY_HEADERS))}")
    shape, _, dtype = NPY_HEADERS[version](file)
    return _Header(shape, dtype)


def _read_array(where: str, file: IO[bytes], size: int) -> np.ndarray:
    """The array in a file of ``size`` bytes, which are as many as its header promises."""
    shape, dtype = _read_header(where, file)
    if dtype.hasobject:
        raise InputError(where, "Python objects instead of numbers", "real numbers")
    promised, there = prod(shape) * dtype.itemsize, size - file.tell()
    if promised != there or any(side < 0 for side in shape):
        got = f"a header of an array {shape} of {dtype}, {promised:,} bytes, and {there:,} bytes behind it"
        raise InputError(where, f"a file that can't be read ({got})", "a complete file of its kind")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


class Archive:
    """The arrays of a NumPy archive by name; each is read when it is asked for."""

    def __init__(self, path: Path, file: IO[bytes]):
        self._path, self._zip = path, zipfile.ZipFile(file)
        arrays = [entry for entry in self._zip.infolist() if entry.filename.endswith(".npy")]
        self.entries = {entry.filename.removesuffix(".npy"): entry for entry in arrays}

    def header(self, name: str) -> _Header:
        with self._zip.open(self.entries[name]) as file:
            return _read_header(self._where(name), file)

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        if entry.file_size > MOST_DEFLATED * (entry.compress_size + 1):
            got = f"{entry.file_size:,} bytes in {entry.compress_size:,}"
            raise InputError(self._where(name), f"a file that can't be read ({got})", "a complete file of its kind")
        with self._zip.open(entry) as file:
            return _read_array(self._where(name), file, entry.file_size)

    def _where(self, name: str) -> str:
        return f"{self._path}, array {name!r}"


def read_npz(path: Path, suffix: str, key: str | None = None) -> Matrix:
    """A SciPy sparse matrix, else the archive's array ``key``, else its only 2-D array of numbers."""
    with open(path, "rb") as file:
        archive = Archive(path, file)
        if {"format", "data", "shape"} <= set(archive.entries):
            return Matrix(check_numbers(str(path), _read_sparse(path, archive)))
        return Matrix(check_numbers(f"{path}, array {key!r}" if key else str(path), _choose(path, archive, key)))


def _read_sparse(path: Path, archive: Archive) -> Any:
    """What ``scipy.sparse.save_npz`` wrote, its parts checked before SciPy sees them."""
    parts = {name: archive[name] for name in archive.entries}
    layout, shape = parts.pop("format").tolist(), parts.pop("shape")
    if "coords" in parts and len(parts["coords"]) == 2:
        parts["row"], parts["col"] = parts["coords"]
    name = layout.decode("ascii", "replace") if isinstance(layout, bytes) else str(layout)
    return from_parts(str(path), name, shape, parts)


def _choose(path: Path, archive: Archive, key: str | None) -> np.ndarray:
    names = list(archive.entries)
    if key is not None:
        if key not in names:
            raise not_one_of(f"{path}, array", key, names)
        return archive[key]
    headers = {name: archive.header(name) for name in names}
    found = [name for name, header in headers.items() if len(header.shape) == 2 and header.dtype.kind in "biuf"]
    if len(found) != 1:
        got = f"2-D arrays {found}" if found else f"arrays {names}, none of them a 2-D array of numbers"
        raise InputError(str(path), got, "one 2-D array", "choose with --key" if found else "")
    return archive[found[0]]


def read_mtx(path: Path, suffix: str) -> Matrix:
    return Matrix(check_numbers(str(path), read_entries(path)))


def read_parquet(path: Path, suffix: str) -> Matrix:
    """Numbers; the index, or a first column of text, holds the row labels."""
    if find_spec("pyarrow") is None:
        raise InputError(
            str(path), "a Parquet file without pyarrow installed", "pyarrow", "pip install 'nmf_zoo[parquet]'"
        )
    import pandas as pd

    frame = pd.read_parquet(path)
    rows = None if are_counted(frame.index) else [str(label) for label in frame.index]
    if rows is None and frame.shape[1] and not pd.api.types.is_numeric_dtype(frame.dtypes.iloc[0]):
        rows, frame = [str(label) for label in frame.iloc[:, 0]], frame.iloc[:, 1:]
    wrong = [place for place, dtype in enumerate(frame.dtypes) if not pd.api.types.is_numeric_dtype(dtype)]
    if wrong:
        got = f"type {frame.dtypes.iloc[wrong[0]]}"
        raise InputError(f"{path}, column {frame.columns[wrong[0]]!r}", got, "numbers")
    is_mixed = len(set(frame.dtypes)) > 1 or frame.isna().any(axis=None)
    values = frame.to_numpy(dtype=np.float64, na_value=np.nan) if is_mixed else frame.to_numpy()
    return Matrix(check_numbers(str(path), values), rows, [str(name) for name in frame.columns])


def check_numbers(where: str, values: Any) -> Any:
    """A 2-D array or sparse matrix of real numbers; the latter as CSC without duplicates."""
    if values.ndim != 2:
        raise InputError(where, f"an array of shape {values.shape}", "2 dimensions: features and samples")
    if values.dtype.kind not in "biuf":
        raise InputError(where, f"type {values.dtype}", "real numbers")
    if not isinstance(values, np.ndarray):
        return read_sparse(where, values, "csc")
    return values.astype(np.int8) if values.dtype.kind == "b" else values

"""Binary and sparse formats: NumPy, SciPy, Matrix Market, Parquet."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.tables.matrix import Matrix

NPY_MAGIC = b"\x93NUMPY"


def read_npy(path: Path, suffix: str) -> Matrix:
    with open(path, "rb") as file:
        if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
            raise InputError(str(path), "a file of another kind", "a NumPy array written by numpy.save")
    return Matrix(check_numbers(str(path), np.load(path, allow_pickle=False)))


def read_npz(path: Path, suffix: str, key: str | None = None) -> Matrix:
    """A SciPy sparse matrix, else the archive's array ``key``, else its only 2-D array of numbers."""
    # Opened here: np.load leaves a damaged archive open.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        if {"format", "data", "shape"} <= set(archive.files):
            import scipy.sparse

            file.seek(0)
            return Matrix(check_numbers(str(path), scipy.sparse.load_npz(file)))
        return Matrix(check_numbers(f"{path}, array {key!r}" if key else str(path), _choose(path, archive, key)))


def _choose(path: Path, archive: Any, key: str | None) -> np.ndarray:
    if key is not None:
        if key not in archive.files:
            raise InputError(f"{path}, array", repr(key), f"one of {archive.files}")
        return archive[key]
    matrices = {name: archive[name] for name in archive.files}
    names = [name for name, array in matrices.items() if array.ndim == 2 and array.dtype.kind in "biuf"]
    if len(names) != 1:
        got = f"2-D arrays {names}" if names else f"arrays {archive.files}, none of them a 2-D array of numbers"
        raise InputError(str(path), got, "one 2-D array", "choose with --key" if names else "")
    return matrices[names[0]]


def read_mtx(path: Path, suffix: str) -> Matrix:
    import scipy.io

    return Matrix(check_numbers(str(path), scipy.io.mmread(str(path), spmatrix=False)))


def read_parquet(path: Path, suffix: str) -> Matrix:
    """Numbers; the index, or a first column of text, holds the row labels."""
    if find_spec("pyarrow") is None:
        raise InputError(
            str(path), "a Parquet file without pyarrow installed", "pyarrow", "pip install 'nmf_zoo[parquet]'"
        )
    import pandas as pd

    frame = pd.read_parquet(path)
    rows = None if isinstance(frame.index, pd.RangeIndex) else [str(label) for label in frame.index]
    if rows is None and frame.shape[1] and not pd.api.types.is_numeric_dtype(frame.dtypes.iloc[0]):
        rows, frame = [str(label) for label in frame.iloc[:, 0]], frame.iloc[:, 1:]
    wrong = [name for name, dtype in frame.dtypes.items() if not pd.api.types.is_numeric_dtype(dtype)]
    if wrong:
        raise InputError(f"{path}, column {wrong[0]!r}", f"type {frame[wrong[0]].dtype}", "numbers")
    values = frame.to_numpy(dtype=np.float64, na_value=np.nan) if frame.isna().any(axis=None) else frame.to_numpy()
    return Matrix(check_numbers(str(path), values), rows, [str(name) for name in frame.columns])


def check_numbers(where: str, values: Any) -> Any:
    """A 2-D array or sparse matrix of real numbers; the latter as CSC without duplicates."""
    if values.ndim != 2:
        raise InputError(where, f"an array of shape {values.shape}", "2 dimensions: features and samples")
    if values.dtype.kind not in "biuf":
        raise InputError(where, f"type {values.dtype}", "real numbers")
    if values.dtype.kind == "b":
        values = values.astype(np.int8)
    if hasattr(values, "tocsc"):
        values = values.tocsc()
        values.sum_duplicates()
    return values

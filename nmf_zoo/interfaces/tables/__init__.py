"""Input files: tables, arrays and sparse matrices, read with one clear line when something is wrong with them.

=====================  ========================================================================================
``.csv  .tsv  .txt``   numbers, with or without a header and row labels (rules: :mod:`.text`); ``.gz`` too
``.npy``               one 2-D array
``.npz``               a SciPy sparse matrix, or an archive with one 2-D array (``key=`` chooses among several)
``.mtx``               Matrix Market, sparse or dense; ``.gz`` too
``.parquet``           a data frame of numbers, with or without a first column of row labels
``.h5ad  .zarr``       AnnData, X or a layer (``layer=``); its samples become columns
``.zarr``              what ``nz.write_blocks`` or ``nmf-zoo convert`` wrote
a folder               counts as 10x writes them: matrix, features, barcodes (``key=`` chooses a kind of features)
=====================  ========================================================================================

Pandas and SciPy are imported only where a format needs them, PyMC for none but the last ``.zarr``.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmf_zoo.errors import InputError
from nmf_zoo.files import STORE_FILES, require_there
from nmf_zoo.interfaces.tables.annotated import read_annotated
from nmf_zoo.interfaces.tables.arrays import Archive, Matrix, read_mtx, read_npy, read_npz, read_parquet
from nmf_zoo.interfaces.tables.blocks import is_ours, read_blocks
from nmf_zoo.interfaces.tables.cells import read_folder
from nmf_zoo.interfaces.tables.text import open_text, read_text
from nmf_zoo.labels import WRITABLE, find_unwritable

READERS: dict[str, Callable[..., Matrix]] = {
    ".csv": read_text,
    ".tsv": read_text,
    ".txt": read_text,
    ".npy": read_npy,
    ".npz": read_npz,
    ".mtx": read_mtx,
    ".parquet": read_parquet,
    ".h5ad": read_annotated,
}
FOLDERS: dict[str, Callable[..., Matrix]] = {".zarr": read_annotated, "": read_folder}
ZIPPED = (".csv", ".tsv", ".txt", ".mtx")  # may also end in .gz
OPTIONS = {
    read_text: ("header", "row_labels"),
    read_npz: ("key",),
    read_annotated: ("layer",),
    read_folder: ("key",),
}


def read_matrix(
    path: str | Path,
    *,
    transpose: bool = False,
    key: str | None = None,
    layer: str | None = None,
    header: bool | None = None,
    row_labels: bool | None = None,
) -> Matrix:
    """Read a matrix of numbers, features in rows.

    Parameters
    ----------
    path : its extension says what it is, see the module
    transpose : True when the samples are in the rows; AnnData says so itself
    key : the array to take from a NumPy archive, the kind of features from a folder of 10x
    layer : the layer to take from an AnnData file, in place of X
    header, row_labels : whether a text file has them; None decides by its first lines

    Raises
    ------
    InputError : naming the file, the line and column where there are some, and what was expected
    """
    path = Path(path)
    suffix = format_of(path)
    reader = (FOLDERS if os.path.isdir(path) else READERS)[suffix]
    reader = read_blocks if suffix == ".zarr" and is_ours(path) else reader
    given = {"key": key, "layer": layer, "header": header, "row_labels": row_labels}
    for name, value in given.items():
        if value is not None and name not in OPTIONS.get(reader, ()):
            raise InputError(name, repr(value), f"nothing: {path.name} is no file that has it")
    if transpose and reader in (read_annotated, read_blocks):
        what = "AnnData" if reader is read_annotated else "a store of blocks"
        raise InputError("transpose", "True", f"False: the samples of {what} are known", "leave it out")
    with reading(path, is_folder=True):
        matrix = reader(path, suffix, **{name: given[name] for name in OPTIONS.get(reader, ())})
    if 0 in matrix.shape:
        raise InputError(str(path), f"an empty matrix of shape {matrix.shape}", "at least one row and one column")
    for names, what in ((matrix.rows, "row"), (matrix.columns, "column")):
        _check_labels(f"{path}, label of {what}", names or [])
    return matrix.transposed() if transpose else matrix


def _check_labels(where: str, labels: list[Any]) -> None:
    bad = find_unwritable(labels)
    if bad is not None:
        raise InputError(f"{where} {bad + 1}", repr(labels[bad]), WRITABLE)


def format_of(path: Path) -> str:
    """The extension that says how to read a file, in lower case and without .gz; of folders ".zarr" or ""."""
    if os.path.isdir(path):
        return ".zarr" if any((path / name).exists() for name in STORE_FILES) else ""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-1] if suffixes else ""
    if suffix == ".gz" and len(suffixes) > 1 and suffixes[-2] in ZIPPED:
        return suffixes[-2]
    if suffix not in READERS:
        if suffix in FOLDERS:
            require_there(path, "a file or a folder that exists")
        allowed = ", ".join([*READERS, *(f"{zipped}.gz" for zipped in ZIPPED), "or a folder of 10x or AnnData's Zarr"])
        raise InputError(str(path), f"the extension {suffix!r}", f"one of {allowed}")
    return suffix


def read_labels(path: str | Path) -> list[str]:
    """The lines of a text file (``.gz`` too): one label each; blank lines at the end don't count."""
    path = Path(path)
    with reading(path), open_text(path) as file:
        labels = [line.strip() for line in re.split("\r\n|\r|\n", file.read().rstrip())]
    _check_labels(f"{path}, line", labels)
    return labels


def read_archive(path: str | Path) -> dict[str, Any]:
    """All arrays of a NumPy archive (.npz) by name."""
    path = Path(path)
    with reading(path), open(path, "rb") as file:
        archive = Archive(path, file)
        return {name: archive[name] for name in archive.entries}


@contextmanager
def reading(path: Path, is_folder: bool = False) -> Iterator[None]:
    """Turn whatever goes wrong with a file, or a folder where that may be one, into one clear line."""
    require_there(path, "a file that exists")
    if not (path.is_file() or (is_folder and os.path.isdir(path))):
        raise InputError(str(path), "a folder" if os.path.isdir(path) else "no regular file", "a file")
    try:
        if path.is_file() and path.stat().st_size == 0:
            raise InputError(str(path), "an empty file", "a complete file of its kind")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other libraries, on what they make of the file
            yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"a byte that isn't UTF-8 text ({error.reason})", "a text file in UTF-8") from error
    except MemoryError as error:
        raise InputError(str(path), "a file for more memory than there is", "one that fits into memory") from error
    except Exception as error:  # the standard library, NumPy, SciPy and Arrow raise all sorts of them
        problem = " ".join(str(error).split()) or type(error).__name__
        raise InputError(str(path), f"a file that can't be read ({problem})", "a complete file of its kind") from error

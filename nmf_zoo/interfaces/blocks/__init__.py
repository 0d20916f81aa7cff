"""``nz.open_blocks``: tables on disk as blocks of whole samples, for ``data=`` of :func:`nmf_zoo.fit`.

=====================  ========================================================================================
``.zarr``              what ``nz.write_blocks`` wrote; or AnnData on disk
``.h5ad``              AnnData: X or a layer, sparse by sample (CSR) or dense; its samples become columns
``.npy``               one 2-D array, mapped into memory
``.parquet``           three columns of integers: sample, feature, count; sorted by sample
a list of files        each a block of samples, ``.npz`` or ``.mtx`` (and all else that ``nmf-zoo fit`` reads)
=====================  ========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.files import require_there
from nmf_zoo.interfaces.blocks.annotated import open_annotated
from nmf_zoo.interfaces.blocks.files import FileBlocks
from nmf_zoo.interfaces.blocks.parquet import ParquetBlocks
from nmf_zoo.interfaces.blocks.store import ZarrBlocks
from nmf_zoo.interfaces.tables import reading
from nmf_zoo.interfaces.tables.blocks import is_ours
from nmf_zoo.options import names_checked
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.verbs.block_source import BlockSource, CutArray


def _open_array(path: Path, block: int | None) -> BlockSource:
    with reading(path):
        return CutArray(np.load(path, mmap_mode="r", allow_pickle=False), block)


def _open_store(path: Path, block: int | None) -> BlockSource:
    return ZarrBlocks(path, block) if is_ours(path) else open_annotated(path, block, None)


OPENERS: dict[str, Callable[[Path, int | None], BlockSource]] = {
    ".npy": _open_array,
    ".parquet": ParquetBlocks,
    ".zarr": _open_store,
    ".h5ad": lambda path, block: open_annotated(path, block, None),
}


@names_checked
def open_blocks(
    data: Any,
    *,
    block: int | None = None,
    layer: str | None = None,
    transpose: bool = False,
    shape: tuple[int, int] | None = None,
) -> BlockSource:
    """A table on disk in blocks of whole samples.

    Parameters
    ----------
    data : path of a file or store, or a list of paths of files with as many features each, in the order of the samples:
        ``.zarr`` of :func:`~nmf_zoo.write_blocks` or of AnnData, ``.h5ad``, ``.npy``, ``.parquet`` (columns sample,
        feature, count; sorted by sample), lists of ``.npz`` or ``.mtx``. Or an array, a DataFrame or DataArray, or a
        sparse matrix
    block : samples of a block; None for about 2 million stored cells. A list of files has a block for each, and a
        Parquet file one for each of its row groups, small ones together
    layer : of AnnData, in place of X
    shape : (features, samples) of a Parquet file, of which the last ones may have no row; None where they have
    transpose : True when samples are in the rows of a ``.npy`` file or an array; AnnData says so itself

    Returns
    -------
    What ``data=`` of :func:`~nmf_zoo.fit` takes: ``shape`` (features, samples), ``bounds`` of the blocks and
    ``read(number)``

    Raises
    ------
    InputError : no such file, of another kind, or damaged; what the cells hold is checked by the fit

    Examples
    --------
    >>> import numpy as np, nmf_zoo as nz
    >>> blocks = nz.open_blocks(np.ones((3, 10)), block=4)
    >>> blocks.shape, list(blocks.bounds)
    ((3, 10), [0, 4, 8, 10])
    """
    if block is not None:
        check_counts(block=(block, 1))
    is_parquet = isinstance(data, str | os.PathLike) and Path(data).suffix.lower() == ".parquet"
    if not is_parquet:
        _refuse("shape", shape, "tables other than Parquet files have theirs")
    if isinstance(data, list | tuple):
        _refuse("block", block, "a list of files has a block for each")
        return FileBlocks([Path(path) for path in data], transpose)
    if not isinstance(data, str | os.PathLike):
        return CutArray(data.T if transpose else data, block)
    path = Path(data)
    require_there(path, "a file that exists")
    suffix = ".zarr" if path.is_dir() else path.suffix.lower()
    if suffix not in OPENERS:
        raise InputError("data", f"the extension {suffix!r}", f"one of {', '.join(OPENERS)}, or a list of files")
    if layer is not None:
        return open_annotated(path, block, layer)
    found = ParquetBlocks(path, block, shape) if is_parquet else OPENERS[suffix](path, block)
    if not transpose:
        return found
    if not isinstance(found, CutArray):
        raise InputError("transpose", "True", f"False: samples of {suffix} are known", "leave it out")
    return CutArray(found.X.T, block)


def _refuse(name: str, value: Any, reason: str) -> None:
    if value is not None:
        raise InputError(name, repr(value), f"None: {reason}", "leave it out")

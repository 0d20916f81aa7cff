"""The zoo's own layout of counts on disk: a Zarr store of cells by sample, as CSR has them, which is read in blocks.

Arrays ``indptr`` (samples + 1), ``indices`` and ``data`` (cells), ``exposure`` (samples) where there is one, and
``feature`` and ``obs`` where there are labels: JSON of text, or of numbers with their dtype in the attribute ``dtype``,
times as integers. The attribute ``observed`` says whether cells that are not listed are
zeros ("all") or missing ("stored"). Counts are 32-bit integers, other numbers 64-bit floats.

A background of the samples is in ``background_feature`` (features) and ``background_obs`` (samples), whose product it
is, each where it is not ones; or, of cells of which all others are missing, in ``background`` (cells); else in
``background_table`` (samples, features). Stores that have one are of version 2 of the layout, others of version 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from nmf_zoo.errors import InputError, NotWritten
from nmf_zoo.files import check_place, replacing
from nmf_zoo.interfaces.tables.blocks import LAYOUT
from nmf_zoo.labels import writable_labels
from nmf_zoo.options import names_checked
from nmf_zoo.results.block_store import BY_FEATURE, BY_SAMPLE
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.sparse import index_dtype
from nmf_zoo.structure import Array, Cells, Data, InBlocks, Listed, Offset, OffsetsOfSamples, Outer, offset_table
from nmf_zoo.verbs.block_source import (
    BlockSource,
    CutArray,
    FeatureLabels,
    GatheredOffsets,
    Samples,
    as_data,
    as_source,
    bounds_of,
    labels_of,
    samples_of_block,
)

PLAIN, WITH_BACKGROUND = 1, 2  # versions of the layout: what does not know of backgrounds must not read these
BY_CELL, TABLE = "background", "background_table"  # numbers of stored cells, and of all
CHUNK = 1 << 20  # cells of a chunk
LARGEST_COUNT = 2**32 - 1
WHOLE = "what nz.write_blocks wrote"


class ZarrBlocks:
    """A store that :func:`write_blocks` wrote."""

    def __init__(self, path: Path, block: int | None = None):
        self.path, self._block, root = path, block, _open(path)
        attrs = dict(root.attrs)
        if attrs.get(LAYOUT) not in (PLAIN, WITH_BACKGROUND):
            got, expected = f"layout {attrs.get(LAYOUT)!r}", f"{PLAIN} or {WITH_BACKGROUND}"
            raise InputError(str(path), got, expected, "write it with this version")
        shape = attrs.get("shape")
        if not (isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) and n > 0 for n in shape)):
            raise InputError(str(path), f"the shape {shape!r}"[:80], WHOLE)
        self.shape = (shape[0], shape[1])
        self._observed = None if attrs.get("observed") == "all" else "stored"
        self._indices, self._data = (ReadInOrder(self._whole(root, name, None)) for name in ("indices", "data"))
        self._indptr = self._array(root, "indptr", self.shape[1] + 1)[:]
        stored = self.n_cells = len(self._data)
        if len(self._indices) != stored or self._indptr[0] != 0 or self._indptr[-1] != stored:
            got = f"indptr to {self._indptr[-1]}, {len(self._indices)} indices, {stored} values"
            raise InputError(str(path), got, WHOLE)
        if np.any(np.diff(self._indptr) < 0):
            raise InputError(str(path), "an indptr that falls", WHOLE)
        self._exposure = self._array(root, "exposure", self.shape[1])[:] if "exposure" in root else None
        self._background = self._open_background(root)
        self.coords = {dim: self._labels(root, dim) for dim in ("feature", "obs") if dim in root}
        cells = self.shape[0] * self.shape[1] if TABLE in self._background else stored  # what is read for a block
        size = samples_of_block(self.shape, cells) if block is None else block
        self.bounds = bounds_of(self.shape[1], size)

    def __reduce__(self) -> Any:
        """Another process opens it for itself."""
        return ZarrBlocks, (self.path.absolute(), self._block)

    def _labels(self, root: Any, dim: str) -> Array:
        array = self._array(root, dim, None)
        dtype = str(array.attrs.get("dtype", "str"))
        try:
            found = json.loads(bytes(array[:]))
            return np.array(found, np.int64).view(dtype) if "M8" in dtype else np.array(found, dtype)
        except (ValueError, TypeError) as error:
            raise InputError(str(self.path), f"labels of {dim!r} that can't be read", WHOLE) from error

    def _open_background(self, root: Any) -> dict[str, Any]:
        """By the names of the arrays: numbers of features and samples, and of cells and tables where they are read."""
        sides = {BY_FEATURE: self.shape[0], BY_SAMPLE: self.shape[1]}
        found = {name: self._array(root, name, length)[:] for name, length in sides.items() if name in root}
        if BY_CELL in root:
            found[BY_CELL] = ReadInOrder(self._whole(root, BY_CELL, len(self._data)))
        if TABLE in root:
            found[TABLE] = self._whole(root, TABLE, self.shape[1], self.shape[0])
        return found

    def _whole(self, root: Any, name: str, length: int | None, *others: int) -> Any:
        """An array of which every chunk was written; one that is missing Zarr would read as zeros."""
        found = self._array(root, name, length, *others)
        if found.nchunks_initialized < found.nchunks:
            got = f"{found.nchunks_initialized} of {found.nchunks} chunks of the array {name!r}"
            raise InputError(str(self.path), got, WHOLE)
        return found

    def _array(self, root: Any, name: str, length: int | None, *others: int) -> Any:
        found = root.get(name)
        if (
            found is None
            or found.shape[1:] != others
            or found.dtype.kind not in "iuf"
            or length not in (None, found.shape[0])
        ):
            got = "no array" if found is None else f"an array of shape {found.shape} of {found.dtype}"
            raise InputError(str(self.path), f"{got} {name!r}", WHOLE)
        return found

    def read(self, number: int) -> Samples:
        """Samples of a block."""
        first, last = self.bounds[number], self.bounds[number + 1]
        begin, end = (int(at) for at in self._indptr[[first, last]])
        try:
            indices, values = self._indices.read(begin, end), self._data.read(begin, end, np.float64)
        except Exception as error:  # Zarr and its codecs raise all sorts
            problem = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(
                str(self.path), f"samples {first} to {last} that can't be read ({problem})", WHOLE
            ) from error
        shape = self.shape[0], last - first
        X: Any = sp.csc_array(shape, dtype=values.dtype)  # filled by hand: SciPy would look at the arrays' ends only
        indptr = self._indptr[first : last + 1] - begin
        X.data, X.indices, X.indptr = values, indices, indptr.astype(index_dtype(end - begin))
        exposure = None if self._exposure is None else self._exposure[first:last]
        return Samples(X, exposure, observed=self._observed, background=self._background_of(X, first, last, begin, end))

    def _background_of(self, X: Any, first: int, last: int, begin: int, end: int) -> Any:
        """Of samples, whose cells are these."""
        own = self._background
        if TABLE in own:
            return own[TABLE][first:last].T
        if BY_CELL in own:
            found = sp.csc_array(X.shape)
            found.data, found.indices, found.indptr = own[BY_CELL].read(begin, end), X.indices, X.indptr
            return found
        of_features = own[BY_FEATURE][:, None] if BY_FEATURE in own else None
        of_samples = own[BY_SAMPLE][first:last] if BY_SAMPLE in own else None
        return of_samples if of_features is None else of_features if of_samples is None else (of_features, of_samples)


class ReadInOrder:
    """A Zarr array of one dimension, of which one piece after the other is read, chunk by chunk.

    Where chunks are files of the numbers as they are, these go straight to where they are wanted: Zarr would copy them
    twice on the way. Of others the chunk in which a piece ends is kept, since the next piece begins there: where pieces
    are smaller than chunks, and several processes share them, most are in it as a whole.
    """

    def __init__(self, array: Any):
        self._array, self._size, self._folder = array, int(array.chunks[0]), _folder_of_plain_chunks(array)
        self._kept: tuple[int, Array] = 0, np.empty(0, array.dtype)  # where it begins; replaced as a whole

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def read(self, begin: int, end: int, dtype: Any = None) -> Array:
        """The cells from one place to another, newly made; of another dtype than they are stored in, if it is given."""
        found = np.empty(end - begin, self._array.dtype if dtype is None else dtype)
        at = begin
        while at < end:
            chunk = at // self._size
            last = min(end, (chunk + 1) * self._size)
            into = found[at - begin : last - begin]
            if self._folder is not None:
                _read_plain(self._folder / str(chunk), at - chunk * self._size, self._array.dtype, into)
            else:
                into[:] = self._chunk(chunk)[at - chunk * self._size :][: len(into)]
            at = last
        return found

    def _chunk(self, number: int) -> Array:
        first, kept = number * self._size, self._kept
        if kept[0] != first or not len(kept[1]):
            kept = self._kept = first, self._array[first : first + self._size]
        return kept[1]


def _folder_of_plain_chunks(array: Any) -> Path | None:
    """Where an array has a file for each chunk, of its numbers as they are in memory; None where it has not."""
    from zarr.storage import LocalStore

    is_plain = not array.compressors and not array.filters and array.dtype.isnative
    return Path(array.store.root, array.path) if is_plain and isinstance(array.store, LocalStore) else None


def _read_plain(path: Path, first: int, dtype: Any, into: Array) -> None:
    """The numbers of a file from the place ``first`` on, as many as there is room for."""
    numbers = into if into.dtype == dtype else np.empty(len(into), dtype)
    with path.open("rb") as file:
        file.seek(first * dtype.itemsize)
        if file.readinto(numbers.data) < numbers.nbytes:
            raise EOFError(f"{path.name} ends early")
    if numbers is not into:
        into[:] = numbers


@names_checked
def write_blocks(
    path: Path | str, data: Any, *, block: int | None = None, compress: bool = True, overwrite: bool = False
) -> None:
    """Write a table to a Zarr store of cells by sample, which ``nz.open_blocks`` opens; a block is in memory at a time.

    Parameters
    ----------
    path : the store, a name that ends in ``.zarr``
    data : an array, a DataFrame or DataArray, a sparse matrix (features, samples), what
        :func:`~nmf_zoo.open_blocks` opens, or any object with ``shape``, ``bounds`` and ``read(number)``. Exposures,
        backgrounds, labels and missing cells are written, too
    block : samples that are read at a time, of an array or a sparse matrix
    compress : False leaves cells as they are: four times the room and less work in each pass
    overwrite : replace what is there

    Raises
    ------
    InputError : a cell is negative or no number, or ``path`` can't be used
    NotWritten : the disk is full, or the system refuses for another reason
    """
    path = check_place(path)
    if path.suffix != ".zarr" or (path.exists() and not overwrite):
        got = f"{str(path)!r}, which exists" if path.exists() else repr(str(path))
        raise InputError("path", got, "a new name that ends in .zarr", "or overwrite=True" if path.exists() else "")
    _require_zarr(str(path))
    if block is not None:
        check_counts(block=(block, 1))
        data = CutArray(data, block)
    source, labels = as_source(data), FeatureLabels()
    kinds = _look(source, labels)
    with replacing(path) as partial:
        _write(partial, source, kinds, labels, compress)


class Kinds(NamedTuple):
    """What a first look at all blocks tells."""

    is_complete: bool
    dtype: Any
    cells: int
    offsets: OffsetsOfSamples
    is_by_cell: bool  # the background


def _look(source: BlockSource, labels: FeatureLabels) -> Kinds:
    """Every cell is a number >= 0, features have the same labels in all blocks; and which numbers there are."""
    is_complete, is_count, cells, by_cell, gathered = True, True, 0, True, GatheredOffsets(source)
    for number, (first, data, offsets) in enumerate(_blocks(source, labels)):
        gathered.add(number, offsets)
        by_cell &= isinstance(offsets.background, Listed)
        values = data.observed_values
        if not np.all(np.isfinite(values) & (values >= 0)):
            bad = values[~(np.isfinite(values) & (values >= 0))][0]
            raise InputError("data", f"the cell {bad:g} in the block from sample {first} on", "finite numbers >= 0")
        is_complete &= data.is_complete
        is_count &= bool(np.all(values == np.floor(values)) and values.max(initial=0) <= LARGEST_COUNT)
        cells += values.size
    return Kinds(is_complete, np.uint32 if is_count else np.float64, cells, gathered.all(), by_cell)


def _blocks(source: BlockSource, labels: FeatureLabels) -> Iterator[tuple[int, Data, OffsetsOfSamples]]:
    for number in range(len(source.bounds) - 1):
        yield int(source.bounds[number]), *as_data(source, number, labels)


def _write(path: Path, source: BlockSource, kinds: Kinds, features: FeatureLabels, compress: bool) -> None:
    import zarr

    try:
        root = zarr.open_group(str(path), mode="w", zarr_format=2)
        codec: Any = "auto" if compress else None
        arrays = {
            name: root.create_array(name, shape=(0,), chunks=(CHUNK,), dtype=dtype, compressors=codec, fill_value=0)
            for name, dtype in (("indices", np.int32), ("data", kinds.dtype))
        }
        arrays |= _make_background(root, source.shape, kinds, codec)
        arrays = {name: array.with_config({"write_empty_chunks": True}) for name, array in arrays.items()}
        indptr = [np.zeros(1, np.int64)]
        for first, data, offsets in _blocks(source, features):
            lengths, rows, values = _by_sample(data, kinds.is_complete)
            indptr.append(indptr[-1][-1] + np.cumsum(lengths))
            arrays["indices"].append(rows.astype(np.int32))
            arrays["data"].append(values.astype(kinds.dtype))
            if BY_CELL in arrays:
                arrays[BY_CELL].append(offsets.background.values)
            if TABLE in arrays:
                table = offset_table(offsets.background, data.shape, 0.0)
                arrays[TABLE][first : first + data.shape[1]] = np.ascontiguousarray(table.T)
        whole = {"indptr": np.concatenate(indptr), **_sides(kinds.offsets.background)}
        whole |= {} if kinds.offsets.exposure is None else {"exposure": kinds.offsets.exposure}
        dtypes = {}
        of_blocks = {} if features.own is None else {"feature": features.own}
        for dim, labels in {**of_blocks, **labels_of(source, source.shape)}.items():
            text, dtypes[dim] = _written(writable_labels(dim, labels))
            whole[dim] = np.frombuffer(text.encode(), dtype=np.uint8)
        for name, array in whole.items():
            made = root.create_array(name, shape=array.shape, chunks=(CHUNK,), dtype=array.dtype, compressors=codec)
            made[:] = array
            made.attrs.update({"dtype": dtypes[name]} if name in dtypes else {})
        observed = "all" if kinds.is_complete else "stored"
        version = PLAIN if kinds.offsets.background is None else WITH_BACKGROUND
        root.attrs.update({LAYOUT: version, "shape": [int(n) for n in source.shape], "observed": observed})
    except OSError as error:
        raise NotWritten("path", str(path), error.errno or 0, error.strerror or str(error)) from error


def _make_background(root: Any, shape: tuple[int, int], kinds: Kinds, codec: Any) -> dict[str, Any]:
    """The array of a background that is read block by block."""
    if not isinstance(kinds.offsets.background, InBlocks):
        return {}
    how: dict[str, Any] = {"dtype": np.float64, "compressors": codec, "fill_value": 0}
    if kinds.is_by_cell:
        return {BY_CELL: root.create_array(BY_CELL, shape=(0,), chunks=(CHUNK,), **how)}
    chunks = (min(shape[1], max(1, CHUNK // shape[0])), shape[0])
    return {TABLE: root.create_array(TABLE, shape=shape[::-1], chunks=chunks, **how)}


def _sides(background: Offset | None) -> dict[str, Array]:
    """Numbers of features and of samples, whose product it is."""
    if isinstance(background, Outer):
        return {BY_FEATURE: background.of_features[:, 0], BY_SAMPLE: background.of_samples[0]}
    if isinstance(background, np.ndarray):
        return {BY_SAMPLE if len(background) == 1 else BY_FEATURE: background.ravel()}
    return {}


def _written(labels: Array) -> tuple[str, str]:
    """Labels as JSON, and their dtype."""
    if labels.dtype.kind == "M":
        return json.dumps(labels.view(np.int64).tolist()), labels.dtype.str
    if labels.dtype.kind in "biuf":
        return json.dumps(labels.tolist()), labels.dtype.str
    return json.dumps([str(label) for label in labels]), "str"


def _by_sample(data: Data, is_complete: bool) -> tuple[Array, Array, Array]:
    """(cells of each sample, their features, their values), of complete data without zeros."""
    if isinstance(data, Cells):
        rows, cols, values = data.rows, data.cols, data.values
    else:
        seen = np.ones(data.shape, bool) if data.mask is None else data.mask
        cols, rows = np.nonzero(seen.T)
        values = data.values[rows, cols]
    if is_complete and not np.all(values):
        kept = values != 0
        rows, cols, values = rows[kept], cols[kept], values[kept]
    return np.bincount(cols, minlength=data.shape[1]), rows, values


def _require_zarr(name: str) -> None:
    if find_spec("zarr") is None:
        raise InputError(name, "a Zarr store without zarr installed", "zarr", "pip install 'nmf_zoo[zarr]'")


def _open(path: Path) -> Any:
    _require_zarr(str(path))
    import zarr

    try:
        return zarr.open_group(str(path), mode="r", zarr_format=2)
    except Exception as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(str(path), f"a store that can't be read ({problem})", WHOLE) from error

"""``data=``: what gives blocks of whole samples, as engines take them; all of it is checked once, block by block.

A source has three members, and may have labels::

    shape                 (features, samples)
    bounds                where blocks begin and end: 0 = bounds[0] < bounds[1] < ... = samples
    read(number)          the samples of a block: a table (features, n), dense or sparse, or Samples; called from
                          several threads, but from one at a time
    coords                optional: labels of "feature" and "obs"

Arrays, memory maps among them, sparse matrices and labelled tables are cut into blocks of `BLOCK_CELLS` stored cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp
import xarray as xr

from nmf_zoo.errors import InputError, UnsupportedModel, number_of
from nmf_zoo.inference.shared.requirements import UNITS
from nmf_zoo.inference.shared.sample_blocks import read_ahead, structure_of_samples
from nmf_zoo.inference.shared.start import typical_totals
from nmf_zoo.labels import are_counted, writable_labels
from nmf_zoo.models.matrices import COLUMNS, ROWS, as_numbers, check_same_labels, read_along, read_labels
from nmf_zoo.models.observed import Observed
from nmf_zoo.models.offsets import OuterProduct, PerCell, check_offset, is_pair
from nmf_zoo.options import names_checked
from nmf_zoo.runtime.arguments import check_possible
from nmf_zoo.runtime.engine import BlockEngine
from nmf_zoo.sparse import by_sample, read_sparse, require_listed
from nmf_zoo.structure import (
    Array,
    Blocked,
    Cells,
    Data,
    Dense,
    Factorisation,
    InBlocks,
    Listed,
    Offset,
    OffsetsOfSamples,
    Outer,
    ends_of,
    of_sides,
    sides_of,
    slices,
)

BLOCK_CELLS = 1 << 21  # stored cells of a block that is cut here: arrays below 32 MiB, whose pages glibc hands on
MEMBERS = ("shape", "bounds", "read")
ONE_AT_A_TIME = RLock()  # a source need not bear two readings at once: one is in advance, for a pass that may not come
PROTOCOL = f"an array, a table, a sparse matrix, what nz.open_blocks opens, or an object with {', '.join(MEMBERS)}"


@names_checked
class Samples(NamedTuple):
    """Samples of a block, with what else is known of them.

    Attributes
    ----------
    X : (features, n) array or sparse matrix; NaN in an array is a missing cell
    exposure : (n,) what multiplies the means of each sample, or None
    mask : (features, n) bool, True = observed; of a dense X, or None
    observed : "stored" when of a sparse X only stored cells were observed; None when the others are zeros
    background : what is added to the means, >= 0, or None: an array that broadcasts to (features, n); a pair of one
        number per feature, (features, 1), and one per sample, (n,) or (1, n), whose product is never made dense; with
        ``observed="stored"`` also a sparse matrix like X, of its stored cells

    Examples
    --------
    >>> import numpy as np, nmf_zoo as nz
    >>> noise, seconds = np.array([[0.1], [0.0], [0.4]]), np.array([1.0, 2.0, 1.0, 5.0])
    >>> nz.check(nz.gamma_nmf(None, 2, shape=(3, 1)), data=nz.Samples(np.ones((3, 4)), background=(noise, seconds)))
    """

    X: Any
    exposure: Any = None
    mask: Any = None
    observed: str | None = None
    background: Any = None

    def in_order(self, order: Array) -> Samples:
        """The same samples in another order."""
        X = sp.csc_array(self.X) if sp.issparse(self.X) else self.X
        exposure = None if self.exposure is None else np.asarray(self.exposure)[order]
        mask = None if self.mask is None else self.mask[:, order]
        return Samples(X[:, order], exposure, mask, self.observed, _background_in_order(self.background, order))


def features_in_order(background: Any, order: Array | list[int]) -> Any:
    """A background, as :class:`Samples` has it, with its features in another order."""
    if is_pair(background):
        return background[0][order], background[1]
    if sp.issparse(background):
        return sp.csr_array(background)[order]
    return background if background is None or np.ndim(background) < 2 or len(background) == 1 else background[order]


def _background_in_order(given: Any, order: Array) -> Any:
    if is_pair(given):
        return given[0], np.atleast_2d(given[1])[:, order]
    if given is None or sp.issparse(given):
        return None if given is None else sp.csc_array(given)[:, order]
    table = np.atleast_2d(given)
    return table if table.shape[1] == 1 else table[:, order]


class BlockSource(Protocol):
    """See the module."""

    @property
    def shape(self) -> tuple[int, int]:
        """(features, samples)"""

    @property
    def bounds(self) -> Sequence[int]:
        """(blocks + 1,)"""

    def read(self, number: int) -> Any:
        """A table (features, n), or Samples."""


class CutArray:
    """An array, a table with labels or a sparse matrix in memory, or an array in a file, cut into blocks of samples."""

    coords: Mapping[str, Array] = MappingProxyType({})  # of what has no labels

    def __init__(self, X: Any, block: int | None = None):
        X, labels = read_labels(X)
        if labels:
            X = as_numbers("data", X, labels, None)  # of columns that pandas keeps as objects
            self.coords = {dim: writable_labels(dim, own) for dim, own in labels.items()}
        if X.ndim != 2 or 0 in X.shape or X.dtype.kind not in "biuf":
            got = f"an array of shape {X.shape} of {X.dtype}"
            raise InputError("data", got, "a table of numbers, (features, samples)")
        self.X = read_sparse("data", X, "csc") if sp.issparse(X) else X
        self.shape = (int(X.shape[0]), int(X.shape[1]))
        size = samples_of_block(self.shape, self.X.nnz if sp.issparse(X) else X.size) if block is None else block
        self.bounds = bounds_of(self.shape[1], size)

    def __reduce__(self) -> Any:
        """By the file that it is mapped from, which another process maps for itself."""
        X = self.X
        is_whole = isinstance(X, np.memmap) and (X.flags.c_contiguous or X.flags.f_contiguous)
        if not is_whole or X.filename is None or X.size != _cells_of(X):
            got, do = (
                "an array in memory, which other processes don't see",
                "nz.open_blocks of a file that all can read",
            )
            raise InputError("data", got, "blocks on storage that the workers share", do)
        order = "C" if X.flags.c_contiguous else "F"
        return _mapped, (str(Path(X.filename).absolute()), X.dtype.str, X.shape, X.offset, order, self.bounds)

    def read(self, number: int) -> Any:
        """Columns of X."""
        return self.X[:, self.bounds[number] : self.bounds[number + 1]]


def _cells_of(X: np.memmap) -> int:
    """Of the array that was mapped: a part of it has the offset of the whole."""
    while isinstance(X.base, np.memmap):
        X = X.base
    return int(X.size)


def _mapped(path: str, dtype: str, shape: tuple[int, int], offset: int, order: Any, bounds: list[int]) -> CutArray:
    found = CutArray(np.memmap(path, dtype, "r", offset, shape, order))
    found.bounds = bounds
    return found


def samples_of_block(shape: tuple[int, int], cells: int) -> int:
    """Samples that have about `BLOCK_CELLS` cells, or fewer, so that blocks are alike: one is read beside another."""
    most = max(1, min(shape[1], int(BLOCK_CELLS * shape[1] // max(1, cells))))
    return -(-shape[1] // -(-shape[1] // most))


def bounds_of(n_samples: int, size: int) -> list[int]:
    """Bounds of blocks of ``size`` samples."""
    return [part.start for part in slices(n_samples, size)] + [n_samples]


def as_source(data: Any) -> BlockSource:
    """A source of blocks."""
    if all(hasattr(data, name) for name in MEMBERS):
        _check_bounds(data)
        return cast(BlockSource, data)
    if sp.issparse(data) or isinstance(data, np.ndarray | pd.DataFrame | xr.DataArray):
        return CutArray(data)
    do = (
        "open it with nz.open_blocks(...)"
        if isinstance(data, str | list | tuple) or hasattr(data, "__fspath__")
        else ""
    )
    raise InputError("data", f"an object of type {type(data).__name__}", PROTOCOL, do)


def _check_bounds(source: Any) -> None:
    bounds = np.asarray(source.bounds)
    is_list = bounds.ndim == 1 and len(bounds) > 1 and bounds.dtype.kind in "iu"
    if not is_list or bounds[0] != 0 or np.any(np.diff(bounds) < 1) or bounds[-1] != source.shape[1]:
        got = " ".join(repr(bounds.tolist()).split())[:60]
        raise InputError("data.bounds", got, f"integers that rise from 0 to {source.shape[1]}, the number of samples")


# -- blocks as engines take them -------------------------------------------------------------------------------------


def blocked(structure: Factorisation, source: BlockSource) -> Blocked:
    """The data of a source, not looked at yet."""
    n_features = structure.shape[0]
    if source.shape[0] != n_features:
        got = number_of(source.shape[0], "feature")
        do = "transpose it: features are rows" if n_features == source.shape[1] else "declare shape=(features, 1) so"
        raise InputError("data", got, f"{n_features}, as the model has", do)

    bounds, none = np.asarray(source.bounds, dtype=np.int64), np.zeros(0)
    return Blocked(
        bounds=bounds,
        n_features=n_features,
        read=ReadData(source),
        offsets=OffsetsOfSamples(),
        observed=none,
        non_zero=0,
        is_integer=False,
        constants=none,
        at_data=none,
        totals=(0.0, 0.0),
    )


@dataclass(frozen=True)
class ReadData:
    """The number of a block -> its cells, and what came with its samples."""

    source: BlockSource

    def __call__(self, number: int) -> tuple[Data, OffsetsOfSamples]:
        return as_data(self.source, number)


class FeatureLabels:
    """The labels of features that all blocks have, by position.

    Attributes
    ----------
    own : those that are known, else those of the first block that has some, else None; 0, 1, 2, ... say nothing
    """

    def __init__(self, known: Array | None = None):
        self.own = None if known is None or are_counted(known) else known

    def hold(self, name: str, found: Mapping[str, Array]) -> None:
        """Refuse a table whose labels (``found``) are others, or in another order."""
        if ROWS not in found or are_counted(found[ROWS]):
            return
        labels = writable_labels(ROWS, found[ROWS])
        if self.own is None:
            self.own = labels
        check_same_labels(name, {ROWS: labels}, {ROWS: self.own}, "the model")


def as_data(source: BlockSource, number: int, labels: FeatureLabels | None = None) -> tuple[Data, OffsetsOfSamples]:
    """(the cells of a block, what came with its samples); a table with labels must have these ``labels``."""
    with ONE_AT_A_TIME:
        found = source.read(number)
    samples = found if isinstance(found, Samples) else Samples(found)
    shape = source.shape[0], int(source.bounds[number + 1] - source.bounds[number])
    if np.shape(samples.X) != shape:
        raise InputError(f"data.read({number})", f"a table of shape {np.shape(samples.X)}", f"{shape}")
    if any(
        isinstance(part, pd.DataFrame | pd.Series | xr.DataArray) for part in (*samples, *_parts_of_background(samples))
    ):
        _check_labels(samples, source, number, FeatureLabels() if labels is None else labels)
    data = _listed(samples, shape, number) if sp.issparse(samples.X) else _dense(samples, number)
    exposure = None if samples.exposure is None else _exposure(samples.exposure, shape[1], number)
    return data, OffsetsOfSamples(exposure, _background(samples.background, data, number))


def _parts_of_background(samples: Samples) -> tuple[Any, ...]:
    return samples.background if is_pair(samples.background) else (samples.background,)


def _check_labels(samples: Samples, source: BlockSource, number: int, labels: FeatureLabels) -> None:
    """What is labelled goes by position, as the source's labels do, so that labels that say otherwise are an error."""
    name, own = f"data.read({number})", dict(labels_of(source, source.shape))
    if COLUMNS in own:
        own[COLUMNS] = own[COLUMNS][source.bounds[number] : source.bounds[number + 1]]
    of_table = read_along(samples.X, (ROWS, COLUMNS))[1]
    check_same_labels(name, of_table, own, "the source")
    labels.hold(name, of_table)
    for part, dims in ((samples.exposure, (COLUMNS,)), (samples.mask, (ROWS, COLUMNS))):
        check_same_labels(name, read_along(part, dims)[1], own | of_table)
    for part in _parts_of_background(samples):
        found = {dim: its for dim, its in read_along(part, (ROWS, COLUMNS))[1].items() if len(its) > 1}
        check_same_labels(f"{name}, background", found, own | of_table)


def _listed(samples: Samples, shape: tuple[int, int], number: int) -> Cells:
    if samples.mask is not None or samples.observed not in (None, "stored"):
        expected = "observed='stored', or None: of a sparse X the other cells are missing, or zeros"
        raise InputError(f"data.read({number})", f"mask= or observed={samples.observed!r}", expected)
    if samples.observed is not None:
        require_listed(f"data.read({number})", samples.X)
    matrix = by_sample(f"data.read({number})", samples.X)
    columns = np.repeat(np.arange(shape[1], dtype=np.int32), np.diff(matrix.indptr))
    rows = matrix.indices.astype(np.int32, copy=False)
    is_complete = samples.observed is None
    indptr = matrix.indptr.astype(np.int64, copy=False)
    return Cells(rows=rows, cols=columns, values=matrix.data, shape=shape, is_complete=is_complete, indptr=indptr)


def _dense(samples: Samples, number: int) -> Dense:
    if samples.observed is not None:
        raise InputError(f"data.read({number})", "observed= with a dense X", "None", "use mask= or NaN")
    values = np.array(np.ma.getdata(samples.X), dtype=np.float64)
    missing = np.isnan(values) | np.ma.getmaskarray(samples.X)
    if samples.mask is not None:
        missing |= ~np.broadcast_to(np.asarray(samples.mask, dtype=bool), values.shape)
    values[missing] = 0.0
    return Dense(values=values, mask=~missing if missing.any() else None)


def _exposure(given: Any, n: int, number: int) -> Array:
    found = np.asarray(given, dtype=np.float64)
    if found.shape != (n,) or not np.all((found >= UNITS[0]) & (found <= UNITS[1])):
        expected = f"numbers from {UNITS[0]:g} to {UNITS[1]:g}, one per sample"
        raise InputError(f"data.read({number})", f"exposures of shape {found.shape}", expected)
    return found


def _background(given: Any, data: Data, number: int) -> Offset | None:
    """As a model in memory takes it."""
    is_listed = isinstance(data, Cells)
    cells = (data.rows, data.cols) if isinstance(data, Cells) else None
    seen = Observed(values=data.values, cells=cells, is_sparse=is_listed, is_complete=data.is_complete)
    name = f"data.read({number}), background"
    found = check_offset(name, given, data.shape, {}, seen, positive=False)
    if isinstance(found, OuterProduct):
        return Outer(of_features=found.of_features, of_samples=found.of_samples)
    if isinstance(found, PerCell):
        assert isinstance(data, Cells)
        listed = {"rows": data.rows, "cols": data.cols, "values": found.values}
        return Listed(**listed, shape=data.shape, elsewhere=0.0)
    return None if found is None else np.atleast_2d(found)


def as_given(background: Offset | None) -> Any:
    """A background of samples as :class:`Samples` takes it."""
    if isinstance(background, Outer):
        return background.of_features, background.of_samples
    if isinstance(background, Listed):
        return sp.csc_array((background.values, (background.rows, background.cols)), shape=background.shape)
    return background


def require_once(structure: Factorisation, offsets: OffsetsOfSamples) -> None:
    """Refuse what came with samples beside the same of the model."""
    for name, of_samples, do in (
        ("exposure", offsets.exposure, "multiply them"),
        ("background", offsets.background, "add them up"),
    ):
        if of_samples is not None and getattr(structure.likelihood, name) is not None:
            raise InputError("data", f"{name}s of samples beside those of the model", "one of both", do)


class GatheredOffsets:
    """What came with the samples of all blocks, one block after the other; of backgrounds what is small is held."""

    def __init__(self, source: BlockSource):
        self._source = source
        self._first = OffsetsOfSamples()
        self._exposures: list[Array] = []
        self._ends: list[tuple[float, float]] = []
        self._is_listed = False
        self._sides: list[Outer] | None = []  # None where numbers of features differ between blocks, or between cells

    def add(self, number: int, found: OffsetsOfSamples) -> None:
        """Refuse exposures or backgrounds of some blocks only."""
        self._first = self._first if number else found
        for name, own, first in zip(OffsetsOfSamples._fields, found, self._first, strict=True):
            if (own is None) != (first is None):
                got, expected = f"{name}s of some blocks only", f"{name}s of all or of none"
                raise InputError(f"data.read({number})", got, expected)
        self._exposures += [] if found.exposure is None else [found.exposure]
        if found.background is not None:
            self._ends.append(ends_of(found.background))
            self._is_listed |= isinstance(found.background, Listed)
            self._sides = None if self._sides is None else self._with(self._sides, sides_of(found.background))

    def _with(self, before: list[Outer], sides: Outer | None) -> list[Outer] | None:
        """The numbers of features are held once."""
        if sides is None or (before and not np.array_equal(before[0].of_features, sides.of_features)):
            return None
        of_features = before[0].of_features if before else sides.of_features.copy()
        return [*before, Outer(of_features=of_features, of_samples=sides.of_samples.copy())]

    def all(self) -> OffsetsOfSamples:
        """Of all samples, in one."""
        exposure = np.concatenate(self._exposures) if self._exposures else None
        return OffsetsOfSamples(exposure, self._background() if self._ends else None)

    def _background(self) -> Offset:
        bounds = np.asarray(self._source.bounds, dtype=np.int64)
        found = None if self._sides is None else of_sides(self._sides, np.diff(bounds).tolist())
        if found is not None:
            return found
        low, high = np.array(self._ends).T
        return InBlocks(
            bounds=bounds,
            n_features=self._source.shape[0],
            read=ReadData(self._source),
            span=(float(low.min()), float(high.max())),
            is_listed=self._is_listed,
        )


# -- what is checked once --------------------------------------------------------------------------------------------


def survey(
    structure: Factorisation,
    source: BlockSource,
    engine: BlockEngine,
    options: Any,
    labels: FeatureLabels,
    with_digests: bool = False,
) -> Blocked:
    """``structure.data`` with all that a pass over it tells; each block is held against what the engine takes."""
    digests, tallies, gathered = [], [], GatheredOffsets(source)
    constants, at_data, totals = [], [], np.zeros(2)
    observed, non_zero, is_integer = [], 0, True
    numbers = range(len(source.bounds) - 1)
    for number, (data, offsets) in enumerate(read_ahead(lambda n: as_data(source, n, labels), numbers)):
        require_once(structure, offsets)
        gathered.add(number, offsets)
        block = structure_of_samples(structure, data, offsets)
        check_values(block, int(source.bounds[number]))
        check_possible(block)
        can_run = engine.takes_block(block, options)
        if not can_run:
            raise UnsupportedModel(f"engine {engine.name!r} can't run block {number} of data: {can_run.reason}")
        digests += [_digest_of(data, offsets.background)] if with_digests else []
        constants.append(engine.constant(block))
        at_data += [] if engine.at_data is None else [engine.at_data(block)]
        tallies += [] if engine.tally is None else [engine.tally(block)]
        values = data.observed_values
        observed.append(block.shape[0] * block.shape[1] if data.is_complete else values.size)
        non_zero += int(np.count_nonzero(values))
        is_integer &= block.is_integer
        totals += typical_totals(block)
    if not totals[0] > 0:
        raise InputError("data", "no positive cell", "at least one: of zeros there is nothing to learn")
    return replace(
        cast(Blocked, structure.data),
        offsets=gathered.all(),
        observed=np.array(observed),
        non_zero=non_zero,
        is_integer=is_integer,
        constants=np.array(constants),
        at_data=np.array(at_data),
        totals=(float(totals[0]), float(totals[1])),
        tally=np.sum(tallies, axis=0) if tallies else None,
        digests=np.array(digests, dtype=np.uint64) if with_digests else None,
    )


def _digest_of(data: Data, background: Offset | None) -> int:
    """Of all cells of a block, of which there are, and of its background; of exposures a checkpoint holds all."""
    listed = (data.rows, data.cols) if isinstance(data, Cells) else (data.mask,)
    found = blake2b(repr((data.shape, data.is_complete)).encode(), digest_size=8)
    added = () if background is None else _numbers_of(background)
    found.update(repr([array.shape for array in added]).encode() if added else b"")
    for array in (data.values, *listed, *added):
        found.update(b"" if array is None else np.ascontiguousarray(array).data.cast("B"))
    return int.from_bytes(found.digest(), "little")


def _numbers_of(background: Offset) -> tuple[Array, ...]:
    """Of listed cells in the order of these."""
    if isinstance(background, Outer):
        return background.of_features, background.of_samples
    return (background.values if isinstance(background, Listed) else np.asarray(background),)


def check_values(block: Factorisation, first: int) -> None:
    """Finite and not negative; the first that is not is named."""
    data = cast(Data, block.data)
    for is_bad, what, expected in (
        (~np.isfinite(data.values), "not finite", "finite numbers"),
        (data.values < 0, "negative", "numbers >= 0"),
    ):
        if is_bad.any():
            at = np.unravel_index(int(np.argmax(is_bad)), is_bad.shape)
            row, column = at if isinstance(data, Dense) else (data.rows[at[0]], data.cols[at[0]])
            got = f"{np.sum(is_bad)} {what}, the first at feature {row}, sample {first + column}"
            raise InputError("data", got, expected)


def labels_of(source: Any, shape: tuple[int, int]) -> Mapping[str, Array]:
    """The source's labels of features and samples, where it has some."""
    given = getattr(source, "coords", None) or {}
    sizes = {"feature": shape[0], "obs": shape[1]}
    found = {dim: np.asarray(labels) for dim, labels in given.items() if dim in sizes and labels is not None}
    for dim, labels in found.items():
        if labels.shape != (sizes[dim],):
            raise InputError("data.coords", f"{labels.shape} labels of {dim!r}", f"{sizes[dim]}")
    return found


def labels_of_features(structure: Factorisation, of_source: Mapping[str, Array]) -> Array | None:
    """The model's labels of features, or the source's, which must not differ; 0, 1, 2, ... say nothing."""
    dim, given = structure.axes[0], of_source.get(ROWS)
    own = structure.coords.get(dim)
    if given is None or are_counted(given):
        return own
    if own is not None and not are_counted(own) and not np.array_equal(own, given):
        got, do = f"labels of {dim!r} that differ from the model's", "use the same, or declare the model without"
        raise InputError("data.coords", got, "the model's, in its order", do)
    return given

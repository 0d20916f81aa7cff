"""A Parquet file with a row for each count: columns of integers sample, feature and count, sorted by sample.

Row groups tell the least and the largest number of their samples, so that a block reads those which have its samples.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.sparse import from_parts
from nmf_zoo.verbs.block_source import BLOCK_CELLS

COLUMNS = ("sample", "feature", "count")
SORTED = "rows sorted by sample"


class Span(NamedTuple):
    """The least and largest number in a column of a row group."""

    least: int
    largest: int


class ParquetBlocks:
    """Row groups, small ones together, as blocks; samples are numbered from 0, and any may be without a row."""

    def __init__(self, path: Path, block: int | None = None, shape: tuple[int, int] | None = None):
        if find_spec("pyarrow") is None:
            do = "pip install 'nmf_zoo[parquet]'"
            raise InputError(str(path), "a Parquet file without pyarrow installed", "pyarrow", do)
        self.path, self._file, self._given = path, _open(path), (block, shape)
        names = self._file.schema_arrow.names
        if sorted(names) != sorted(COLUMNS):
            raise InputError(str(path), f"the columns {', '.join(names)}"[:200], f"{', '.join(COLUMNS)}")
        metadata = self._file.metadata
        groups = [group for group in range(metadata.num_row_groups) if metadata.row_group(group).num_rows]
        self._samples = {group: self._span(group, "sample") for group in groups}
        spans = list(self._samples.values())
        if not spans or any(b.least < a.largest for a, b in pairwise(spans)):
            raise InputError(str(path), "row groups whose samples overlap" if groups else "no rows", SORTED)
        found = max(self._span(group, "feature").largest for group in groups) + 1, spans[-1].largest + 1
        self.shape = found if shape is None else _check_shape(path, shape, found)
        n_samples = self.shape[1]
        self.bounds = self._bounds(n_samples) if block is None else [*range(0, n_samples, block), n_samples]

    def __reduce__(self) -> Any:
        """Another process opens it for itself."""
        return ParquetBlocks, (self.path.absolute(), *self._given)

    def _span(self, group: int, column: str) -> Span:
        """From the statistics of the file, or from the column where it has none."""
        where = f"{self.path}, row group {group}, column {column!r}"
        place = self._file.schema_arrow.names.index(column)
        statistics = self._file.metadata.row_group(group).column(place).statistics
        if statistics is not None and statistics.has_min_max:
            ends = statistics.min, statistics.max
        else:
            values = self._file.read_row_group(group, columns=[column])[column].to_numpy()
            ends = values.min(), values.max()
        if not all(isinstance(end, int | np.integer) for end in ends) or ends[0] < 0:
            raise InputError(where, f"values from {ends[0]!r} to {ends[1]!r}"[:120], "integers >= 0")
        return Span(int(ends[0]), int(ends[1]))

    def _bounds(self, n_samples: int) -> list[int]:
        """After the last sample of every row group, or of several small ones."""
        bounds, cells = [0], 0
        for group, span in list(self._samples.items())[:-1]:
            cells += self._file.metadata.row_group(group).num_rows
            if cells >= BLOCK_CELLS and span.largest + 1 > bounds[-1]:
                bounds.append(span.largest + 1)
                cells = 0
        return [*(bound for bound in bounds if bound < n_samples), n_samples]

    def read(self, number: int) -> Any:
        """Samples of a block, (features, n)."""
        first, last = self.bounds[number], self.bounds[number + 1]
        groups = [g for g, span in self._samples.items() if span.least < last and span.largest >= first]
        shape = self.shape[0], last - first
        table = self._file.read_row_groups(groups, columns=list(COLUMNS))
        sample, feature, count = (table[name].to_numpy() for name in COLUMNS)
        if np.any(sample[1:] < sample[:-1]):
            raise InputError(str(self.path), f"samples that fall within row groups {groups}", SORTED)
        kept = slice(*np.searchsorted(sample, (first, last)))
        parts = {"data": count[kept], "row": feature[kept], "col": sample[kept] - first}
        return from_parts(str(self.path), "coo", shape, parts)


def _check_shape(path: Path, given: Any, found: tuple[int, int]) -> tuple[int, int]:
    """The shape that was given, where there is room for all rows in it."""
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in given):
        raise InputError("shape", repr(given)[:60], "(features, samples), two integers")
    if given[0] < found[0] or given[1] < found[1]:
        raise InputError("shape", f"{tuple(given)}", f"at least {found}, as many as {path} has")
    return int(given[0]), int(given[1])


def _open(path: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except Exception as error:  # Arrow raises all sorts
        problem = " ".join(str(error).split())[:200]
        raise InputError(str(path), f"a file that can't be read ({problem})", "a complete Parquet file") from error

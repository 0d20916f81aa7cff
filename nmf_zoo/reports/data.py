"""The section on the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nmf_zoo.reports.page import facts, paragraph
from nmf_zoo.reports.source import Source
from nmf_zoo.results.run_attributes import MODEL
from nmf_zoo.structure import Cells, Factorisation


def data_parts(source: Source) -> list[str]:
    """Shape, zeros, missing cells and total of X, as far as the model or the result tells."""
    if source.structure is not None and source.structure.data is not None:
        return [facts(_of_structure(source.structure))]
    if source.is_stream:
        columns = int(source.group("fit")["columns"].item())
        pairs = [("features", _count(source.shape[0])), ("columns seen", _count(columns))]
        return [facts(pairs), paragraph("A stream learns from columns and forgets them: the result holds no data.")]
    if source.came_in_blocks and MODEL in source.attrs:
        about = str(source.attrs[MODEL]).splitlines()[0]
        return [paragraph(f"{about}. The result holds none of them.")]
    if not source.has("observed_data"):
        return [paragraph("The result holds no data (no group observed_data).")]
    return _of_result(source)


def _of_structure(structure: Factorisation) -> Iterator[tuple[str, str]]:
    """What the declaration knows."""
    data, (n_features, n_samples) = structure.data, structure.shape
    values = data.observed_values
    n_cells = n_features * n_samples
    known = n_cells if isinstance(data, Cells) and data.is_complete else values.size
    yield from _sizes(n_features, n_samples)
    yield "stored as", "a list of cells" if isinstance(data, Cells) else "a full matrix"
    yield from _values(values, known, n_cells)


def _of_result(source: Source) -> list[str]:
    """What the group observed_data tells."""
    group = source.group("observed_data")
    name = "X" if "X" in group else str(next(iter(group.data_vars)))
    array = group[name]
    values = array.to_numpy()
    if array.ndim == 2:
        is_known = np.isfinite(values)
        return [facts([*_sizes(*values.shape), *_values(values[is_known], int(is_known.sum()), values.size)])]
    features, samples, _ = source.shape
    pairs = [*_sizes(features, samples)] if features and samples else []
    share = f" of {features * samples:,} cells" if features and samples else ""
    pairs += [("cells listed", f"{values.size:,}{share}"), ("zeros among them", _count(int((values == 0).sum())))]
    pairs += _totals(values)
    note = (
        "The data are a list of cells. Whether the cells that are not listed are zeros or missing is said by the model"
    )
    where = ", below." if MODEL in source.attrs else ", not by the result: give the model as well."
    return [facts(pairs), paragraph(note + where)]


def _sizes(n_features: int, n_samples: int) -> Iterator[tuple[str, str]]:
    yield "features (rows)", _count(n_features)
    yield "samples (columns)", _count(n_samples)


def _values(values: np.ndarray, known: int, n_cells: int) -> Iterator[tuple[str, str]]:
    """``values`` are those of all cells that are known, or of all but zeros."""
    zeros = known - int(np.count_nonzero(values))
    yield "zeros", f"{zeros:,} ({zeros / max(known, 1):.1%} of the observed cells)"
    missing = n_cells - known
    yield "missing cells", f"{missing:,} ({missing / max(n_cells, 1):.1%})" if missing else "none"
    yield from _totals(values)


def _totals(values: np.ndarray) -> Iterator[tuple[str, str]]:
    if values.size:
        is_whole = bool(np.all(values == np.round(values)))
        yield "total", f"{values.sum():,.0f}" if is_whole else f"{values.sum():,.6g}"
        yield "range", f"{values.min():g} to {values.max():g}{', whole numbers' if is_whole else ''}"


def _count(n: int | None) -> str:
    return "unknown" if n is None else f"{n:,}"

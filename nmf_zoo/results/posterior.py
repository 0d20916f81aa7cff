"""The posterior of an InferenceData as its model sees it: factors draw by draw, in our orientation, and X's labels.

Draws that lie on disk are read some at a time (`BLOCK`), and let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.kernels.numerics.cells import cell_rates
from nmf_zoo.labels import contradict, flat_labels, in_words
from nmf_zoo.results.groups import Axis, axes_of
from nmf_zoo.results.modes import weighed_modes
from nmf_zoo.results.trace_storage import MEAN, MOMENTS
from nmf_zoo.runtime.arguments import needed_shapes, require_memory
from nmf_zoo.structure import CHUNK, Array, Factorisation, Unknown, slices

LEADING = ("chain", "draw")
INTERVAL = (0.05, 0.95)  # of draws, in tables and pictures
BLOCK = 1 << 23  # bytes of draws that are read at once
SMALLEST_MEAN = float(np.nextafter(0.0, 1.0))


class Draw(NamedTuple):
    """One draw: W (F, K), H (K, N), the values by name, and where it stands in the answer; and its number in the run.

    H has the samples that are asked for alone, in :meth:`Posterior.of_samples`.
    """

    W: Array
    H: Array
    values: dict[str, Array]
    at: tuple[int, int]
    place: tuple[int, int]


@dataclass(frozen=True)
class Posterior:
    """The draws of the factors (and of sigma) that are asked for.

    Attributes
    ----------
    structure : the model
    arrays : variable name -> (chain, draw, ...), all draws, in memory or on disk
    chains : labels of the chains
    draws : labels of the draws that are kept
    kept : their positions among all draws
    cols : positions of the samples whose H is read; None for all
    """

    structure: Factorisation
    arrays: dict[str, xr.Variable]
    chains: Array
    draws: Array
    kept: Array
    cols: Array | None = None

    def of_samples(self, cols: Array) -> Posterior:
        """The same draws with H of these samples alone, of which no others are read; all where some of H is known."""
        return replace(self, cols=cols) if self.structure.H.is_free else self

    @property
    def lead(self) -> tuple[int, int]:
        """(chains, kept draws)"""
        return len(self.chains), len(self.draws)

    @property
    def coords(self) -> dict[str, Array]:
        return {"chain": self.chains, "draw": self.draws}

    def __iter__(self) -> Iterator[Draw]:
        structure = self.structure
        for at, place, values in self._values():
            W, H = (factor.value(values) for factor in (structure.W, structure.H))
            yield Draw(W, H, values, at, place)

    @cached_property
    def numbers(self) -> list[int]:
        """Of the chains, which what is drawn for them depends on: their labels, where these are such; else places."""
        labels = self.chains
        is_numbered = labels.dtype.kind in "iu" and np.all(labels >= 0) and len(np.unique(labels)) == len(labels)
        return labels.tolist() if is_numbered else list(range(len(labels)))

    def _part(self, name: str) -> tuple[Any, ...]:
        """What is read of a draw of a variable."""
        if self.cols is None or name != self.structure.H.name:
            return ()
        at = slice(None), _as_slice(self.cols)
        return at[::-1] if self.structure.H.transposed else at

    def _values(self) -> Iterator[tuple[tuple[int, int], tuple[int, int], dict[str, Array]]]:
        """The values of each draw, with the places that a Draw has."""
        chains, draws = self.lead
        arrays = {name: array[(slice(None), slice(None), *self._part(name))] for name, array in self.arrays.items()}
        size = sum(array.nbytes // (array.shape[0] * array.shape[1]) for array in arrays.values())
        for chain in range(chains):
            for part in draw_parts(draws, size):
                kept = self.kept[part]
                block = {name: array[chain, _as_slice(kept)].to_numpy() for name, array in arrays.items()}
                for i, place in enumerate(kept):
                    values = {name: array[i] for name, array in block.items()}
                    yield (chain, part.start + i), (self.numbers[chain], int(place)), values


def open_posterior(
    idata: Any, structure: Factorisation, n_draws: int | None = None, others: Iterable[Unknown] = ()
) -> Posterior:
    """The posterior group, checked against the model; ``n_draws`` of each chain, evenly spaced.

    ``others`` : unknowns that draws are to hold beside those that X depends on directly
    """
    group = posterior_group(idata)
    shapes = needed_shapes(structure) | {own.name: own.variable_shape for own in others}
    arrays = {name: _variable_in(group, structure, name, shape) for name, shape in shapes.items()}
    check_labels(group, structure, shapes)
    kept = spaced(group.sizes["draw"], n_draws)
    chains, draws = group["chain"].to_numpy(), group["draw"].to_numpy()
    return Posterior(structure, arrays, chains, draws[kept], kept)


def draw_parts(n_draws: int, size: int) -> Iterator[slice]:
    """Slices of draws of ``size`` bytes each, about `BLOCK` bytes together."""
    step = max(1, BLOCK // max(1, size))
    return slices(n_draws, step)


def _as_slice(positions: Array) -> Any:
    """Consecutive positions as a slice, which copies nothing."""
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1) if last - first == len(positions) - 1 else positions


def posterior_group(idata: Any) -> xr.Dataset:
    """The draws."""
    names = _group_names(idata)
    if "posterior" not in names:
        means = MOMENTS in names
        got, do = ("means and variances only", 'sample with keep="draws"') if means else ("no posterior group", "")
        raise InputError("idata", got, "draws" if means else "the result of nz.sample or nz.fit", do)
    return _compat.group(idata, "posterior")


def draws_or_means(idata: Any, names: Sequence[str] = ()) -> xr.Dataset:
    """The draws; of a run that kept moments, one draw of each chain, the mean.

    Chains over blocks keep the moments of all variables and draws of some, of H those of few samples if any: these
    where they are all that there is of the variables ``names``.
    """
    groups = _group_names(idata)
    if MOMENTS not in groups:
        return posterior_group(idata)
    moments = _compat.group(idata, MOMENTS)
    means = {str(name).removesuffix(MEAN): moments[name] for name in moments if str(name).endswith(MEAN)}
    if names and "posterior" in groups:
        draws = _compat.group(idata, "posterior")
        sizes = {name: draws[name].isel(draw=0).sizes for name in names if name in draws}
        if all(sizes.get(name) == means[name].sizes for name in names if name in means) and sizes:
            return draws
    return xr.Dataset({name: mean.expand_dims(draw=1, axis=1) for name, mean in means.items()})


def with_known_weights(idata: Any, group: xr.Dataset, weights: str) -> xr.Dataset:
    """The draws, joined by the weights where they were known, as those of a projection are."""
    if weights in group or "constant_data" not in _compat.group_names(idata):
        return group
    known = _compat.group(idata, "constant_data")
    if weights not in known:
        return group
    return group.assign({weights: known[weights].expand_dims({dim: group[dim] for dim in LEADING})})


def only_draws(idata: Any) -> Any:
    """A result without moments beside its draws, which are of W alone, or of few samples, where these are of all."""
    names = _group_names(idata)
    if not {"posterior", MOMENTS} <= set(names):
        return idata
    groups = {name: _compat.group(idata, name) for name in names if name != MOMENTS}
    return _compat.of_kind(idata, groups, idata.attrs)


def best_chain(idata: Any) -> int:
    """Where the chain with the highest mean lp stands; 0 where there is no lp, and of a fit: its best restart.

    Where modes have been weighed, of the heaviest: lp is a density at draws, and not what a mode weighs.
    """
    modes = weighed_modes(idata)
    eligible = None if modes is None else _in_heaviest(modes["mode_of_chain"].to_numpy())
    if "fit" not in _compat.group_names(idata) and "sample_stats" in _compat.group_names(idata):
        stats = _compat.group(idata, "sample_stats")
        if "lp" in stats:
            lp = stats["lp"].mean("draw").to_numpy()
            return int(np.argmax(lp if eligible is None else np.where(eligible, lp, -np.inf)))
    return 0 if eligible is None else int(np.argmax(eligible))


def _in_heaviest(mode_of_chain: Array) -> Array | None:
    """Which chains are in the heaviest mode of those that are there; None where all were passed over (-1)."""
    weighed = mode_of_chain[mode_of_chain >= 0]
    return mode_of_chain == weighed.min() if weighed.size else None


def _group_names(idata: Any) -> list[str]:
    if not _compat.is_result(idata):
        raise InputError("idata", type(idata).__name__, "the result of nz.sample or nz.fit")
    return _compat.group_names(idata)


def mean_over_draws(array: xr.DataArray, of: Callable[[xr.DataArray], xr.DataArray] = lambda part: part) -> Any:
    """The mean over the draws of what ``of`` makes of them, a part of the draws at a time."""
    n_draws = array.sizes["draw"]
    parts = draw_parts(n_draws, array.nbytes // n_draws)
    return sum(of(array.isel(draw=part).compute()).sum("draw") for part in parts) / n_draws


def variable_of(group: xr.Dataset, structure: Factorisation, name: str, shape: tuple[int, ...]) -> xr.DataArray:
    """(chain, draw, ...) draws of a variable of the model, along its dims in the model's order."""
    return group[name].transpose(*_variable_in(group, structure, name, shape).dims)


def _variable_in(group: xr.Dataset, structure: Factorisation, name: str, shape: tuple[int, ...]) -> xr.Variable:
    """The same without labels, which takes a tenth of the time."""
    if name not in group:
        found = f"a posterior of {', '.join(map(str, group.data_vars)) or 'nothing'}"
        raise InputError("idata", found, f"one that holds {name}", f"sample with var_names that include {name!r}")
    array, dims = group.variables[name].transpose(*LEADING, ...), structure.dims.get(name, ())
    if array.dims[2:] != dims and {*array.dims[2:]} == {*dims}:
        array = array.transpose(*LEADING, *dims)
    if array.shape[2:] != shape:
        raise InputError(
            "idata", f"{name} of shape {array.shape[2:]}", f"{shape}, as in the model", "give the model it came from"
        )
    return array


def check_labels(group: xr.Dataset, structure: Factorisation, names: Iterable[str]) -> None:
    """Variables go by position, so that labels in another order than the model's are an error."""
    dims = {dim for name in names for dim in group.variables[name].dims}
    for dim, labels in axes_of(structure):
        found = group.variables[dim].to_numpy() if dim in dims and dim in group.coords else labels
        if not contradict(found, labels):
            continue
        if [in_words(label) for label in found] != [in_words(label) for label in labels]:  # dates of a file are text
            do = f"give the model it came from, or sort the result: idata.sel({dim}=[...])"
            raise InputError(
                "idata", f"labels of {dim!r} that differ from the model's", "the model's, in its order", do
            )


def spaced(available: int, wanted: int | None) -> Array:
    """Positions of ``wanted`` draws, evenly spaced; all when None."""
    if wanted is None:
        return np.arange(available)
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or not 1 <= wanted <= available:
        raise InputError("n_draws", repr(wanted), f"an integer from 1 to {available}, the draws of each chain")
    return np.round(np.linspace(0, available - 1, wanted)).astype(np.int64)


def positions_of(axis: Axis, name: str, labels: Any) -> Array:
    """Positions of labels on an axis; all when None."""
    if labels is None:
        return np.arange(len(axis.labels))
    several = (
        [labels] if np.ndim(labels) == 0 else labels if isinstance(labels, list | pd.Index) else np.asarray(labels)
    )
    wanted = flat_labels(pd.Index(several))
    found = pd.Index(axis.labels).get_indexer_for(wanted)
    if not wanted.size or np.any(found < 0):
        missing = [str(label) for label in wanted[: len(found)][found[: len(wanted)] < 0][:5]]
        got = f"unknown labels {', '.join(missing)}" if wanted.size else "no labels"
        known = ", ".join(map(str, axis.labels[:3]))
        raise InputError(name, got, f"labels of the dim {axis.dim!r}: {known}, ... ({len(axis.labels)} in all)")
    return found


def cells_of(structure: Factorisation, cells: Any) -> tuple[Array, Array]:
    """``cells=(rows, cols)``, positions counted from 0, as two integer arrays."""
    expected = "(rows, cols), two lists of positions of the same length"
    try:
        rows, cols = (np.asarray(index) for index in cells)
    except (TypeError, ValueError) as error:
        raise InputError("cells", repr(cells)[:60], expected) from error
    if rows.ndim != 1 or rows.shape != cols.shape or rows.dtype.kind not in "iu" or cols.dtype.kind not in "iu":
        raise InputError(
            "cells", f"shapes {rows.shape} and {cols.shape}, dtypes {rows.dtype} and {cols.dtype}", expected
        )
    for index, size, what in ((rows, structure.shape[0], "rows"), (cols, structure.shape[1], "cols")):
        if not index.size or index.min() < 0 or index.max() >= size:
            got = f"{what} from {index.min()} to {index.max()}" if index.size else "no cell"
            raise InputError("cells", got, f"positions from 0 to {size - 1}")
    return rows.astype(np.int64), cols.astype(np.int64)


def cell_coords(structure: Factorisation, dim: str, rows: Array, cols: Array) -> dict[str, Any]:
    """Feature and sample labels of listed cells, along ``dim``."""
    places = zip(axes_of(structure), (rows, cols), strict=True)
    return {dim: np.arange(len(rows))} | {axis.dim: (dim, axis.labels[at]) for axis, at in places}


def mean_at(structure: Factorisation, draw: Draw, rows: Array, cols: Array, in_H: Array | None = None) -> Array:
    """The mean of X at listed cells, (cells,): to the last bit the same whichever other cells are listed.

    ``in_H`` : where their samples stand in the draw's H, of which it may have some alone; None for ``cols``.

    A mean that is positive, but smaller than any double, is the smallest one: of a factor drawn at 1e-170 and one at
    1e-300 the logarithm is finite.
    """
    in_H = cols if in_H is None else in_H
    rates = cell_rates(np.ascontiguousarray(draw.W), draw.H, rows, in_H)
    mean = structure.exposure_at(rows, cols) * rates + structure.background_at(rows, cols)
    lost = np.flatnonzero(mean == 0.0)
    if lost.size:
        is_positive = np.zeros(lost.size, dtype=bool)
        for w, h in zip(draw.W.T > 0.0, draw.H > 0.0, strict=True):
            is_positive |= w[rows[lost]] & h[in_H[lost]]
        mean[lost[is_positive]] = SMALLEST_MEAN
    return mean


def grid_cells(rows: Array, cols: Array) -> tuple[Array, Array]:
    """Every cell of these rows and columns, row by row."""
    return np.repeat(rows, len(cols)), np.tile(cols, len(rows))


def labelled_grid(out: Array, posterior: Posterior, rows: Array, cols: Array) -> xr.DataArray:
    feature, obs = axes_of(posterior.structure)
    coords = posterior.coords | {feature.dim: feature.labels[rows], obs.dim: obs.labels[cols]}
    dims = (*LEADING, feature.dim, obs.dim)
    return xr.DataArray(out, dims=dims, coords=coords, name=posterior.structure.likelihood.name)


def column_parts(n_rows: int, n_cols: int) -> Iterator[slice]:
    """Slices of columns of about 4 chunks of cells."""
    return slices(n_cols, max(1, 4 * CHUNK // n_rows))


def require_answer(posterior: Posterior, n_cells: int, do: str) -> None:
    chains, draws = posterior.lead
    require_memory("n_draws", f"{chains} x {draws} draws of {n_cells} cells", 8.0 * chains * draws * n_cells, do)

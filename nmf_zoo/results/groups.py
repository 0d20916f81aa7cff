"""Traces to InferenceData: names, dims and coords of the model on the arrays of an engine.

Every array of draws is (chain, draw, *variable). The groups are those of PyMC: ``posterior``, ``sample_stats``,
``observed_data``, ``constant_data``, and ``fit`` for optimisers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.structure import Array, Factorisation

LEADING = ("chain", "draw")
FOLLOWED = ("lp", "mean")  # of sample_stats: the log joint density and cells of W H, which no labelling changes
COVERAGE = "coverage"  # the attribute on whether data lie where the model expects them, see prediction/misfit.py
DRAWS_ARE, PARTICLES = "draws_are", "particles"  # an attribute of results whose draws are no steps of a chain
OF_STATS = {"temperature": ("replica",), "exchange_rate": ("pair",)}  # dims of statistics beside LEADING
CHECKED_LABELS = ("checked_feature", "checked_obs")  # of the cells that are followed, where the model has labels
NO_OTHERS: tuple[Mapping[str, Any], Mapping[str, Any]] = (MappingProxyType({}), MappingProxyType({}))
MOST_COUNTED = 4096  # labels 0, 1, 2, ... of a dim, whose index is kept for the next dataset
CHECKED_CELLS = 32  # cells of W H whose mixing is followed, whatever the labelling of the components


def checked_cells(shape: tuple[int, int]) -> tuple[Array, Array]:
    """(rows, cols) of the cells of W H that convergence checks follow: fixed by the shape alone."""
    n_cells = shape[0] * shape[1]
    flat = np.sort(np.random.default_rng(0).choice(n_cells, size=min(CHECKED_CELLS, n_cells), replace=False))
    rows, cols = np.unravel_index(flat, shape)
    return rows, cols


class Axis(NamedTuple):
    """A dim and its labels."""

    dim: str
    labels: Array


def axes_of(structure: Factorisation) -> tuple[Axis, Axis]:
    """Dims and labels of X: the model's where it has some, else feature and obs, counted from 0."""
    of_x = structure.dims.get(structure.likelihood.name, ())
    if len(of_x) != 2:
        left = structure.W.orient_dims(structure.dims.get(structure.W.name, ("feature", "component")))
        right = structure.H.orient_dims(structure.dims.get(structure.H.name, ("component", "obs")))
        of_x = left[0], right[1]
    feature, obs = (Axis(d, structure.coords.get(d, np.arange(n))) for d, n in zip(of_x, structure.shape, strict=True))
    return feature, obs


def variable_dims(structure: Factorisation, name: str, ndim: int) -> tuple[str, ...]:
    """The dims of a model variable; ArviZ's default names where the model has none."""
    dims = structure.dims.get(name, ())
    return dims if len(dims) == ndim else tuple(f"{name}_dim_{axis}" for axis in range(ndim))


def labelled(variables: Mapping[str, Any], coords: Mapping[str, Any]) -> xr.Dataset:
    """A dataset; its indexes take longer than the rest of a small one, so that those of counted dims are made once."""
    counted = {name: len(labels) for name, labels in coords.items() if _is_counted(labels)}
    found = _counted(tuple(counted.items()))
    if len(counted) < len(coords):
        others = xr.Coordinates({name: labels for name, labels in coords.items() if name not in counted})
        own = {**found.variables, **others.variables}
        found = xr.Coordinates({name: own[name] for name in coords}, {**found.xindexes, **others.xindexes})
    return xr.Dataset(variables, coords=found)


def coords_along(group: xr.Dataset, dims: Iterable[Any]) -> xr.Coordinates:
    """The coordinates that a dataset has along single ones of these dims, and their indexes."""
    own = {name: group.variables[name] for name in group.coords}
    found = {name: one for name, one in own.items() if any(set(one.dims) <= {dim} for dim in dims)}
    return xr.Coordinates(found, {name: index for name, index in group.xindexes.items() if name in found})


def _is_counted(labels: Any) -> bool:
    if not isinstance(labels, np.ndarray) or labels.dtype != np.int64 or labels.ndim != 1:
        return False
    return len(labels) <= MOST_COUNTED and np.array_equal(labels, np.arange(len(labels)))


@lru_cache(maxsize=256)
def _counted(lengths: tuple[tuple[str, int], ...]) -> xr.Coordinates:
    """Numbers from 0 along these dims."""
    return xr.Coordinates({dim: np.arange(length) for dim, length in lengths})


def as_dataset(
    structure: Factorisation,
    arrays: Mapping[str, Array],
    leading: tuple[str, ...],
    owners: Mapping[str, str] = MappingProxyType({}),
    others: tuple[Mapping[str, Any], Mapping[str, Any]] = NO_OTHERS,
) -> xr.Dataset:
    """Label arrays of model variables; ``leading`` are the dims before the variable's own.

    ``owners`` name the variable whose dims an array has, where it isn't that variable itself. ``others`` are variables
    that the model does not have, and their coordinates: a dataset that is made at once takes a third of the time.
    """
    variables, coords = {}, {}
    listed = structure.dims.get(structure.likelihood.name, ()) if structure.cells is not None else ()
    for name, array in arrays.items():
        own = variable_dims(structure, owners.get(name, name), array.ndim - len(leading))
        variables[name] = xr.Variable(leading + own, array)
        for dim, length in zip(own, array.shape[len(leading) :], strict=True):
            if dim in structure.coords:
                coords[dim] = structure.coords[dim]
            elif dim not in listed:  # numbers of listed cells would take more memory than the cells
                coords[dim] = np.arange(length)
    shape = next((array.shape for array in arrays.values()), ())
    coords |= {dim: np.arange(length) for dim, length in zip(leading, shape, strict=False)}
    return labelled({**variables, **others[0]}, {**coords, **others[1]})


def stats_dataset(structure: Factorisation, stats: Mapping[str, Array]) -> xr.Dataset:
    """Sampler statistics, (chain, draw) each, but those of `OF_STATS`; ``mean`` with its cells' places and labels."""
    scalars = {
        name: xr.Variable((*LEADING, *OF_STATS.get(name, ())), value) for name, value in stats.items() if name != "mean"
    }
    shape = next(iter(stats.values())).shape
    dataset = labelled(scalars, {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])})
    if "mean" not in stats:
        return dataset
    rows, cols = checked_cells(structure.shape)
    dataset["mean"] = (("chain", "draw", "checked_cell"), stats["mean"])
    labels: dict[str, Any] = {
        name: ("checked_cell", np.asarray(axis.labels)[places])
        for name, axis, places in zip(CHECKED_LABELS, axes_of(structure), (rows, cols), strict=True)
        if axis.dim in structure.coords
    }
    return dataset.assign_coords(
        checked_cell=np.arange(len(rows)),
        checked_row=("checked_cell", rows),
        checked_col=("checked_cell", cols),
        **labels,
    )


def solution_groups(
    structure: Factorisation,
    solutions: list[Any],
    lp: list[Array],
    reasons: Mapping[str, str],
    var_names: Sequence[str] | None,
) -> dict[str, xr.Dataset]:
    """Stack the solutions of restarts, best first, into posterior, sample_stats (``lp`` of each draw) and fit."""
    values = _stack(solution.values for solution in solutions)
    kept = values if var_names is None else {name: values[name] for name in var_names}
    return {
        "posterior": as_dataset(structure, kept, LEADING),
        "sample_stats": stats_dataset(structure, {"lp": np.stack(lp)}),
        "fit": fit_dataset(structure, solutions, reasons),
    }


def fit_dataset(structure: Factorisation, solutions: list[Any], reasons: Mapping[str, str]) -> xr.Dataset:
    """The fit group: objective (chain, iteration), NaN after a restart's end, and one entry per chain of the rest."""
    objective = pad_rows([np.array(solution.objective) for solution in solutions])
    status = [solution.status for solution in solutions]
    parts = [_series_apart(solution.parameters) for solution in solutions]
    parameters = _stack(arrays for arrays, _ in parts)
    owners = {name: name.rsplit("_", 1)[0] for name in parameters}  # W_shape, of q(W), has W's dims
    found = {name: _stack_series([series[name] for _, series in parts]) for name in parts[0][1]} | {
        "objective": (("chain", "iteration"), objective),
        "iterations": ("chain", [len(solution.objective) for solution in solutions]),
        "residual": ("chain", [solution.residual for solution in solutions]),
        "converged": ("chain", [word == "converged" for word in status]),
        "status": ("chain", status),
        "reason": ("chain", [reasons[word] for word in status]),
    }
    coords = {"chain": np.arange(len(solutions)), "iteration": np.arange(1, objective.shape[1] + 1)}
    return as_dataset(structure, parameters, ("chain",), owners, (found, coords))


class Series(NamedTuple):
    """What an optimiser reports beside its parameters: dims, "iteration" first if it is one of them, and values."""

    dims: tuple[str, ...]
    values: Array


def _series_apart(parameters: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Series]]:
    """(arrays with the dims of their variables, series)"""
    series = {name: value for name, value in parameters.items() if isinstance(value, Series)}
    return {name: value for name, value in parameters.items() if name not in series}, series


def _stack_series(series: list[Series]) -> xr.Variable:
    rows = [np.asarray(one.values) for one in series]
    dims = series[0].dims
    return xr.Variable(("chain", *dims), pad_rows(rows) if dims[:1] == ("iteration",) else np.stack(rows))


def pad_rows(arrays: list[Array]) -> Array:
    """Arrays of different lengths as one (array, row, ...), NaN after the end of the shorter ones."""
    out = np.full((len(arrays), max(len(array) for array in arrays), *arrays[0].shape[1:]), np.nan)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def _stack(dicts: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """Arrays of one chain each as arrays (chain, ...); those of a single chain are not copied."""
    rows = list(dicts)
    if len(rows) == 1:
        return {name: array[None] for name, array in rows[0].items()}
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def data_groups(
    structure: Factorisation, observed: Mapping[str, Array], constants: Mapping[str, Array]
) -> dict[str, xr.Dataset]:
    """observed_data and constant_data."""
    return {
        "observed_data": _with_cell_labels(structure, as_dataset(structure, observed, ())),
        "constant_data": as_dataset(structure, constants, ()),
    }


def plain_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a run as files can hold them."""
    return {name: _plain(value) for name, value in attrs.items()}


def pack(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """Put the groups of a run together, with its attributes."""
    return _compat.inference_data(groups, plain_attrs(attrs))


def _with_cell_labels(structure: Factorisation, dataset: xr.Dataset) -> xr.Dataset:
    """Give a list of cells its feature and sample labels."""
    for dim, labels in structure.cell_labels.items():
        if "cell" in dataset.dims and dim not in dataset.dims:
            dataset = dataset.assign_coords({dim: ("cell", labels)})
    return dataset


def _plain(value: Any) -> Any:
    """What netCDF can hold: numbers and text."""
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else str(value)

"""The only place that knows library versions: ArviZ 0.x (``az.InferenceData``) and ArviZ 1.x (``xarray.DataTree``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.files import check_result, replacing
from nmf_zoo.netcdf import write_netcdf
from nmf_zoo.options import names_checked

IS_TREE = int(version("arviz").split(".")[0]) >= 1
SUFFIXES = (".nc", ".zarr")
# Attributes of a store while it is being written (see results/stores.py): which draws are there, and whose they are.
# And that each chunk was written, also one of nothing but NaN or 0, which Zarr leaves out of itself.
OF_STORE = DRAWN, READABLE, RUN_ID, ALL_CHUNKS = "drawn", "readable", "run_id", "all_chunks"
# The attribute of a file that numbers how groups and dims are named in it. In 1, which has no number, the columns of X
# were the dim "sample".
LAYOUT, THIS_LAYOUT = "layout", 2


def result_type() -> Any:
    """The class of results. ArviZ 0.x takes a second or more to import, matplotlib included: not before one is made."""
    return xr.DataTree if IS_TREE else import_module("arviz").InferenceData


def is_result(value: Any) -> bool:
    """Whether a value is a result; a tree of its groups is one beside ArviZ 0.x, too, which need not be imported."""
    arviz = None if IS_TREE else sys.modules.get("arviz")
    return isinstance(value, (xr.DataTree, getattr(arviz, "InferenceData", xr.DataTree)))


class Group(Protocol):
    """What a type checker knows of a group of a result, an ``xarray.Dataset`` or a node of a ``DataTree``."""

    attrs: dict[Any, Any]

    def __getitem__(self, name: str, /) -> xr.DataArray: ...

    def __getattr__(self, name: str) -> Any: ...


class Result(Protocol):
    """What type checkers know of a result, whether it is an ``az.InferenceData`` or, of ArviZ 1.x, an ``xr.DataTree``.

    Attributes
    ----------
    posterior, sample_stats, observed_data : groups that all results have; others can be had by their names, too
    attrs : engine, options, seed, versions
    """

    attrs: dict[Any, Any]

    @property
    def posterior(self) -> Group: ...

    @property
    def sample_stats(self) -> Group: ...

    @property
    def observed_data(self) -> Group: ...

    def __getitem__(self, group: str, /) -> Group: ...

    def __getattr__(self, name: str) -> Any: ...


def inference_data(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """A result of these groups, without those that are empty; ``attrs`` go to the root and to the posterior group."""
    if IS_TREE:
        return tree_of(groups, attrs)
    return result_type()(**_filled(groups, attrs), attrs=dict(attrs))


def tree_of(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> xr.DataTree:
    """The same as a tree, which results are beside ArviZ 1.x."""
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=dict(attrs)), **_filled(groups, attrs)})


def _filled(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> dict[str, xr.Dataset]:
    filled = {name: dataset for name, dataset in groups.items() if dataset.data_vars}
    if attrs and "posterior" in filled:
        filled["posterior"] = filled["posterior"].assign_attrs(attrs)
    return filled


def group_names(idata: Any) -> list[str]:
    """The names of the groups at the top level."""
    return list(idata.children) if isinstance(idata, xr.DataTree) else list(idata.groups())


def group(idata: Any, name: str) -> xr.Dataset:
    """One group as a Dataset."""
    return idata[name].to_dataset() if isinstance(idata, xr.DataTree) else idata[name]


def of_kind(idata: Any, groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """A result of these groups, of the class of ``idata``."""
    return tree_of(groups, attrs) if isinstance(idata, xr.DataTree) else inference_data(groups, attrs)


def with_groups(idata: Any, changed: Mapping[str, xr.Dataset]) -> Any:
    """A new result, ``idata`` with some groups added or replaced."""
    groups = {name: group(idata, name) for name in group_names(idata)}
    return of_kind(idata, {**groups, **changed}, idata.attrs)


@names_checked
def save(idata: Any, path: str | Path) -> None:
    """Write to netCDF (``.nc``) or Zarr (``.zarr``). The result takes its place at once, when it is complete.

    Raises
    ------
    InputError : no result, or a path that can't be written to
    NotWritten : the disk is full, or the system refuses for another reason; what was there before still is
    """
    path = Path(path)
    if not is_result(idata):
        expected = f"a result, {result_type().__name__}"
        raise InputError("idata", f"an object of type {type(idata).__name__}", expected)
    if path.suffix not in SUFFIXES:
        raise InputError("path", repr(str(path)), f"a name that ends in {' or '.join(SUFFIXES)}")
    check_result(path)
    tree = idata if isinstance(idata, xr.DataTree) else idata.to_datatree()
    whole = tree.copy(deep=False)
    whole.attrs = {**tree.attrs, LAYOUT: THIS_LAYOUT}
    if path.suffix == ".nc":
        write_netcdf(whole, path)
        return
    if find_spec("zarr") is None:
        raise InputError("path", f"{str(path)!r} without zarr", "zarr installed", "pip install 'nmf_zoo[zarr]'")
    whole.attrs[ALL_CHUNKS] = True
    with replacing(path) as partial:  # the draws may be read from ``path`` itself
        # Format 3 has no settled way to hold text labels.
        whole.to_zarr(str(partial), mode="w", zarr_format=2, write_empty_chunks=True)


def first_draws(dataset: xr.Dataset, chains: Sequence[int], length: int) -> xr.Dataset:
    """The first draws of some chains, these counted from 0 again; a dataset without draws as it is."""
    if not {"chain", "draw"} <= set(dataset.dims):
        return dataset
    if list(chains) != list(range(dataset.sizes["chain"])):
        dataset = dataset.isel(chain=list(chains)).assign_coords(chain=range(len(chains)))
    return dataset.isel(draw=slice(length)) if length < dataset.sizes["draw"] else dataset

"""The only place that knows library versions: ArviZ 0.x (``az.InferenceData``) and ArviZ 1.x (``xarray.DataTree``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import arviz as az
import xarray as xr

from nmf_zoo.errors import InputError

INFERENCE_DATA: Any = vars(az).get("InferenceData", xr.DataTree)
SUFFIXES = (".nc", ".zarr")
IS_TREE = INFERENCE_DATA is xr.DataTree


def inference_data(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """An InferenceData of these groups; ``attrs`` go to the root and to the posterior group."""
    filled = {name: dataset for name, dataset in groups.items() if dataset.data_vars}
    if "posterior" in filled:
        filled["posterior"] = filled["posterior"].assign_attrs(attrs)
    if IS_TREE:
        return xr.DataTree.from_dict({"/": xr.Dataset(attrs=dict(attrs)), **filled})
    return INFERENCE_DATA(**filled, attrs=dict(attrs))


def group_names(idata: Any) -> list[str]:
    """The names of the groups at the top level."""
    return list(idata.children) if IS_TREE else list(idata.groups())


def group(idata: Any, name: str) -> xr.Dataset:
    """One group as a Dataset."""
    return idata[name].to_dataset() if IS_TREE else idata[name]


def with_groups(idata: Any, changed: Mapping[str, xr.Dataset]) -> Any:
    """A new InferenceData, ``idata`` with some groups added or replaced."""
    groups = {name: group(idata, name) for name in group_names(idata)}
    return inference_data({**groups, **changed}, idata.attrs)


def save(idata: Any, path: str | Path) -> None:
    """Write to netCDF (``.nc``) or Zarr (``.zarr``)."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError("path", repr(str(path)), f"a name that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise InputError("path", f"the missing folder {str(path.parent)!r}", "a folder that exists", "make it")
    tree = idata if IS_TREE else idata.to_datatree()
    if path.suffix == ".zarr":
        tree.to_zarr(str(path), mode="w", zarr_format=2)  # format 3 has no settled way to hold text labels
    else:
        tree.to_netcdf(str(path), engine="h5netcdf")


def load(path: str | Path) -> Any:
    """Read what :func:`save` wrote, into memory; nothing stays open."""
    engine = "zarr" if str(path).endswith(".zarr") else "h5netcdf"
    with xr.open_datatree(str(path), engine=engine) as tree:
        groups = {name: tree[name].to_dataset().load() for name in tree.children}
        return inference_data(groups, {str(name): value for name, value in tree.attrs.items()})

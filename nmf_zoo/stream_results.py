"""What a stream gives, under the model's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.results import as_dataset
from nmf_zoo.results.keeping import MEAN, SD
from nmf_zoo.structure import Array, Factorisation


def as_dims(structure: Factorisation) -> tuple[str, ...]:
    """The dims of W in the model."""
    dims = structure.dims.get(structure.W.name, ())
    return dims if len(dims) == 2 else tuple(f"{structure.W.name}_dim_{axis}" for axis in range(2))


def component_dim(structure: Factorisation) -> str:
    """The dim of W's components."""
    return structure.W.orient_dims(as_dims(structure))[1]


def activations_dataset(structure: Factorisation, found: dict[str, Array], labels: Array) -> xr.Dataset:
    """Activations of columns with these labels, and the shares of cells, if an engine gave them."""
    H, kinds = structure.H, {"mean": MEAN, "sd": SD}
    arrays = {f"{H.name}{end}": H.orient(found[kind]) for kind, end in kinds.items() if kind in found}
    dataset = as_dataset(structure, arrays, (), dict.fromkeys(arrays, H.name))
    feature, sample = structure.axes
    dataset = dataset.assign_coords({sample: labels})
    if "share" not in found:
        return dataset
    known = {feature: structure.coords.get(feature, np.arange(structure.shape[0]))}
    share = ((component_dim(structure), feature, sample), found["share"])
    return dataset.assign(share=share).assign_coords(known)


def trace_dataset(structure: Factorisation, trace: dict[str, Any], columns_seen: int) -> xr.Dataset:
    """What was followed along the stream."""
    component = component_dim(structure)
    norms = np.array(trace["norms"]).reshape(-1, structure.rank)
    labels = structure.coords.get(component, np.arange(structure.rank))
    return xr.Dataset(
        {
            "column_norm": (("chain", "record", component), norms[None]),
            "columns": ("chain", [columns_seen]),
            "steps": ("chain", [trace["steps"]]),
        },
        coords={"chain": [0], "record": trace["columns"], component: labels},
    )

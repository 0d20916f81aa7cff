"""What a stream gives, under the model's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.results import as_dataset
from nmf_zoo.results.groups import variable_dims
from nmf_zoo.results.keeping import MEAN, SD
from nmf_zoo.structure import Array, Factorisation, Fixed


def own_dims(structure: Factorisation) -> tuple[str, ...]:
    """The dims of W in the model: that of its features, that of its components. A constant has no name of its own."""
    return structure.W.orient_dims(variable_dims(structure, structure.W.name or "W", 2))


def component_dim(structure: Factorisation) -> str:
    """The dim of W's components."""
    return own_dims(structure)[1]


def weights_array(structure: Factorisation, values: dict[str, Array]) -> xr.DataArray:
    """W in its own dims; one that is known is not among the values."""
    factor, name = structure.W, structure.W.name or "W"
    found = factor.orient(factor.prior.value).copy() if isinstance(factor.prior, Fixed) else values[name]
    return as_dataset(structure, {name: found}, ())[name]


def activations_dataset(structure: Factorisation, found: dict[str, Array], labels: Array) -> xr.Dataset:
    """Activations of columns with these labels, and the shares of cells, if an engine gave them."""
    H, kinds = structure.H, {"mean": MEAN, "sd": SD}
    arrays = {f"{H.name}{end}": H.orient(found[kind]) for kind, end in kinds.items() if kind in found}
    dataset = as_dataset(structure, arrays, (), dict.fromkeys(arrays, H.name))
    dataset = dataset.assign_coords({H.orient_dims(variable_dims(structure, H.name, 2))[1]: labels})
    if "share" not in found:
        return dataset
    feature, sample = structure.axes
    dataset = dataset.assign_coords({sample: labels})
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

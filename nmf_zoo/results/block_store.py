"""A result of data in blocks; its H may never be in memory: the rows go to a Zarr store, a chunk for each block.

Blocks of one size have chunks of their own; where sizes differ, chunks are those of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.files import replacing
from nmf_zoo.results.groups import LEADING, as_dataset, plain_attrs
from nmf_zoo.results.loading import load
from nmf_zoo.results.posterior import posterior_group
from nmf_zoo.results.stores import DIMS, Store, writing_all
from nmf_zoo.structure import Array, Factorisation

BLOCKS = "blocks"  # the attribute of a result of data in blocks: how many there were
CONSTANTS, EXPOSURE = "constant_data", "exposure"  # where exposures of samples are, when they came with these


def as_fitted(structure: Factorisation, idata: Any, group: xr.Dataset | None = None) -> Factorisation:
    """The model of all samples of a result whose data came in blocks, of which ``structure`` says nothing.

    ``group`` : whose H says which samples these are; default the draws.
    Any other is as it is, also of a result that has no draws.
    """
    if structure.data is not None or BLOCKS not in getattr(idata, "attrs", {}):
        return structure
    group = posterior_group(idata) if group is None else group
    if structure.H.name not in group:
        return structure
    H = group[structure.H.name].transpose(*LEADING, ...)
    rank, samples = structure.H.orient(np.broadcast_to(0.0, H.shape[2:])).shape
    if rank != structure.rank:
        do = "give the model it came from"
        raise InputError(
            "idata", f"{structure.H.name} of {number_of(rank, 'component')}", f"{structure.rank}, as in the model", do
        )
    labels = {str(dim): coord.to_numpy() for dim, coord in group.coords.items() if dim not in LEADING}
    found = replace(structure, H=replace(structure.H, shape=(rank, samples)), coords={**structure.coords, **labels})
    constants = _compat.group(idata, CONSTANTS) if CONSTANTS in _compat.group_names(idata) else {}
    if EXPOSURE not in constants or structure.likelihood.exposure is not None:
        return found
    exposure = constants[EXPOSURE]
    (obs,) = exposure.dims
    if exposure.size != samples:  # of which draws of H are some
        exposure = exposure.sel({obs: H[obs]})
    return replace(found, likelihood=replace(found.likelihood, exposure=exposure.to_numpy()[None]))


class OfSamples(NamedTuple):
    """A variable with one entry for each component and sample, block by block.

    Attributes
    ----------
    group, name : where it goes
    leading : dims before those of H, that of the chains first, all others of length one
    chains : for each chain what makes an iterator over (first sample, rows (n, K)), in order
    """

    group: str
    name: str
    leading: tuple[str, ...]
    chains: Sequence[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the dims before those of H."""
        return (len(self.chains), *(1 for _ in self.leading[1:]))

    def skeleton(self, structure: Factorisation) -> xr.Dataset:
        """Dims and labels around no numbers."""
        array = np.broadcast_to(np.zeros(()), self.shape + structure.H.variable_shape)
        return as_dataset(structure, {self.name: array}, self.leading, {self.name: structure.H.name})

    def in_memory(self, structure: Factorisation) -> xr.Dataset:
        """All of it."""
        wholes = [np.concatenate([rows for _, rows in blocks()]) for blocks in self.chains]
        own = structure.H.variable_shape
        array = np.stack([structure.H.orient(rows.T) for rows in wholes]).reshape(self.shape + own)
        return as_dataset(structure, {self.name: array}, self.leading, {self.name: structure.H.name})


def in_memory(
    structure: Factorisation, groups: Mapping[str, xr.Dataset], variables: list[OfSamples], attrs: Mapping[str, Any]
) -> Result:
    """The result with these variables of samples."""
    filled = dict(groups)
    for variable in variables:
        filled[variable.group] = xr.merge([filled[variable.group], variable.in_memory(structure)])
    return _compat.inference_data(filled, plain_attrs(attrs))


def on_disk(
    path: Path,
    structure: Factorisation,
    groups: Mapping[str, xr.Dataset],
    variables: list[OfSamples],
    attrs: Mapping[str, Any],
    largest: int,
) -> Result:
    """The result in a new store at ``path``, opened; ``largest`` : samples of the largest block."""
    with replacing(path, "store") as partial:
        _write_all(partial, structure, groups, variables, attrs, largest)
    return load(path)


def _write_all(
    path: Path,
    structure: Factorisation,
    groups: Mapping[str, xr.Dataset],
    variables: list[OfSamples],
    attrs: Mapping[str, Any],
    largest: int,
) -> None:
    store = Store(path, None, 1)
    filled = {name: dataset for name, dataset in groups.items() if dataset.data_vars or dataset.coords}
    for variable in variables:
        coords = variable.skeleton(structure).drop_vars(variable.name)
        filled[variable.group] = xr.merge([filled.get(variable.group, xr.Dataset()), coords])
    store.add_groups(filled)
    for variable in variables:
        _write(store, structure, variable, largest)
    store.finish(plain_attrs(attrs), is_whole=True)


def _write(store: Store, structure: Factorisation, variable: OfSamples, largest: int) -> None:
    like = variable.skeleton(structure)[variable.name]
    chunk = (*(1,) * len(variable.leading), *_turned(structure, (structure.rank, largest)))
    with store.writing():
        made = store.root.require_group(variable.group).create_array(
            variable.name,
            shape=like.shape,
            chunks=chunk,
            dtype=np.float64,
            fill_value=np.nan,
            compressors=None,
            attributes={DIMS: list(like.dims)},
        )
        array = writing_all(made)
        for lead, blocks in zip(np.ndindex(variable.shape), variable.chains, strict=True):
            for first, rows in blocks():
                place = _turned(structure, (slice(None), slice(first, first + len(rows))))
                array[(*lead, *place)] = structure.H.orient(rows.T)


def _turned(structure: Factorisation, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return pair[::-1] if structure.H.transposed else pair


def blocks_of_turn(bounds: Array, arrays: Any, turn: int, name: str) -> Iterator[tuple[int, Array]]:
    """(first sample, rows) of each block's array of this name."""
    for number, first in enumerate(bounds[:-1]):
        (rows,) = arrays.get(turn, number, name)
        yield int(first), rows

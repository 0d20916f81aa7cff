"""A result of data in blocks; its H may never be in memory: the rows go to a Zarr store, a chunk for each block.

Blocks of one size have chunks of their own; where sizes differ, chunks are those of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.files import replacing
from nmf_zoo.results.groups import LEADING, as_dataset, axes_of, plain_attrs
from nmf_zoo.results.loading import load
from nmf_zoo.results.posterior import posterior_group
from nmf_zoo.results.stores import DIMS, Store, writing_all
from nmf_zoo.structure import (
    Array,
    Blocked,
    Factorisation,
    InBlocks,
    OffsetsOfSamples,
    Outer,
    offset_table,
    slices,
)

BLOCKS = "blocks"  # the attribute of a result of data in blocks: how many there were
CONSTANTS, EXPOSURE = "constant_data", "exposure"  # where exposures of samples are, when they came with these
BACKGROUND = "background"  # a number for each sample, or for each feature; BY_FEATURE, BY_SAMPLE : whose product it is
BY_FEATURE, BY_SAMPLE = "background_feature", "background_obs"  # as a declaration names them
LEFT = "background_in_blocks"  # the attribute of a result whose background is not in it
PART = 1 << 20  # cells of a background that are read at a time


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
    constants = _compat.group(idata, CONSTANTS) if CONSTANTS in _compat.group_names(idata) else xr.Dataset()
    likelihood, offsets = structure.likelihood, _offsets_in(constants, found, H)
    offsets = offsets._replace(**{name: None for name in offsets._fields if getattr(likelihood, name) is not None})
    return replace(found, likelihood=offsets.in_place(likelihood))


def kept_offsets(structure: Factorisation, offsets: OffsetsOfSamples) -> xr.Dataset:
    """What came with the samples, but for a background that is read with their blocks."""
    (feature, of_features), (obs, of_samples) = axes_of(structure)
    found, background = {} if offsets.exposure is None else {EXPOSURE: (obs, offsets.exposure)}, offsets.background
    if isinstance(background, Outer):
        found |= {BY_FEATURE: (feature, background.of_features[:, 0]), BY_SAMPLE: (obs, background.of_samples[0])}
    elif isinstance(background, np.ndarray):
        found[BACKGROUND] = (obs if len(background) == 1 else feature, background.ravel())
    used = {dim for dim, _ in found.values()}
    labels = {dim: own for dim, own in ((feature, of_features), (obs, of_samples)) if dim in used}
    return xr.Dataset(found, labels)


def note_of_offsets(offsets: OffsetsOfSamples, has_store: bool) -> dict[str, str]:
    """The attribute of a result that lacks its background: a store holds one with a number for each cell."""
    background = offsets.background
    return {LEFT: "yes"} if isinstance(background, InBlocks) and (background.is_listed or not has_store) else {}


def require_offsets(structure: Factorisation, idata: Any) -> Factorisation:
    """Refuse to predict without a background that the result lacks."""
    if LEFT in getattr(idata, "attrs", {}) and structure.likelihood.background is None:
        got = f"a model without the background of {structure.likelihood.name}, which came with the blocks of data="
        do = "the result has numbers for each feature and sample, and with store= a number for each cell"
        raise InputError("model", got, "one with it, of all samples: background=, shape=(features, samples)", do)
    return structure


def _offsets_in(constants: xr.Dataset, structure: Factorisation, H: xr.DataArray) -> OffsetsOfSamples:
    """Those in a result, of the samples that H has."""
    feature, obs = (axis.dim for axis in axes_of(structure))
    samples = structure.shape[1]

    def at(name: str) -> Array:
        own = constants[name]
        if obs in own.dims and own.size != samples:  # of which draws of H are some
            own = own.sel({obs: H[obs]})
        return own.to_numpy()[None] if obs in own.dims else own.to_numpy()[:, None]

    exposure = at(EXPOSURE)[0] if EXPOSURE in constants and constants[EXPOSURE].dims == (obs,) else None
    background: Any = None
    if BY_SAMPLE in constants and constants[BY_SAMPLE].dims == (obs,):
        background = Outer(of_features=at(BY_FEATURE), of_samples=at(BY_SAMPLE))
    elif BACKGROUND in constants and constants[BACKGROUND].dims in ((obs,), (feature,)):
        background = at(BACKGROUND)
    elif BACKGROUND in constants and constants[BACKGROUND].dims == (feature, obs):
        table = constants[BACKGROUND]
        background = _on_disk(table if table.sizes[obs] == samples else table.sel({obs: H[obs]}))
    return OffsetsOfSamples(exposure, background)


def _on_disk(table: xr.DataArray) -> InBlocks:
    """A background (features, samples) in a store, of which some samples are read at a time."""
    n_features, n_samples = table.shape
    parts = list(slices(n_samples, max(1, PART // n_features)))
    bounds = np.array([part.start for part in parts] + [n_samples])

    def read(number: int) -> tuple[None, OffsetsOfSamples]:
        return None, OffsetsOfSamples(background=table[:, parts[number]].to_numpy())

    return InBlocks(bounds=bounds, n_features=n_features, read=read, span=(np.nan, np.nan), is_listed=False)


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
    table = _table_of(structure)
    if table is not None:
        labels = xr.Dataset(coords={axis.dim: axis.labels for axis in axes_of(structure)})
        filled[CONSTANTS] = xr.merge([filled.get(CONSTANTS, xr.Dataset()), labels])
    store.add_groups(filled)
    if table is not None:
        _write_table(store, structure, table, largest)
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


def _table_of(structure: Factorisation) -> InBlocks | None:
    """A background with a number for each cell, which a store keeps; not one of listed cells."""
    background = cast(Blocked, structure.data).offsets.background
    return background if isinstance(background, InBlocks) and not background.is_listed else None


def _write_table(store: Store, structure: Factorisation, table: InBlocks, largest: int) -> None:
    feature, obs = axes_of(structure)
    with store.writing():
        made = store.root.require_group(CONSTANTS).create_array(
            BACKGROUND,
            shape=table.shape,
            chunks=(table.n_features, largest),
            dtype=np.float64,
            fill_value=np.nan,
            attributes={DIMS: [feature.dim, obs.dim]},
        )
        array = writing_all(made)
        for number, first in enumerate(table.bounds[:-1]):
            last = int(table.bounds[number + 1])
            part = table.read(number)[1].background
            array[:, first:last] = offset_table(part, (table.n_features, last - first), 0.0)


def _turned(structure: Factorisation, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return pair[::-1] if structure.H.transposed else pair


def blocks_of_turn(bounds: Array, arrays: Any, turn: int, name: str) -> Iterator[tuple[int, Array]]:
    """(first sample, rows) of each block's array of this name."""
    for number, first in enumerate(bounds[:-1]):
        (rows,) = arrays.get(turn, number, name)
        yield int(first), rows

"""``store=``: draws that go to a Zarr store while they are made, and are read from it lazily.

A chain holds one chunk of each variable in memory and writes it whole when it is full, from its own thread; every
`FLUSH_EVERY` seconds, and for a checkpoint, also when it is not. Zarr replaces a chunk by a rename, so that a run which
is killed at any moment leaves a store that can be read: its attribute ``readable`` says which chains and how many draws
of them are there; the rest is NaN. Its checkpoint holds the checksums of the draws of each chunk, against which the
store is held when a run goes on: draws of another chain, or of another run, are refused. An array is (chain, draw,
*variable), and a chunk is the draws of one chain that fit into `CHUNK_BYTES`, or, of a large variable, some rows of one
draw: both one draw of everything and one variable over all draws read little more than they need.
"""

from __future__ import annotations

import shutil
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NotWritten
from nmf_zoo.results.groups import LEADING, as_dataset, stats_dataset
from nmf_zoo.runtime.state_io import Damaged
from nmf_zoo.runtime.state_patterns import Each, require
from nmf_zoo.runtime.traces import Trace, TraceArrays, Traces, fullest
from nmf_zoo.structure import Array, Factorisation, slices

CHUNK_BYTES = 1 << 22
FLUSH_EVERY = 10.0  # seconds
GROUPS = {"draws": ("posterior", "sample_stats"), "warmup": ("warmup_posterior", "warmup_sample_stats")}
DRAWN, READABLE, RUN_ID, ALL_CHUNKS = _compat.OF_STORE
LAYOUT, THIS_LAYOUT = _compat.LAYOUT, _compat.THIS_LAYOUT
DIMS = "_ARRAY_DIMENSIONS"  # where xarray looks for the names of an array's axes


class Store:
    """A Zarr store on its way to become a result.

    Attributes
    ----------
    path : the folder
    run_id : of the checkpoint that can take the run up again, or None
    drawn : part of the run -> draws of each chain that are on disk
    """

    def __init__(self, path: Path, run_id: str | None, n_chains: int):
        self.path, self.run_id = path, run_id
        self.root = _open_root(path, run_id)
        with self.reading():
            self.drawn = self.root.attrs.get(DRAWN, {part: [0] * n_chains for part in GROUPS})
            require(self.drawn, {part: [int] * n_chains for part in GROUPS}, DRAWN)
        self._writing, self._labelled = threading.Lock(), set[str]()

    def writing(self) -> AbstractContextManager[None]:
        """As :func:`writing_to`; what is there can be read, and gone on from."""
        return writing_to(self.path)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What Zarr says, of whatever kind, about files that are not what was written, in one line."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            do = "bring it back, or delete it with its checkpoint and begin anew"
            got = f"{str(self.path)!r}, which is damaged or another's ({type(error).__name__}: {error})"
            raise InputError("store", got, "what this run wrote", do) from error

    def add_groups(self, groups: Mapping[str, xr.Dataset], mode: Any = "w") -> None:
        """Write whole groups; what a kill left of them is replaced. With mode "a", add to them."""
        options: Any = {"zarr_format": 2, "consolidated": False, "write_empty_chunks": True}
        with self.writing():
            for name, dataset in groups.items():
                dataset.to_zarr(str(self.path), group=name, mode=mode, **options)

    def array(self, group: str, name: str, skeleton: xr.Dataset) -> Any:
        """The Zarr array of a variable of ``skeleton``, made with its coords when it isn't there.

        A kill may have left coords and arrays without cells or attributes: coords are written anew in each session.
        """
        with self._writing, self.reading(), self.writing():
            variable, inside = skeleton[name].variable, self.root.require_group(group)
            unwritten = [coord for coord in skeleton.coords if f"{group}/{coord}" not in self._labelled]
            if unwritten:
                for coord in unwritten:
                    if coord in inside:
                        del inside[coord]
                coords = {coord: skeleton[coord].variable for coord in unwritten}
                self.add_groups({group: xr.Dataset(coords=coords)}, mode="a")
                self._labelled |= {f"{group}/{coord}" for coord in unwritten}
            if name in inside and DIMS not in inside[name].metadata.attributes:
                del inside[name]
            if name not in inside:
                inside.create_array(
                    name,
                    shape=variable.shape,
                    chunks=chunk_shape(variable.shape, variable.dtype.itemsize),
                    dtype=variable.dtype,
                    fill_value=np.nan if variable.dtype.kind == "f" else None,  # a number would be read as missing
                    compressors=None,  # the digits of random numbers
                    attributes={DIMS: list(variable.dims)},
                )
            found = inside[name]
            if found.shape[2:] != variable.shape[2:] or found.dtype != variable.dtype or found.chunks[0] != 1:
                raise Damaged(f"{group}/{name} is {found.dtype} {found.shape}")
            if found.shape != variable.shape:  # a run that goes on for longer
                resize(inside, variable.shape[:2])
            return writing_all(inside[name])

    def note(self, part: str, chain: int, drawn: int) -> None:
        """Write how far a chain is."""
        with self._writing, self.writing():
            self.drawn[part][chain] = drawn
            draws = self.drawn["draws"]
            chains = fullest(draws)
            readable = {"chains": chains, "draws": min(draws[chain] for chain in chains)}
            self.root.attrs.update({DRAWN: self.drawn, READABLE: readable})

    def cut(self, group: str, chains: Sequence[int], length: int) -> None:
        """Keep ``length`` draws of these chains and nothing of the others."""
        with self.writing():
            for array in map(writing_all, self.root[group].array_values()):
                if array.metadata.attributes[DIMS][:2] == list(LEADING):
                    for place, chain in enumerate(chains):
                        if place != chain:
                            _copy_chain(array, chain, place, length)
            resize(self.root[group], (len(chains), length))

    def read(self, group: str) -> xr.Dataset:
        """A group, its draws left on disk."""
        return xr.open_dataset(str(self.path), engine="zarr", group=group, cache=False, chunks=None, consolidated=False)

    def drop_if_empty(self) -> None:
        """Remove a store that no draw came to, unless a checkpoint may go on with it."""
        if self.run_id is None and not any(self.drawn["draws"]):
            shutil.rmtree(self.path, ignore_errors=True)

    def finish(self, attrs: Mapping[str, Any], is_whole: bool) -> None:
        """Write the attributes of the run, and gather the description of all arrays in one file, for quick opening."""
        with self.writing():
            self.root["posterior"].attrs.update(dict(attrs))
            self.root.attrs.update(dict(attrs))
            if is_whole:
                self.root.attrs.pop(READABLE, None)
            _zarr().consolidate_metadata(str(self.path), zarr_format=2)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """What the system says about writing to the store, in one line."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        raise NotWritten("store", str(path), error.errno or 0, error.strerror or str(error)) from error


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Of a variable (chain, draw, ...): whole draws of one chain, or rows of one draw where that is too large."""
    of_draw = itemsize * int(np.prod(shape[2:]))
    if of_draw <= CHUNK_BYTES or len(shape) < 3:
        return 1, max(1, min(shape[1], CHUNK_BYTES // max(1, of_draw))), *shape[2:]
    return 1, 1, max(1, CHUNK_BYTES * shape[2] // of_draw), *shape[3:]


def writing_all(array: Any) -> Any:
    """The same array on disk, which writes chunks of nothing but NaN or 0, too."""
    return array.with_config({"write_empty_chunks": True})


def resize(group: Any, lead: tuple[int, ...]) -> None:
    """Give all arrays of a group as many chains and draws."""
    sizes = dict(zip(LEADING, lead, strict=True))
    for name, array in ((name, writing_all(array)) for name, array in group.arrays()):
        dims = array.metadata.attributes[DIMS]
        array.resize(tuple(sizes.get(dim, size) for dim, size in zip(dims, array.shape, strict=True)))
        if name in sizes:
            array[:] = np.arange(sizes[name])


def _copy_chain(array: Any, chain: int, place: int, length: int) -> None:
    for part in slices(length, array.chunks[1]):
        array[place, part] = array[chain, part]


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise InputError("store", "no zarr", "zarr installed", "pip install 'nmf_zoo[zarr]'") from error
    return zarr


def _open_root(path: Path, run_id: str | None) -> Any:
    """A new store, or the one that this run began; anything else is left alone."""
    zarr = _zarr()
    if run_id is not None and _is_unbegun(path):
        shutil.rmtree(path)
    if not path.exists():
        with writing_to(path):
            root = zarr.open_group(str(path), mode="w-", zarr_format=2)
            own = {RUN_ID: run_id} if run_id else {}
            root.attrs.update({"status": "running", ALL_CHUNKS: True, LAYOUT: THIS_LAYOUT} | own)
        return root
    root = None
    with suppress(OSError, ValueError, KeyError):
        root = zarr.open_group(str(path), mode="r+", zarr_format=2, use_consolidated=False)
    if root is None or run_id is None or root.attrs.get(RUN_ID) != run_id:
        raise InputError("store", f"{str(path)!r}, which exists", "a new name, or the store of this run's checkpoint")
    with writing_to(path):
        for rest in (path / ".zmetadata", *path.rglob("*.partial")):  # of the finished run, and of files at a kill
            rest.unlink(missing_ok=True)
        root.attrs.update({"status": "running"})
    return root


def _is_unbegun(path: Path) -> bool:
    """An empty folder, or what a kill left of a store that had no attributes yet."""
    with suppress(OSError):
        names = {entry.name for entry in path.iterdir()}
        return not path.is_symlink() and all(name == ".zgroup" or name.endswith(".partial") for name in names)
    return False


class Column:
    """A variable of one chain on its way to the store: draws start, ..., stop - 1 wait in a buffer of one chunk."""

    def __init__(self, array: Any, chain: int):
        self.array, self.chain = array, chain
        self.length, self.per_chunk = array.shape[1], array.chunks[1]
        self.start, self.stop = 0, 0
        self.sums: list[int] = []  # checksums of the draws of the chunks that are full
        self.empty = np.nan if array.dtype.kind == "f" else 0
        self.buffer = np.full((min(self.per_chunk, self.length), *array.shape[2:]), self.empty, dtype=array.dtype)

    def append(self, draws: Array) -> None:
        """Take draws (n, ...), and write every chunk that they fill."""
        while len(draws):
            free = self.start + self.per_chunk - self.stop
            part, draws = draws[:free], draws[free:]
            at = self.stop - self.start
            self.buffer[at : at + len(part)] = part
            self.stop += len(part)
            if len(part) == free:
                self.flush()
                self.sums.append(zlib.crc32(self.buffer.data))
                self.start = self.stop

    def flush(self) -> None:
        """Write the chunk, whole even when it isn't full: Zarr then need not read what is there."""
        if self.stop > self.start:
            size = min(self.per_chunk, self.length - self.start)
            self.buffer[self.stop - self.start :] = self.empty
            self.array[self.chain, self.start : self.start + size] = self.buffer[:size]

    def checksums(self) -> list[int]:
        """Of the draws of every chunk."""
        waiting = self.buffer[: self.stop - self.start]
        return [*self.sums, zlib.crc32(waiting.data)] if len(waiting) else list(self.sums)

    def restore(self, filled: int, sums: Sequence[int]) -> None:
        """Go on after ``filled`` draws, which are on disk and have these checksums."""
        chunks = list(slices(filled, self.per_chunk))
        if len(sums) != len(chunks) or any(
            zlib.crc32(self.array[self.chain, draws].data) != right for draws, right in zip(chunks, sums, strict=True)
        ):
            raise Damaged(f"{self.array.path} of chain {self.chain} has other draws")
        self.start, self.stop = filled // self.per_chunk * self.per_chunk, filled
        self.sums = list(sums[: filled // self.per_chunk])
        if self.stop > self.start:
            self.buffer[: self.stop - self.start] = self.array[self.chain, self.start : self.stop]


class StoredTrace(Trace):
    """Draws of one chain, in the store."""

    def __init__(self, traces: StoredTraces, part: str, chain: int, n_chains: int, length: int):
        super().__init__(TraceArrays(n_chains, length), TraceArrays(n_chains, length), chain)
        self._traces, self._part, self._lead = traces, part, (n_chains, length)
        self._columns: dict[tuple[str, str], Column] = {}
        self._due, self._resumed = time.monotonic() + FLUSH_EVERY, 0

    def extend(self, values: Mapping[str, Array], stats: Mapping[str, Array]) -> None:
        with self._traces.store.writing():
            for group, new in zip(GROUPS[self._part], (values, stats), strict=True):
                for name, draws in new.items():
                    self._column(group, name, draws.dtype, draws.shape[1:]).append(draws)
        self.filled += len(next(iter(stats.values())))
        if time.monotonic() >= self._due:
            self.flush()

    def _column(
        self, group: str, name: str, dtype: np.dtype, shape: tuple[int, ...], sums: Sequence[int] = ()
    ) -> Column:
        """The column of a variable, which goes on after the draws that have these checksums."""
        if (group, name) not in self._columns:
            like = np.broadcast_to(np.zeros((), dtype), (*self._lead, *shape))
            column = self._columns[group, name] = Column(self._traces.make_array(group, name, like), self.chain)
            with self._traces.store.reading():
                column.restore(self._resumed, sums)
        return self._columns[group, name]

    def flush(self) -> None:
        """Write what waits."""
        with self._traces.store.writing():
            for column in self._columns.values():
                column.flush()
        self._due = time.monotonic() + FLUSH_EVERY
        if self.filled:
            self._traces.store.note(self._part, self.chain, self.filled)

    def rows(self, first: int) -> dict[str, Array]:
        return {}

    def state(self) -> dict[str, Any]:
        """The checksums of what the store holds from now on."""
        self.flush()
        return {f"{group}/{name}": column.checksums() for (group, name), column in self._columns.items()}

    def restore(self, filled: int, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        require(state, Each(Each(int)), "the checksums")
        store, of_values = self._traces.store, GROUPS[self._part][0]
        if store.drawn[self._part][self.chain] < filled:
            got = f"{str(store.path)!r} without the {filled} draws that the checkpoint left there"
            raise InputError("store", got, "the store of that run", "bring it back, or delete both and begin anew")
        if filled and {f"{of_values}/{name}" for name in values} - set(state):
            raise Damaged("damaged: variables without checksums")
        self.filled = self._resumed = filled
        for key, sums in state.items():
            group, _, name = key.partition("/")
            with store.reading():
                there = store.root[group][name]
            self._column(group, name, there.dtype, there.shape[2:], sums)


class StoredTraces(Traces):
    """The traces of all chains of a run, in a Zarr store."""

    def __init__(self, structure: Factorisation, store: Store, n_chains: int, kept_warmup: int, kept_draws: int):
        self.structure, self.store = structure, store
        self.kept: dict[str, tuple[list[int], int]] = {}
        self._whole = list(range(n_chains)), kept_draws
        super().__init__(n_chains, kept_warmup, kept_draws)

    def make_part(self, part: str, n_chains: int, length: int) -> Sequence[Trace]:
        return [StoredTrace(self, part, chain, n_chains, length) for chain in range(n_chains)]

    def make_array(self, group: str, name: str, like: Array) -> Any:
        """The array on disk of a variable, or statistic, whose draws look like ``like`` (chain, draw, ...)."""
        is_stats = group.endswith("sample_stats")
        arrays = {name: like}
        skeleton = stats_dataset(self.structure, arrays) if is_stats else as_dataset(self.structure, arrays, LEADING)
        return self.store.array(group, name, skeleton)

    def cut(self, part: str, traces: Sequence[Trace], length: int) -> None:
        """Shorten the arrays on disk; not those of a checkpoint, which may go on from beyond."""
        chains = [trace.chain for trace in traces]
        for place, trace in enumerate(traces):
            trace.state()
            trace.chain, trace.filled = place, length
        self.kept[part] = chains, length
        if self.store.run_id is None and length and (len(chains) < len(self.chains) or length < traces[0].length):
            self.kept[part] = list(range(len(chains))), length
            for group in GROUPS[part]:
                self.store.cut(group, chains, length)

    def groups(self, part: str) -> dict[str, xr.Dataset]:
        """posterior and sample_stats of a part of the run, left on disk."""
        chains, length = self.kept[part]
        names = dict(zip(GROUPS["draws"], GROUPS[part], strict=True))
        return {name: _compat.first_draws(self.store.read(group), chains, length) for name, group in names.items()}

    def finish(self, attrs: Mapping[str, Any]) -> None:
        """Make the store a result of its own."""
        self.store.finish(attrs, is_whole=self.store.run_id is None or self.kept["draws"] == self._whole)

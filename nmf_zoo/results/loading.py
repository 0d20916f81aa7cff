"""``nz.load``: results from netCDF and Zarr; of a file that can't be read it says which and why, in one line.

HDF5 and Zarr are other people's formats, read by other people's code, which raises what it happens to raise on damaged
files (and, in C, may do worse). Here is the border: checksums of our files are held against their bytes, and sizes,
too; whatever is raised becomes an `InputError`. Zarr takes a chunk that isn't there for one of NaN or 0, so that a
store of ours says that all of them were written, and they are counted.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from nmf_zoo import _compat
from nmf_zoo._compat import Result
from nmf_zoo.errors import InputError, number_of, warn_caller
from nmf_zoo.labels import FORMER, OBS, WRITABLE, find_unwritable
from nmf_zoo.netcdf import is_damaged
from nmf_zoo.options import names_checked
from nmf_zoo.results.component_order import GROUP
from nmf_zoo.results.groups import FOLLOWED, LEADING
from nmf_zoo.results.run_attributes import DISCARDED, GATHERED
from nmf_zoo.results.trace_storage import MEAN, MOMENTS

RESULT = "a result of nmf-zoo fit or nz.save"
NUMBERS = "biuf"
OF_FIT = {
    "objective": ("chain", "iteration"),
    "columns": ("chain",),
    **dict.fromkeys(("iterations", "residual"), ("chain",)),
}
WORDS_OF_FIT = ("status", "reason")
NUMERIC_ATTRS = ("seconds", "thin", "tune", DISCARDED, GATHERED)


def check_result(name: str, idata: Any) -> None:
    """Refuse what commands could not go through; groups and attributes that they don't use may be anything."""
    names = _compat.group_names(idata)
    if not {"posterior", MOMENTS} & set(names):
        raise InputError(name, "a file without a posterior group", RESULT)
    if "posterior" not in names and "sample_stats" not in names:
        raise InputError(name, f"{MOMENTS} without sample_stats", RESULT)
    groups = {group: _compat.group(idata, group) for group in names}
    chains = {}
    for group, (dims, arrays) in {**_draws(groups), **_moments(groups), **_fit(groups)}.items():
        dataset = groups[group]
        missing = [dim for dim in dims if dim not in dataset.coords or not dataset.sizes[dim]]
        if missing:
            raise InputError(name, f"{group} without labels for {missing[0]!r}, or empty", RESULT)
        for array, wanted in arrays.items():
            _check_array(name, group, array, dataset, wanted)
        chains[group] = dataset.sizes["chain"]
    if len(set(chains.values())) > 1:
        raise InputError(name, f"{chains} chains", f"as many in every group, as in {RESULT}")
    _check_attributes(name, idata.attrs)


Wanted = Mapping[str, tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]]


def _draws(groups: Mapping[str, xr.Dataset]) -> Wanted:
    """posterior and sample_stats: what has draws, and of the second only what is summed up."""
    wanted = {"posterior": list(groups["posterior"].data_vars)} if "posterior" in groups else {}
    if "sample_stats" in groups:
        wanted["sample_stats"] = [found for found in FOLLOWED if found in groups["sample_stats"]]
    return {group: (LEADING, dict.fromkeys(map(str, arrays), LEADING)) for group, arrays in wanted.items()}


def _moments(groups: Mapping[str, xr.Dataset]) -> Wanted:
    if MOMENTS not in groups:
        return {}
    arrays = [str(found) for found in groups[MOMENTS].data_vars if str(found).endswith(MEAN)]
    return {MOMENTS: (("chain",), dict.fromkeys([*arrays, "draws"], ("chain",)))}


def _fit(groups: Mapping[str, xr.Dataset]) -> Wanted:
    """What an optimiser, or a stream, says of itself."""
    if "fit" not in groups:
        return {}
    series = "objective" if "objective" in groups["fit"] else "columns"
    names = (series, "iterations", "residual", *WORDS_OF_FIT) if series == "objective" else (series,)
    return {"fit": (("chain",), {found: OF_FIT.get(found, ("chain",)) for found in names})}


def _check_array(name: str, group: str, array: str, dataset: xr.Dataset, dims: Iterable[str]) -> None:
    if array not in dataset:
        raise InputError(name, f"{group} without {array!r}", RESULT)
    found = dataset[array]
    if not set(dims) <= set(found.dims):
        raise InputError(
            name, f"{group}/{array} of {', '.join(map(str, found.dims)) or 'no dims'}", f"{', '.join(dims)}, ..."
        )
    if array not in WORDS_OF_FIT and found.dtype.kind not in NUMBERS:
        raise InputError(name, f"{group}/{array} of type {found.dtype}", "real numbers")


def _check_attributes(name: str, attrs: Mapping[str, Any]) -> None:
    for key in NUMERIC_ATTRS:
        try:
            float(attrs.get(key, 0))
        except (TypeError, ValueError):
            raise InputError(name, f"the attribute {key} {attrs[key]!r}"[:80], "a number") from None


# -- loading ---------------------------------------------------------------------------------------------------------


HDF5 = b"\x89HDF\r\n\x1a\n"
KNOWN = {b"CDF": "netCDF 3", b"PK": "a zip archive", b"\x1f\x8b": "gzip"}  # how other files begin
MOST_DEFLATED = 1032  # bytes that one byte of a compressed file can become
WHOLE = "a complete result of nz.save or nmf-zoo fit"
MOST_EMPTY = 1000  # chunks of labels that may be missing: Zarr leaves out what is 0
DRAWN, READABLE, _, ALL_CHUNKS = _compat.OF_STORE
MOST_READ = 2**20  # bytes of a variable beside the draws that is read at once: one may have a number for each sample
RENAMED = {FORMER: OBS, f"cell_{FORMER}": f"cell_{OBS}"}  # since layout 1


@names_checked
def load(path: str | Path) -> Result:
    """Read what :func:`save` wrote, or a run with ``store=``.

    NetCDF is read into memory. Of a Zarr store the groups of draws stay on disk, and so do other variables of more than
    a MiB; what is used of them is read at each use: ``.load()`` or ``.compute()`` keeps a variable in memory. Of an
    unfinished run what is there is read, with a warning.

    Raises
    ------
    InputError : there is no such file, it is of another kind, cut or damaged; for a Zarr store also later, when draws
        that can't be read are used
    """
    groups, attrs = _read(path)
    with _border(Path(path)):
        return _compat.inference_data(groups, attrs)


def load_tree(path: str | Path) -> xr.DataTree:
    """The same as a tree, which functions of ours take as a result: beside ArviZ 0.x, without importing it."""
    groups, attrs = _read(path)
    with _border(Path(path)):
        return _compat.tree_of(groups, attrs)


def _read(path: str | Path) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    path = Path(path)
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise InputError(repr(str(path))[:200], f"no name of a file ({reason})", "the path of a result") from error
    if not is_there:
        raise InputError(str(path), "no such file", "a result that exists, .nc or .zarr")
    if path.suffix == ".zarr":
        return _load_store(path, is_folder)
    if is_folder:
        raise InputError(str(path), "a folder", "a file, or a Zarr store, whose name ends in .zarr")
    with _border(path):
        _check_signature(path)
        if is_damaged(path):
            raise InputError(str(path), "a damaged file, which has another checksum than was written", WHOLE)
        with xr.open_datatree(str(path), engine="h5netcdf") as tree:
            _require_groups(path, tree)
            groups = {name: tree[name].to_dataset() for name in tree.children}
            _check_sizes(path, groups)
            loaded = {name: dataset.load() for name, dataset in groups.items()}
            _check_labels(path, loaded)
            return _under_our_names(path, loaded, {str(name): value for name, value in tree.attrs.items()})


@contextmanager
def _border(path: Path, where: str = "") -> Iterator[None]:
    """Whatever other people's code raises on a file, and says of it, as one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(str(path), f"more{where} than memory holds", WHOLE) from error
    except Exception as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(str(path), f"a file{where} that can't be read ({problem})", WHOLE) from error


def _check_signature(path: Path) -> None:
    """Refuse what isn't HDF5 before its library sees it."""
    size, at = path.stat().st_size, 0
    with open(path, "rb") as file:
        head = file.read(len(HDF5))
        if not head:
            raise InputError(str(path), "an empty file", WHOLE)
        while at < size:  # behind a block of somebody's own, which ends at 512, 1024, ...
            file.seek(at)
            if file.read(len(HDF5)) == HDF5:
                return
            at = max(512, 2 * at)
    kind = next((name for begin, name in KNOWN.items() if head.startswith(begin)), "something else")
    raise InputError(str(path), f"{kind}, not netCDF 4 (HDF5)", WHOLE)


def _require_groups(path: Path, tree: xr.DataTree) -> None:
    """Refuse a file of arrays alone, which are read by xarray: the stems of a recording, say."""
    if not tree.children:
        names = ", ".join(sorted(map(str, tree.variables)))[:80]
        got = f"arrays without groups ({names})" if names else "a file without groups"
        raise InputError(str(path), got, WHOLE, f"open it with xarray.open_dataset({path.name!r})" if names else "")


def _check_sizes(path: Path, groups: Mapping[str, xr.Dataset]) -> None:
    """Refuse arrays of more bytes than the file can hold."""
    promised, there = sum(dataset.nbytes for dataset in groups.values()), path.stat().st_size
    if promised > MOST_DEFLATED * there:
        got = f"a file of {there:,} bytes whose header tells of {promised:,}"
        raise InputError(str(path), got, WHOLE)


def _check_labels(path: Path, groups: Mapping[str, xr.Dataset]) -> None:
    """Refuse what no label of ours can be."""
    for name, dataset in groups.items():
        for dim, labels in dataset.coords.items():
            bad = find_unwritable(labels.to_numpy()) if labels.dtype.kind in "OTU" and labels.ndim == 1 else None
            if bad is not None:
                got = f"the label {str(labels.to_numpy()[bad])!r} of {dim!r} in {name} at place {bad}"
                raise InputError(str(path), got, WRITABLE)


def _under_our_names(
    path: Path, groups: dict[str, xr.Dataset], attrs: dict[str, Any]
) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """Groups and attributes, the dim of X's columns called as it is today."""
    layout = attrs.pop(_compat.LAYOUT, 1)
    if layout not in range(1, _compat.THIS_LAYOUT + 1):
        expected = f"a layout from 1 to {_compat.THIS_LAYOUT}"
        raise InputError(str(path), f"layout {layout!r}"[:80], expected, "read it with the nmf_zoo that wrote it")
    named = {name: {*dataset.dims, *dataset.variables} for name, dataset in groups.items()}
    is_ours = attrs.get("inference_library") == "nmf_zoo" or attrs.get("status") == "running"
    if layout == 1 and is_ours and not any(OBS in names for names in named.values()):
        groups = {
            name: dataset.rename({old: new for old, new in RENAMED.items() if old in named[name]})
            for name, dataset in groups.items()
        }
    return groups, attrs


# -- Zarr --------------------------------------------------------------------------------------------------------


def _load_store(path: Path, is_folder: bool) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    if not is_folder:
        raise InputError(str(path), "a file", "a Zarr store, which is a folder")
    if find_spec("zarr") is None:
        raise InputError(str(path), "a Zarr store without zarr installed", "zarr", "pip install 'nmf_zoo[zarr]'")
    if not any((path / name).exists() for name in (".zgroup", ".zmetadata", "zarr.json")):
        raise InputError(str(path), "a folder without a Zarr store in it", WHOLE)
    with _border(path):
        groups, attrs, unfinished = _read_store(path)
        groups, attrs = _under_our_names(path, groups, attrs)
    if unfinished:
        warn_caller(f"{path.name} is of an unfinished run: {unfinished}.")
    return groups, attrs


def _read_store(path: Path) -> tuple[dict[str, xr.Dataset], dict[str, Any], str]:
    """The groups, those of draws left on disk; the attributes; and what is there of an unfinished run, or ""."""
    is_open = (path / ".zgroup").exists() and not (path / ".zmetadata").exists()
    _require_labels(path)
    tree = xr.open_datatree(str(path), engine="zarr", cache=False, chunks=None, consolidated=False if is_open else None)
    passed_over = {GROUP} if tree.attrs.get("status") == "running" else set()  # it is made of all draws, at the end
    groups = {name: tree[name].to_dataset() for name in tree.children if name not in passed_over}
    readable = tree.attrs.get(READABLE)
    if readable is not None and not isinstance(readable, Mapping):
        raise InputError(str(path), f"what can be read is {readable!r}"[:80], WHOLE)
    unfinished = ""
    if tree.attrs.get("status") == "running":
        if readable is None:
            raise InputError("path", f"{str(path)!r}, of a run before its first draw", "a store with draws")
        n_chains = len(readable["chains"])
        unfinished = f"{number_of(readable['draws'], 'draw')} of {number_of(n_chains, 'chain')}"
    _require_groups(path, tree)
    if tree.attrs.get(ALL_CHUNKS):
        for name, dataset in groups.items():
            _require_chunks(path, name, dataset, readable)
    if readable is not None:
        groups = {
            name: _compat.first_draws(dataset, readable["chains"], readable["draws"])
            for name, dataset in groups.items()
        }
    for name, dataset in groups.items():
        has_draws = {"chain", "draw"} <= set(dataset.dims)
        groups[name] = _left_on_disk(path, name, dataset, 0 if has_draws else MOST_READ)
    _check_labels(path, groups)
    attrs = {str(name): value for name, value in tree.attrs.items() if name not in _compat.OF_STORE}
    return groups, attrs, unfinished


def _require_labels(path: Path) -> None:
    """Refuse labels of more chunks than there are files: they are read at once, and what isn't there is looked for."""
    gathered = path / ".zmetadata"
    whole = json.loads(gathered.read_text(encoding="utf-8")) if gathered.exists() else {}
    described = {str(file.relative_to(path)): json.loads(file.read_bytes()) for file in path.glob("*/*/.zarray")}
    for name, array in {**described, **(whole["metadata"] if whole else {})}.items():
        match array:
            case {"shape": [int(size)], "chunks": [int(step)]} if step > 0 and name.endswith("/.zarray"):
                needed = -(-size // step)
            case _:  # of several axes, or nothing that Zarr would take
                continue
        there = sum(1 for _ in (path / name).parent.glob("[0-9]*"))
        if needed > there + MOST_EMPTY:
            raise InputError(str(path), f"{there} files of {needed:,} in {Path(name).parent}", WHOLE)


def _require_chunks(path: Path, group: str, dataset: xr.Dataset, readable: Mapping[str, Any] | None) -> None:
    """Refuse a store that lacks one of the files of a variable, or has it cut where that can be seen."""
    for name, variable in dataset.variables.items():
        folder, chunks = path / group / str(name), variable.encoding["chunks"]
        counts: list[Sequence[int]] = [
            range(-(-size // step)) for size, step in zip(variable.shape, chunks, strict=True)
        ]
        if readable is not None and variable.dims[:2] == ("chain", "draw"):
            counts[0] = sorted({chain // chunks[0] for chain in readable["chains"]})
            counts[1] = counts[1][: -(-readable["draws"] // chunks[1])]
        there = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
        is_blosc = [type(codec).__name__ for codec in variable.encoding.get("compressors") or ()] == ["Blosc"]
        is_plain = not variable.encoding.get("compressors") and not variable.encoding.get("filters")
        size = int(np.prod(chunks)) * variable.encoding["dtype"].itemsize if is_plain else None
        for place in itertools.product(*counts):
            chunk = ".".join(map(str, place)) or "0"
            if chunk not in there:
                raise InputError(str(path), f"a store without the file {group}/{name}/{chunk}", WHOLE)
            size = _blosc_size(folder / chunk) if is_blosc else size
            if size is not None and there[chunk] != size:
                got = f"{there[chunk]:,} bytes in {group}/{name}/{chunk}, not {size:,}"
                raise InputError(str(path), got, WHOLE)


def _blosc_size(chunk: Path) -> int:
    """What a chunk says of its own length: Blosc reads beyond the end of one that is cut."""
    with open(chunk, "rb") as file:
        return int.from_bytes(file.read(16)[12:], "little")


def _left_on_disk(path: Path, group: str, dataset: xr.Dataset, most: int) -> xr.Dataset:
    """Variables of more than ``most`` bytes stay on disk; one that can't be read then is an `InputError`, too."""
    lazy = {}
    for name, variable in dataset.data_vars.variables.items():
        if variable.nbytes <= most:
            lazy[name] = variable.load()
            continue
        behind: Any = indexing.LazilyIndexedArray(_Guarded(path, f" with {group}/{name}", variable))
        lazy[name] = xr.Variable(variable.dims, behind, variable.attrs, variable.encoding)
    coords = {name: coord.load() for name, coord in dataset.coords.items()}
    return xr.Dataset(lazy, coords, dataset.attrs)


class _Guarded(BackendArray):
    """An array on disk behind the border."""

    def __init__(self, path: Path, where: str, variable: xr.Variable):
        self.path, self.where, self.variable = path, where, variable
        self.shape, self.dtype = variable.shape, variable.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple) -> Any:
        with _border(self.path, self.where):
            return self.variable[key].to_numpy()

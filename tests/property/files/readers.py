"""The readers: how a sound file of each is made, how it is read, and whether a value is what the file holds."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.netcdf import SEAL_BYTES
from tests.property.files.damage import ANY, NUMBERS, TEXT, Damage, damage, damage_folder, lie_in_text

X = np.array([[5, 0, 2, 1], [0, 3, 0, 4], [1, 1, 0, 0], [0, 0, 6, 2], [7, 0, 0, 9]])
ROWS, COLUMNS = [f"gene{i}" for i in range(5)], [f"s{i}" for i in range(4)]


class Wrong(AssertionError):
    """A value that is not in the file."""


@dataclass(frozen=True)
class Reader:
    """A reader under test.

    Attributes
    ----------
    write : (path, random generator) writes a damaged file, and says how it is damaged
    read : reads it, and raises `Wrong` where the value isn't what the file holds
    suffix : of the file's name
    """

    write: Callable[[Path, np.random.Generator], str]
    read: Callable[[Path], None]
    suffix: str


# -- tables ------------------------------------------------------------------------------------------------------


def read_table(path: Path) -> None:
    from nmf_zoo.interfaces.tables import read_matrix
    from nmf_zoo.sparse import checked_sparse

    matrix = read_matrix(path)
    require(len(matrix.shape) == 2 and 0 not in matrix.shape, f"shape {matrix.shape}")
    require(matrix.values.dtype.kind in "iuf", f"dtype {matrix.values.dtype}")
    for labels, size in zip((matrix.rows, matrix.columns), matrix.shape, strict=True):
        require(labels is None or len(labels) == size, f"{labels} for {size}")
    if matrix.is_sparse:
        checked_sparse("X", matrix.values)
    expected = REFERENCES[path.suffix](path, matrix) if path.suffix in REFERENCES else None
    if expected is not None:
        found = matrix.values.toarray() if matrix.is_sparse else matrix.values
        np.testing.assert_array_equal(found.ravel(), np.asarray(expected).ravel())


def require(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


def cells_of_text(path: Path, matrix: Any) -> list[float] | None:
    """The numbers of a table without quotes, by splitting; the reader's word is taken for where labels are."""
    raw = path.read_bytes()
    if b'"' in raw or b"," not in raw:
        return None
    lines = [line for line in re.split(r"\r\n|\r|\n", raw.decode("utf-8-sig")) if line.strip()]
    rows = [line.split(",") for line in lines]
    if matrix.columns is not None:
        names = rows.pop(0)
        require(not names[0].strip() or len(names) < len(rows[0]) or not any(map(is_decimal, names)), f"header {names}")
    return [cell_value(cell) for row in rows for cell in row[matrix.rows is not None :]]


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in ("", "na", "n/a", "nan", "-nan", "null", "none")


def is_decimal(cell: str) -> bool:
    return re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", cell.strip()) is not None


def cell_value(cell: str) -> float:
    require(is_missing(cell) or is_decimal(cell), f"the cell {cell!r} was taken for a number")
    return np.nan if is_missing(cell) else float(cell)


def cells_of_mtx(path: Path, matrix: Any) -> Any:
    """A matrix of Matrix Market's general layouts, line by line."""
    head, *lines = [line for line in path.read_text("latin-1").splitlines() if line.strip()]
    _, _, layout, field, symmetry = head.lower().split()
    lines = [line for line in lines if not line.startswith("%")]
    if symmetry != "general" or field == "complex":
        return None
    sizes = [int(word) for word in lines[0].split()]
    if layout == "array":
        return np.array([float(line) for line in lines[1:]]).reshape(sizes[::-1]).T
    if np.prod(sizes[:2], dtype=float) > 1e7:
        return None  # a lie in the head that sparse matrices can hold
    found = np.zeros(sizes[:2])
    for line in lines[1:]:
        row, column, *value = line.split()
        found[int(float(row)) - 1, int(float(column)) - 1] += float(value[0]) if value else 1.0
    return found


def cells_of_npy(path: Path, matrix: Any) -> Any:
    return np.load(path, allow_pickle=False)


REFERENCES: dict[str, Callable[[Path, Any], Any]] = {".csv": cells_of_text, ".npy": cells_of_npy, ".mtx": cells_of_mtx}


def text_of(separator: str, layout: int) -> bytes:
    """Plain; with a header; with labels; with both; with some cells missing."""
    body = [[str(cell) for cell in row] for row in X]
    if layout == 4:
        body[1][2], body[3][0] = "", "NA"
    if layout >= 2:
        body = [[label, *row] for label, row in zip(ROWS, body, strict=True)]
    if layout in (1, 3, 4):
        body = [["", *COLUMNS] if layout >= 3 else COLUMNS, *body]
    return "".join(separator.join(row) + "\n" for row in body).encode()


def text(separator: str, zipped: bool = False) -> Reader:
    def write(path: Path, random: np.random.Generator) -> str:
        sound = text_of(separator, int(random.integers(5)))
        if not zipped:
            data, how = damage(sound, random, TEXT)
        elif random.random() < 0.5:
            data, how = damage(gzip.compress(sound, mtime=0), random, ANY)
        else:
            inside, how = damage(sound, random, TEXT)
            data = gzip.compress(inside, mtime=0)
        path.write_bytes(data)
        return how

    suffix = {",": ".csv", "\t": ".tsv", ";": ".txt"}[separator]
    return Reader(write, read_table, f"{suffix}.gz" if zipped else suffix)


def saved(save: Callable[..., None], *arguments: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arguments, **named)
    return file.getvalue()


def lie_in_npy(data: bytes, random: np.random.Generator) -> bytes:
    """Another header before the same bytes: shape, type or order."""
    shapes = [
        (5,),
        (4, 5),
        (0, 4),
        (5, 4, 1),
        (-1, 4),
        (10**6, 10**6),
        (10**13, 1),
        (2**62, 4),
        (5, 3),
        (True, 20),
        (2.5, 8),
    ]
    types = ["<f8", ">i8", "<i4", "|O", "<U4", "|V8", "<c16", "|b1", "<M8[s]", "<f2", "|S8", "<i8", "[('a','<i8')]"]
    shape = (5, 4) if random.random() < 0.4 else shapes[random.integers(len(shapes))]
    kind = types[random.integers(len(types))] if random.random() < 0.7 else "<i8"
    kind = kind if kind.startswith("[") else repr(kind)
    head = (
        f"{{'descr': {kind}, 'fortran_order': {bool(random.integers(2))}, 'shape': {shape}, }}".encode().ljust(117)
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + X.astype("<i8").tobytes()


NPY: tuple[Damage, ...] = (*ANY, lie_in_npy, lie_in_npy, lie_in_npy)


def write_npy(path: Path, random: np.random.Generator) -> str:
    sound = saved(np.save, np.asfortranarray(X) if random.random() < 0.3 else X.astype(float))
    data, how = damage(sound, random, NPY)
    path.write_bytes(data)
    return how


def zip_of(arrays: dict[str, bytes], method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content, method)
    return file.getvalue()


def write_npz(path: Path, random: np.random.Generator) -> str:
    """Damaged outside; or a sound archive of a damaged array."""
    arrays = {"X": saved(np.save, X), "names": saved(np.save, np.array(ROWS))}
    return _write_zip(path, arrays, random, NPY)


def _write_zip(path: Path, arrays: dict[str, bytes], random: np.random.Generator, ways: tuple[Damage, ...]) -> str:
    how = ""
    method = zipfile.ZIP_DEFLATED if random.random() < 0.5 else zipfile.ZIP_STORED
    inside = random.random() < 0.6
    if inside:
        name = sorted(arrays)[random.integers(len(arrays))]
        arrays[name], how = damage(arrays[name], random, ways)
        how += f" in {name}"
    data = zip_of(arrays, method)
    if not inside:
        data, how = damage(data, random, ANY)
    path.write_bytes(data)
    return how


def write_sparse(path: Path, random: np.random.Generator) -> str:
    """A sparse matrix whose archive, or one of whose parts, is damaged, or whose parts lie."""
    import scipy.sparse

    from nmf_zoo.sparse import LAYOUTS

    layout = sorted(LAYOUTS)[random.integers(len(LAYOUTS))]
    matrix = scipy.sparse.coo_array(X).asformat(layout)
    parts: dict[str, Any] = {part: np.asarray(getattr(matrix, part)) for part in LAYOUTS[layout][1]}
    parts |= {"format": np.array(layout.encode()), "shape": np.array(matrix.shape)}
    if random.random() < 0.4:
        return f"{layout}: " + _write_zip(path, {n: saved(np.save, a) for n, a in parts.items()}, random, NPY)
    name = sorted(parts)[random.integers(len(parts))]
    parts[name], how = _falsify(parts[name], random)
    path.write_bytes(zip_of({n: saved(np.save, a) for n, a in parts.items()}, zipfile.ZIP_STORED))
    return f"{layout}: {how} in {name}"


def _falsify(array: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, str]:
    choice = int(random.integers(8))
    if choice == 0:
        return array.ravel()[: random.integers(array.size + 1)], "shorter"
    if choice == 1:
        return np.concatenate([array.ravel(), array.ravel()]), "longer"
    if choice == 2 or array.dtype.kind == "S":
        return array.astype(str), "text"
    if choice == 3:
        return array + 0.5, "floats"
    if choice == 4:
        return array[None], "another axis"
    if choice == 5:
        return -array, "negative"
    out = np.array(array, dtype=[np.int64, np.uint64, np.float64][random.integers(3)])
    number = NUMBERS[random.integers(len(NUMBERS) - 3)]
    if out.size:
        out.flat[random.integers(out.size)] = number
    return out, f"the number {number}"


def write_mtx(path: Path, random: np.random.Generator) -> str:
    import scipy.io
    import scipy.sparse

    given = [X, X * 1.5, scipy.sparse.coo_array(X), scipy.sparse.coo_array(X * 0.5)][random.integers(4)]
    data, how = damage(saved(scipy.io.mmwrite, given), random, TEXT)
    path.write_bytes(data)
    return how


def write_parquet(path: Path, random: np.random.Generator) -> str:
    import pandas as pd

    frame = pd.DataFrame(X, columns=COLUMNS)
    frame = [frame, frame.set_axis(ROWS), frame.assign(gene=ROWS)[["gene", *COLUMNS]], frame * 0.5][random.integers(4)]
    file = io.BytesIO()
    frame.to_parquet(file)
    data, how = damage(file.getvalue(), random, (*ANY, lie_in_text))
    path.write_bytes(data)
    return how


def read_lines(path: Path) -> None:
    from nmf_zoo.interfaces.tables import read_labels

    found = read_labels(path)
    content = path.read_bytes().decode("utf-8-sig")
    require(not re.search("[\0\x1b\x7f]", "".join(found)), "control characters")
    require(found == [line.strip() for line in re.split("\r\n|\r|\n", content.rstrip())], f"other labels: {found}")


def write_lines(path: Path, random: np.random.Generator) -> str:
    data, how = damage("\n".join(["größe", *ROWS, "a b"]).encode() + b"\n", random, TEXT)
    path.write_bytes(data)
    return how


# -- recordings --------------------------------------------------------------------------------------------------


def read_recording(path: Path) -> None:
    from nmf_zoo.audio.recordings import open_recording, survey

    recording = open_recording(path)
    found = survey(recording)
    require(0 < found.n_samples <= path.stat().st_size, f"{found.n_samples} samples")
    require(bool(np.isfinite(found.power)), f"power {found.power}")
    require(sum(len(block) for block in recording.mono()) == found.n_samples, "another number the second time")


def write_recording(path: Path, random: np.random.Generator) -> str:
    kind, width, coding = [("<i2", 2, 1), ("u1", 1, 1), ("<f4", 4, 3), ("<f8", 8, 3)][random.integers(4)]
    channels = int(random.integers(1, 3))
    sound = (
        (np.sin(np.arange(60 * channels)) * (0.5 if coding == 3 else 90) + 100 * (kind == "u1")).astype(kind).tobytes()
    )
    fmt = struct.pack("<HHIIHH", coding, channels, 8000, 8000 * channels * width, channels * width, 8 * width)
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"LIST" + struct.pack("<I", 4) + b"note"
    body += b"data" + struct.pack("<I", len(sound)) + sound
    head = bytes(44 + 12)
    data, how = damage(b"RIFF" + struct.pack("<I", len(body)) + body, random, (*ANY, *3 * (lie_in(len(head)),)))
    path.write_bytes(data)
    return how


def lie_in(length: int) -> Damage:
    """A lie among the first bytes."""

    def lie_in_head(data: bytes, random: np.random.Generator) -> bytes:
        width, at = int(random.choice([2, 4])), 2 * int(random.integers(length // 2))
        number = NUMBERS[random.integers(len(NUMBERS))] % 256**width
        return data[:at] + number.to_bytes(width, "little") + data[at + width :]

    return lie_in_head


# -- results -----------------------------------------------------------------------------------------------------


def result() -> Any:
    """What a run leaves behind, without a run."""
    import xarray as xr

    from nmf_zoo import _compat

    random = np.random.default_rng(1)
    leading = {"chain": [0, 1], "draw": np.arange(6)}
    W = ("chain", "draw", "feature", "component"), random.gamma(1.0, 1.0, (2, 6, 5, 2))
    H = ("chain", "draw", "component", "obs"), random.gamma(1.0, 1.0, (2, 6, 2, 4))
    labels = {"feature": ROWS, "component": [0, 1], "obs": COLUMNS}
    groups = {
        "posterior": xr.Dataset({"W": W, "H": H}, leading | labels),
        "sample_stats": xr.Dataset({"lp": (("chain", "draw"), random.normal(size=(2, 6)))}, leading),
        "observed_data": xr.Dataset({"X": (("feature", "obs"), X)}, {k: labels[k] for k in ("feature", "obs")}),
    }
    attrs = {"engine": "gibbs", "options": "{}", "seconds": 0.5, "status": "complete", "inference_library": "nmf_zoo"}
    return _compat.inference_data(groups, attrs)


def read_result(path: Path) -> None:
    import nmf_zoo as nz
    from nmf_zoo import _compat

    idata = nz.load(path)
    size = path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    for name in _compat.group_names(idata):
        group = _compat.group(idata, name)
        require(group.nbytes <= 2000 * size, f"{group.nbytes} bytes in {name}")
        for variable in group.variables.values():
            np.asarray(variable)


def write_netcdf(path: Path, random: np.random.Generator) -> str:
    return _write_netcdf(path, random, None)


def write_unsealed(path: Path, random: np.random.Generator) -> str:
    """As others write it."""
    return _write_netcdf(path, random, -SEAL_BYTES)


def _write_netcdf(path: Path, random: np.random.Generator, end: int | None) -> str:
    import nmf_zoo as nz

    sound = Path(path.parent, "sound.nc")
    if not sound.exists():
        nz.save(result(), sound)
    data, how = damage(sound.read_bytes()[:end], random, (*ANY, lie_in_text))
    path.write_bytes(data)
    return how


def write_store(path: Path, random: np.random.Generator) -> str:
    import shutil

    import nmf_zoo as nz

    sound = Path(path.parent, "sound.zarr")
    if not sound.exists():
        nz.save(result(), sound)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound, path)
    running = random.random() < 0.3
    if running:
        (path / ".zmetadata").unlink()
        attrs = json.loads((path / ".zattrs").read_text())
        attrs |= {"status": "running", "readable": {"chains": [0, 1], "draws": 3}}
        (path / ".zattrs").write_text(json.dumps(attrs))
    return f"{'running: ' if running else ''}{damage_folder(path, random)}"


READERS = {
    "csv": text(","),
    "tsv": text("\t"),
    "txt": text(";"),
    "csv.gz": text(",", zipped=True),
    "npy": Reader(write_npy, read_table, ".npy"),
    "npz dense": Reader(write_npz, read_table, ".npz"),
    "npz sparse": Reader(write_sparse, read_table, ".npz"),
    "mtx": Reader(write_mtx, read_table, ".mtx"),
    "parquet": Reader(write_parquet, read_table, ".parquet"),
    "labels": Reader(write_lines, read_lines, ".txt"),
    "wav": Reader(write_recording, read_recording, ".wav"),
    "nc": Reader(write_netcdf, read_result, ".nc"),
    "zarr": Reader(write_store, read_result, ".zarr"),
    "nc without seal": Reader(write_unsealed, read_result, ".nc"),
}


# -- readers that are wrong, for a test of the campaign ------------------------------------------------------------


def _write_bytes(path: Path, random: np.random.Generator) -> str:
    path.write_bytes(random.bytes(4))
    return "noise"


def _crash(path: Path) -> None:
    import ctypes

    ctypes.string_at(0)


def _hang(path: Path) -> None:
    while True:
        pass


def _eat(path: Path) -> None:
    np.ones(10**11)


def _stumble(path: Path) -> None:
    raise KeyError("a bare error")


def _speak(path: Path) -> None:
    import warnings

    warnings.warn("a leak", RuntimeWarning, stacklevel=1)


def _invent(path: Path) -> None:
    raise Wrong("an invented value")


def _ramble(path: Path) -> None:
    from nmf_zoo.errors import InputError

    error = InputError(str(path), "a", "b")
    error.args = ("two\nlines",)
    raise error


PLANTED = {
    f"planted {name.__name__[1:]}": Reader(_write_bytes, name, ".bin")
    for name in (_crash, _hang, _eat, _stumble, _speak, _invent, _ramble)
}

"""Output files: refused before the run when they can't be written, complete or absent after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from nmf_zoo.errors import InputError

# extension -> (modules that write it, what to install to have them)
Formats = Mapping[str, tuple[tuple[str, ...], str]]
NETCDF = (("h5netcdf", "h5py"), "h5netcdf h5py")
RESULTS: Formats = {".nc": NETCDF, ".zarr": (("zarr",), "'nmf_zoo[zarr]'")}
PICTURES: Formats = dict.fromkeys((".png", ".pdf", ".svg"), (("matplotlib",), "'nmf_zoo[plots]'"))


def check_output(path: Path, formats: Formats, force: bool) -> None:
    """Refuse an output that can't be written."""
    if path.suffix not in formats:
        raise InputError("output", str(path), f"a name that ends in {', '.join(formats)}")
    modules, install = formats[path.suffix]
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise InputError("output", f"{path} without {missing[0]}", f"{missing[0]} installed", f"pip install {install}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError("output", str(path), f"a folder that exists, and {folder} doesn't", "create it first")
    _check_existing(path, force)
    _check_writable(path, folder)


def _check_existing(path: Path, force: bool) -> None:
    if not path.exists():
        return
    is_store = path.suffix == ".zarr" and any((path / name).exists() for name in ("zarr.json", ".zgroup"))
    if path.is_dir() and not is_store:
        raise InputError("output", f"{path}, a folder", "a file name")
    if not force:
        raise InputError("output", f"{path}, which exists", "a new name", "or --force to overwrite it")


def _check_writable(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError("output", str(path), f"a folder that can be written to ({error.strerror})") from error


@contextmanager
def complete_or_absent(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it takes the place of ``path`` when all went well."""
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(partial, path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)

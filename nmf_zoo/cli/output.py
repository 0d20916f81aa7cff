"""Output files: refused before the run when they can't be written. After it they are complete or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from nmf_zoo.errors import InputError
from nmf_zoo.files import check_result, shortened

# extension -> (modules that write it, what to install to have them)
Formats = Mapping[str, tuple[tuple[str, ...], str]]
NETCDF = (("h5netcdf", "h5py"), "h5netcdf h5py")
RESULTS: Formats = {".nc": NETCDF, ".zarr": (("zarr",), "'nmf_zoo[zarr]'")}
PICTURES: Formats = dict.fromkeys((".png", ".pdf", ".svg"), (("matplotlib",), "'nmf_zoo[plots]'"))


def check_output(path: Path, formats: Formats, force: bool) -> None:
    """Refuse an output that can't be written."""
    if path.suffix not in formats:
        raise InputError("output", shortened(path), f"a name that ends in {', '.join(formats)}")
    modules, install = formats[path.suffix]
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise InputError("output", f"{path} without {missing[0]}", f"{missing[0]} installed", f"pip install {install}")
    check_result(path, "output")
    if path.exists() and not force:
        raise InputError("output", f"{path}, which exists", "a new name", "or --force to overwrite it")
    _check_writable(path)


def _check_writable(path: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            pass
    except OSError as error:
        raise InputError("output", str(path), f"a folder that can be written to ({error.strerror})") from error

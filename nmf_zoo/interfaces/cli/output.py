"""Output files, refused before the run when they can't be written and complete or absent after it; and signals."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn

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


# -- signals ---------------------------------------------------------------------------------------------------------


SIGNALS = (signal.SIGINT, signal.SIGTERM)
_caught: list[int] = []  # a handler has no other place


@contextmanager
def stopping() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; a signal that is ignored (``nohup``) stays so."""
    _caught.clear()
    if threading.current_thread() is not threading.main_thread():  # where Python has no handlers
        yield
        return
    own = {number: signal.getsignal(number) for number in SIGNALS}
    taken = [number for number in SIGNALS if own[number] is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, own[number] or signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _caught.append(number)
    raise KeyboardInterrupt


def was_stopped() -> bool:
    """Whether a signal came; an import that it broke off may have made another error of it."""
    return bool(_caught)


def exit_code() -> int:
    """130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_caught[0] if _caught else signal.SIGINT)

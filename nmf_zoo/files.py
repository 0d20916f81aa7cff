"""Files that take their place at once: written beside it, brought to disk, renamed. No reader meets half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A path to write a file or a folder to; it becomes ``path`` when all went well, and else is removed.

    What was at ``path`` stays until then, whatever happens: a kill leaves the old or the new, and perhaps what was
    half-made, which the next attempt overwrites. A folder in the place of a folder is removed first, since no system
    call swaps the two.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    partial = partial_of(path)
    _remove(partial)
    try:
        yield partial
        _to_disk(partial)
        if partial.is_dir() and path.is_dir():
            shutil.rmtree(path)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            _remove(partial)
        raise
    if os.name == "posix":
        sync(path.parent)


def partial_of(path: Path) -> Path:
    """Where it is written; the suffix stays, by which some writers choose a format."""
    return path.with_name(f".{path.stem}.partial{path.suffix}")


def sync(path: Path) -> None:
    """Bring a file, or the list of a folder's files, to disk."""
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_disk(path: Path) -> None:
    if path.is_file():
        sync(path)
    elif os.name == "posix":
        for folder, _, files in os.walk(path):
            for name in files:
                sync(Path(folder, name))
            sync(Path(folder))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

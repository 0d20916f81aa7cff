"""Files that take their place at once: written beside it, brought to disk, renamed. No reader meets half of one."""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nmf_zoo.errors import FULL, InputError, NotWritten

STORE_FILES = (".zgroup", ".zmetadata", "zarr.json")  # one of which every Zarr store has
LONGEST_SHOWN = 200
ATTEMPTS = 50  # to remove a folder
_numbers = itertools.count()


@contextmanager
def replacing(path: Path | str, name: str = "path") -> Iterator[Path]:
    """A path to write a file or a folder to; it becomes ``path`` when all went well, and else is removed.

    What was at ``path`` stays until then, whatever happens, and its mode and owner are kept; of a link, what it points
    to is replaced. A kill leaves the old or the new, and perhaps what was half-made, which the next attempt removes. A
    folder in the place of a folder is moved aside first, since no system call swaps the two.

    Raises
    ------
    InputError : what is at ``path`` is no file or folder that may be replaced, or there is no folder around it
    NotWritten : the disk is full, or the system refuses to write for another reason. ``name`` is the argument
    """
    place = check_place(path, name)
    with _one_line(path, place, name):
        old = place.stat() if place.exists() else None
        _remove_left(place)
        partial = partial_of(place)
        try:
            yield partial
            _to_disk(partial)
            if old is not None:
                _keep_owner(partial, old)
            if partial.is_dir() and place.is_dir():
                _swap(partial, place)
            else:
                os.replace(partial, place)
        except BaseException:
            with suppress(OSError):
                _remove(partial)
            raise
        if os.name == "posix":
            sync(place.parent)


def require_there(path: Path, expected: str) -> None:
    """Refuse a name that nothing has, or that is too long for the system, of which pathlib's ``exists`` would raise."""
    if not os.path.exists(path):
        raise InputError(str(path)[:LONGEST_SHOWN], "no such file", expected)


def check_place(path: Path | str, name: str = "path") -> Path:
    """Where ``path`` leads, with links followed; refused when nothing can be written there. Nothing is changed."""
    if "\0" in str(path):
        raise InputError(name, repr(str(path)), "a name without the character NUL")
    place, shown = Path(os.path.realpath(path)), shortened(path)
    if not os.path.isdir(place.parent):
        folder = shortened(Path(path).parent)
        raise InputError(name, f"{shown}, and no folder {folder}", "a folder that exists", "make it")
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return place
    except OSError as error:
        raise InputError(name, f"{shown} ({error.strerror})", "the name of a file", "give another") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(name, f"{shown}, neither a file nor a folder", "a file, or a new name")
    if not os.access(place, os.W_OK):
        raise InputError(name, f"{shown}, which is read-only", "what may be replaced, or a new name")
    return place


def check_result(path: Path | str, name: str = "path") -> None:
    """A result may go to ``path``: a file may replace a file, and a Zarr store a store, but no folder of other things.

    See :func:`check_place` for what else is refused.
    """
    place, shown = check_place(path, name), shortened(path)
    if place.is_file() and Path(path).suffix == ".zarr":
        raise InputError(name, f"{shown}, a file", "a new name, or an earlier store")
    is_store = Path(path).suffix == ".zarr" and any((place / own).exists() for own in STORE_FILES)
    if place.is_dir() and not is_store:
        raise InputError(name, f"{shown}, a folder", "a file name")


def shortened(path: Path | str) -> str:
    """A path as it is shown: without the middle when it is long."""
    text = repr(str(path))
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN // 2]}...{text[-LONGEST_SHOWN // 2 :]}"


def partial_of(path: Path) -> Path:
    """Where it is written, a new name each time; the suffix stays, by which some writers choose a format."""
    return path.with_name(f"{_stem(path)}.{os.getpid()}-{next(_numbers)}.partial{path.suffix[:16]}")


def is_partial(name: str) -> bool:
    """Whether a file of this name is one that a kill left half-made."""
    return re.fullmatch(r"\..*\.\d+-\d+\.partial(\..*)?", name, re.DOTALL) is not None


def sync(path: Path) -> None:
    """Bring a file, or the list of a folder's files, to disk."""
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _one_line(path: Path | str, place: Path, name: str) -> Iterator[None]:
    """What the system says about writing, in our words, also where a library says something else on top of it."""
    try:
        yield
    except Exception as error:
        found = _of_system(error)
        if found is None or (found is not error and found.errno not in FULL):
            raise
        if found.filename is not None and not _is_at(place, found.filename):
            raise  # of a file that is read meanwhile
        raise NotWritten(name, shortened(path), found.errno or 0, found.strerror or str(found)) from error


def _of_system(error: BaseException | None) -> OSError | None:
    """The last error of the system in the chain that led to this one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def _is_at(place: Path, filename: Any) -> bool:
    """Whether the name that an error tells is that of what is written, or of the folder around it."""
    found = Path(os.path.realpath(os.fsdecode(filename)))
    if not found.is_relative_to(place.parent):
        return False
    below = found.relative_to(place.parent).parts
    return not below or below[0] == place.name or below[0].startswith(f"{_stem(place)}.")


def _stem(path: Path) -> str:
    return f".{path.stem[:40]}"


def _to_disk(path: Path) -> None:
    if path.is_file():
        sync(path)
    elif os.name == "posix":
        for folder, _, files in os.walk(path):
            for name in files:
                sync(Path(folder, name))
            sync(Path(folder))


def _keep_owner(path: Path, old: os.stat_result) -> None:
    """The owner where we may give it, and the mode: a file that others may not read stays so."""
    if stat.S_ISDIR(old.st_mode) != path.is_dir():
        return
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(path, old.st_uid, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode))


def _swap(partial: Path, place: Path) -> None:
    aside = place.with_name(partial.name.replace(".partial", ".old"))
    try:
        os.replace(place, aside)
        os.replace(partial, place)
    except BaseException:
        if not place.exists() and aside.exists():
            os.replace(aside, place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _remove_left(place: Path) -> None:
    """Remove what processes that are no more left of this file or folder, when they were killed."""
    if os.name != "posix":
        return  # there is no harmless way to ask whether a process lives
    start, end = re.escape(_stem(place)), re.escape(place.suffix[:16])
    ours = re.compile(rf"{start}\.(\d+)-\d+\.(partial|old){end}", re.DOTALL)
    for name in os.listdir(place.parent):
        found = ours.fullmatch(name)
        if found and not _lives(int(found[1])) and (found[2] == "partial" or place.exists()):
            with suppress(OSError):
                _remove(place.with_name(name))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _remove(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for _ in range(ATTEMPTS):  # threads of Zarr may still be writing to it when one of them has failed
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.02)
        if not path.exists():
            return


def write_figure(figure: Any, path: Path) -> None:
    """The picture in the format that the name says, drawn in memory: on a full disk Matplotlib leaves files open."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=150)
    path.write_bytes(buffer.getvalue())

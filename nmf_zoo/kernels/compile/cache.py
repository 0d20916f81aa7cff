"""Compiled kernels on disk, each under a name that is made of all that it depends on.

A file is found by the function, the types of its arguments, the contents of the file that defines it and of all files
of ours which that imports, directly or not, of those that define the kernels' classes among its arguments (beside which
stands what is chosen by them), by the versions of Python, NumPy, numba and LLVM, numba's settings and the processor
with its features. What changed has another name: nothing is ever out of date, and copies of the package on
one machine share what they have in common. Processes write beside and rename, so no reader meets half of a file; a
damaged one is not read, but compiled again.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from subprocess import Popen
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core import types
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from nmf_zoo.errors import NmfZooWarning

SUFFIX, UNFINISHED, DIGEST_BYTES = ".kernel", ".part", 32
DAYS_KEPT = 60  # of a file that nobody reads
THIS, ROOT = Path(__file__), Path(__file__).parents[2]  # what keeps code does not make it
KERNELS = ROOT / "kernels"
SETTINGS = ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE")  # of numba
in_progress: dict[Path, Popen] = {}  # files that a helper process (`ahead`) is about to write
_started = time.time()  # this file is imported before any kernel is
_listener: ContextVar[Callable[[str], None]] = ContextVar("listener", default=lambda name: None)


@contextmanager
def when_compiling(tell: Callable[[str], None]) -> Iterator[None]:
    """``tell(kernel)`` is called before a kernel is compiled for lack of a file.

    It hears of this context alone: of its thread, and of threads that run in a copy of it. The innermost one is told.
    """
    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)


class KernelCache:
    """numba's interface to the compiled files of one function."""

    def __init__(self, py_func: Any) -> None:
        self._function = py_func
        is_ours = py_func.__closure__ is None and Path(py_func.__code__.co_filename).is_file()
        self._is_on = is_ours  # what a closure holds and what was typed at a prompt has no file to go by

    @property
    def cache_path(self) -> str:
        return str(folder())

    def enable(self) -> None:
        self._is_on = True

    def disable(self) -> None:
        self._is_on = False

    def flush(self) -> None:
        """Forget this function's files."""
        for path in kept():
            if path.name.startswith(f"{self._name()}-"):
                path.unlink(missing_ok=True)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for these types, or None: then numba compiles it."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        content = None if path is None else _read(path)
        if content is None:
            _listener.get()(self._name())
            helper = in_progress.get(path)
            if helper is not None:
                helper.wait()
                content = _read(path)
        if content is None:
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(content))

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep it, unless it holds addresses of this process."""
        path = None if data.library.has_dynamic_globals else self._path(sig, data.codegen)
        if path is not None:
            _write(path, dumps(data._reduce()))

    def missing(self, args: tuple[Any, ...], codegen: Any) -> Path | None:
        """The file that there would be for these types, if there is none yet."""
        path = self._path(args, codegen)
        return None if path is None or path.is_file() else path

    def _name(self) -> str:
        return re.sub(r"[^\w.]", "", f"{self._function.__module__}.{self._function.__qualname__}")[:150]

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        args, line = tuple(getattr(sig, "args", sig)), self._function.__code__.co_firstlineno
        files = {Path(self._function.__code__.co_filename), *_files_of_classes(args)}
        stamps = [source_stamp(file) for file in files] if self._is_on else [None]
        if None in stamps:
            return None
        about = (sorted(set(stamps)), line, described(args), versions(), codegen.magic_tuple())
        return folder() / f"{self._name()}-{_digest(repr(about).encode()).hex()[:32]}{SUFFIX}"


def versions() -> tuple[Any, ...]:
    """All that compiled code depends on beside its source and the processor."""
    settings = (getattr(numba.config, name, None) for name in SETTINGS)
    return (sys.version, numba.__version__, llvmlite.__version__, np.__version__, *settings)


def processor() -> str:
    """The processor that kernels are compiled for: its name, and a digest of what it can."""
    features = binding.get_host_cpu_features().flatten()
    return f"{binding.get_host_cpu_name()} ({_digest(features.encode()).hex()[:8]})"


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def described(kind: Any) -> str:
    """A type, in full: numba writes tuples of two classes of the same name alike."""
    if isinstance(kind, tuple):
        return ", ".join(map(described, kind))
    if isinstance(kind, types.BaseNamedTuple):
        cls = kind.instance_class
        return f"{cls.__module__}.{cls.__qualname__}{kind.fields}({described(tuple(kind))})"
    if isinstance(kind, types.BaseTuple):
        return f"({described(tuple(kind))})"
    return f"{type(kind).__name__}: {kind}"


def _files_of_classes(kind: Any) -> Iterator[Path]:
    """Of the kernels' classes that a type, or a tuple of types, is made of."""
    if isinstance(kind, types.BaseNamedTuple):
        file = Path(getattr(sys.modules.get(kind.instance_class.__module__), "__file__", None) or "")
        if KERNELS in file.parents:
            yield file
    if isinstance(kind, tuple | types.BaseTuple):
        for part in kind:
            yield from _files_of_classes(part)


# -- what a kernel is made of ------------------------------------------------------------------------------------


@cache
def source_stamp(path: Path) -> str | None:
    """Of the file and of all that it imports of its own package and ours; None: one was written since we started."""
    sources = _sources(path)
    if any(source.stat().st_mtime > _started for source in sources):
        return None  # perhaps after it was imported
    return _digest(b"".join(sorted(_digest(_text(source)) for source in sources))).hex()


def _sources(path: Path) -> set[Path]:
    found: set[Path] = set()
    new = {path}
    while new:
        found |= new
        new = {other for source in new for other in _imported(source)} - found - {THIS}
    return found


@cache
def _text(path: Path) -> bytes:
    return path.read_bytes()


IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]*))", re.M)


@cache
def _imported(path: Path) -> frozenset[Path]:
    """Files of modules that a file imports: ours, and those beside it, above it and below."""
    found = set()
    for module, names, modules in IMPORTS.findall(re.sub(rb"#[^\n]*", b"", _text(path))):
        single = [words.split()[0].decode() for words in re.split(rb"[(),]", names or modules) if words.strip()]
        inside = module.decode() + ("" if module.endswith(b".") else ".")
        for name in [module.decode(), *(inside + one for one in single)] if module else single:
            found |= set(_files(name, path))
    return frozenset(found)


def _files(module: str, importer: Path) -> Iterator[Path]:
    below = module.lstrip(".")
    if module.split(".")[0] in ("", ROOT.name):
        base = ROOT.parent if below == module else importer.parents[len(module) - len(below) - 1]
        place = base.joinpath(*below.split("."))
        yield from (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file())
    else:
        file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
        if file.suffix == ".py" and (importer.parent in file.parents or file.parent in importer.parents):
            yield file


# -- files -------------------------------------------------------------------------------------------------------


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if content[:DIGEST_BYTES] != _digest(content[DIGEST_BYTES:]):
        return None  # cut short, or damaged
    with suppress(OSError):
        os.utime(path)  # in use
    return content[DIGEST_BYTES:]


def _write(path: Path, content: bytes) -> None:
    """A full disk or a folder that was removed meanwhile costs the next process its time, not this one its run."""
    with suppress(OSError):
        beside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
        try:
            beside.write_bytes(_digest(content) + content)
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        _remove_old(path.parent)


@cache
def _remove_old(place: Path) -> None:
    """Once in a process that compiles."""
    oldest = time.time() - DAYS_KEPT * 86400
    for path in place.iterdir():
        with suppress(OSError):
            if path.suffix in (SUFFIX, UNFINISHED) and path.stat().st_mtime < oldest:
                path.unlink()


def is_on() -> bool:
    """Whether kernels are compiled at all."""
    return not numba.config.DISABLE_JIT


def kept() -> list[Path]:
    """All compiled kernels, of all versions."""
    return sorted(chosen_folder().glob(f"*{SUFFIX}"))


def clear() -> None:
    """Forget them all. Processes that run keep what they have loaded."""
    for path in (*kept(), *chosen_folder().glob(f"*{UNFINISHED}")):
        path.unlink(missing_ok=True)


def chosen_folder() -> Path:
    """Where compiled kernels belong: ``$NMF_ZOO_CACHE``, or the platform's folder for what can be made again."""
    given = os.environ.get("NMF_ZOO_CACHE")
    if given:
        return Path(given).expanduser() / "kernels"
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "nmf_zoo" / "kernels"


def folder() -> Path:
    """The folder of compiled kernels, made if need be."""
    return _usable(chosen_folder())


def refusal(place: Path) -> str:
    """Why nothing can be kept in a folder, which is made if need be; "" when it can."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
        return ""
    except OSError as error:
        return error.strerror or str(error)


@cache
def _usable(place: Path) -> Path:
    if reason := refusal(place):
        other = Path(tempfile.mkdtemp(prefix="nmf_zoo-"))
        atexit.register(shutil.rmtree, other, ignore_errors=True)
        (other / "kernels").mkdir()  # so that NMF_ZOO_CACHE can name it
        warnings.warn(
            f"compiled kernels cannot be kept in {place} ({reason}): they go to {other}, where other processes "
            "do not find them; set NMF_ZOO_CACHE to a folder that can be written",
            NmfZooWarning,
            stacklevel=2,
        )
        return other / "kernels"
    return place

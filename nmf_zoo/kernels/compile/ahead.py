"""Kernels compiled by processes of our own while this one prepares the run that calls them.

numba lets one thread of a process compile at a time, so that what is to be compiled side by side goes to others:
``python -m nmf_zoo.kernels.compile``, which import numba and not PyMC. Each compiles one kernel, keeps it in the cache,
and ends. Who needs a kernel that one of them is at waits for it (`KernelCache`), and compiles it himself if it fails.

A helper's standard input is its life: when that is closed, however it came, it ends, whatever it is compiling.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any

import numba

from nmf_zoo.kernels.compile import cache

Call = tuple[Any, tuple[Any, ...]]  # a kernel, and arguments of the types that it is called with


def start_helper(module: str, **pipes: Any) -> subprocess.Popen:
    """A process that runs a module of ours, with this one's cache, also where that is a temporary one."""
    path = os.pathsep.join(filter(None, [str(cache.ROOT.parent), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path, "NMF_ZOO_CACHE": str(cache.folder().parent)},
        **pipes,
    )


def end_helper(helper: subprocess.Popen) -> None:
    """Whatever it does; nothing is left of it."""
    helper.kill()
    helper.wait()
    with suppress(OSError):  # what it did not read
        helper.stdin.close()


def end_with(stream: IO[Any], read: Any) -> None:
    """In a helper: hand what is read from its standard input to ``read``, and end when that is closed."""

    def listen() -> None:
        for line in stream:
            read(line)
        os._exit(0)  # in the middle of a kernel, too

    Thread(target=listen, daemon=True).start()


@contextmanager
def compiling_ahead(calls: Sequence[Call], most: int) -> Iterator[None]:
    """Have kernels compiled that are not in the cache, by ``most`` processes; at the end of the context these end, too.

    A kernel that another context already has compiled is left to that.
    """
    helpers: dict[Path, subprocess.Popen] = {}
    try:
        for kernel, arguments in calls if cache.is_on() and sys.executable else ():
            takes = tuple(map(numba.typeof, arguments))
            path = kernel._cache.missing(takes, kernel.targetctx.codegen())
            if path is not None and path not in cache.in_progress and len(helpers) < most:
                helpers[path] = cache.in_progress[path] = _start(kernel, takes)
        yield
    finally:
        for path, helper in helpers.items():
            cache.in_progress.pop(path, None)
            end_helper(helper)


def _start(kernel: Any, takes: tuple[Any, ...]) -> subprocess.Popen:
    helper = start_helper(__package__, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with suppress(OSError):  # it has ended already: then nobody finds a file, and compiles
        helper.stdin.write(pickle.dumps((kernel.__module__, kernel.__qualname__, takes)))
        helper.stdin.flush()
    return helper

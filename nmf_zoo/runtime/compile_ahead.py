"""The kernels of a run, compiled by other processes from its beginning on: while it is read, and while it searches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nmf_zoo.kernels.compile import cache
from nmf_zoo.kernels.compile.ahead import compiling_ahead
from nmf_zoo.runtime.compile_times import first_run
from nmf_zoo.runtime.engine import Engine, Registration
from nmf_zoo.structure import Factorisation

_asked: set[str] = set()  # first runs of this process: later ones have their kernels


@contextmanager
def compiled_ahead(engine: Registration, structure: Factorisation, options: Any, cores: int) -> Iterator[None]:
    """A context in which what an engine will call on a model is being compiled, where it is not in the cache.

    One core is busy with the run itself, and gets no help. What is still compiled at the end is left.
    """
    run, calls = first_run(engine.name, structure), []
    if cores > 1 and cache.is_on() and isinstance(engine, Engine) and engine.ahead is not None and run not in _asked:
        calls = list(engine.ahead(structure, options))
        _asked.update([run] if calls else [])
    with compiling_ahead(calls, most=cores):
        yield

"""The kernels of a run, compiled by other processes from its beginning on: while it is read, and while it searches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nmf_zoo.kernels.compile import cache
from nmf_zoo.kernels.compile.ahead import Call, compiling_ahead
from nmf_zoo.runtime.compile_times import first_run
from nmf_zoo.runtime.engine import Engine, Registration
from nmf_zoo.structure import Factorisation

MOST_LAID_OUT = 1 << 20  # stored cells: of more, laying them out once more costs as much as it could save
_asked: set[str] = set()  # first runs of this process: later ones have their kernels


@contextmanager
def compiled_ahead(engine: Registration, structure: Factorisation, options: Any, cores: int) -> Iterator[None]:
    """A context in which what an engine will call on a model is being compiled, where it is not in the cache.

    One core is busy with the run itself, and gets no help. What is still compiled at the end is left.
    """
    run, calls = first_run(engine.name, structure), list[Call]()
    if cores > 1 and cache.is_on() and run not in _asked:
        calls = calls_of(engine, structure, options)
        _asked.update([run] if calls else [])
    with compiling_ahead(calls, most=cores):
        yield


def calls_of(engine: Registration, structure: Factorisation, options: Any) -> list[Call]:
    """The kernels that an engine names, where it names any and asking costs little beside what they take."""
    if not isinstance(engine, Engine) or engine.ahead is None or structure.data is None:
        return []
    return list(engine.ahead(structure, options)) if structure.data.values.size <= MOST_LAID_OUT else []

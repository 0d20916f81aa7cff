"""Where a run that goes over its data block by block keeps arrays of each block: in memory, or in files of its own.

Arrays are kept under a turn (a pass over the data) and the number of the block, and whole turns are dropped: a
pass that turns out to be a loss is written again from the turn before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import numpy as np

from nmf_zoo.errors import NotWritten
from nmf_zoo.structure import Array

Arrays = Mapping[str, Array]
RESULT = -1  # the turn of what an engine hands back


class BlockArrays(Protocol):
    """Arrays by turn, number of a block, and name."""

    def put(self, turn: int, number: int, arrays: Arrays) -> None:
        """Keep arrays, in place of those that are there."""

    def get(self, turn: int, number: int, *names: str) -> list[Array]:
        """Those of these names; they are not to be written to."""

    def expect(self, turn: int, number: int) -> None:
        """What a pass will ask for next, of which it asks now of another block: it may be read in advance."""

    def names(self, turn: int) -> list[str]:
        """The names of the arrays of a turn's first block."""

    def drop(self, turn: int) -> None:
        """Forget a turn, if there is one."""

    def receipt(self, turn: int, numbers: Sequence[int]) -> Any:
        """What this process knows of arrays that it has put, for ``note`` in another one."""

    def note(self, turn: int, receipt: Any) -> None:
        """Arrays that another process has put."""


class InMemory:
    """Arrays for tables whose activations fit into memory."""

    def __init__(self) -> None:
        self._turns: dict[int, dict[int, Arrays]] = {}

    def put(self, turn: int, number: int, arrays: Arrays) -> None:
        self._turns.setdefault(turn, {})[number] = arrays

    def get(self, turn: int, number: int, *names: str) -> list[Array]:
        return [self._turns[turn][number][name] for name in names]

    def expect(self, turn: int, number: int) -> None:
        """They are there."""

    def names(self, turn: int) -> list[str]:
        return sorted(self._turns[turn][0])

    def drop(self, turn: int) -> None:
        self._turns.pop(turn, None)

    def receipt(self, turn: int, numbers: Sequence[int]) -> Any:
        raise NotImplementedError("no other process sees arrays in memory")

    note = receipt


class ReadInAdvance(NamedTuple):
    """Arrays of a block that a thread reads: those of these names, or None where they could not be read."""

    place: tuple[int, int]
    names: tuple[str, ...]
    arrays: Future[dict[str, Array] | None]


class OnDisk:
    """Arrays of NumPy files below ``folder``, one for each array, which ``close`` removes.

    A thread of its own writes the arrays of a block while the next is worked on, removes turns that are dropped, and
    reads what is expected, in the order in which it is asked to. Of one block at a time arrays wait to be written, and
    an error in that is raised by the next call, and by all that follow. A file is there as a whole or not at all: a
    process that was thought dead may write one that is there already. Threads of a worker may share one of these.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._thread: ThreadPoolExecutor | None = None
        self._asked: list[Future[None]] = []  # of writing and removing, in order; those that went well are dropped
        self._lock = Lock()
        self._unwritten: dict[tuple[int, int], Arrays] = {}
        self._here: ReadInAdvance | None = None  # of the block that is worked on
        self._next: ReadInAdvance | None = None
        self._wanted: tuple[tuple[int, int] | None, tuple[str, ...]] = None, ()  # whose arrays were asked for last

    def __reduce__(self) -> Any:
        """In another process it has nothing to write yet."""
        return type(self), (self.folder,)

    def put(self, turn: int, number: int, arrays: Arrays) -> None:
        self.flush()
        self._forget(lambda place: place == (turn, number))
        self._unwritten[turn, number] = arrays
        self._ask(self._write_pending, turn, number)

    def get(self, turn: int, number: int, *names: str) -> list[Array]:
        self._raise_what_failed()
        place = turn, number
        own, before = self._wanted
        self._wanted = place, (*before, *names) if own == place else names
        unwritten = self._unwritten.get(place)
        if unwritten is not None:
            return [unwritten[name] for name in names]
        for found in (self._here, self._next):
            if found is not None and found.place == place and set(names) <= set(found.names):
                arrays = found.arrays.result()
                if arrays is not None:
                    return [arrays[name] for name in names]
        return [self._load(turn, number, name) for name in names]

    def expect(self, turn: int, number: int) -> None:
        """Reads what was asked for last, of another block."""
        names = self._wanted[1]
        self._here, self._next = self._next, None
        if names:
            self._next = ReadInAdvance((turn, number), names, self._submit(self._read, turn, number, names))

    def names(self, turn: int) -> list[str]:
        self.flush()
        found = (self.folder / str(turn)).glob("0.*.npy")
        return sorted(path.name.removeprefix("0.").removesuffix(".npy") for path in found)

    def drop(self, turn: int) -> None:
        self._forget(lambda place: place[0] == turn)
        self._ask(self._remove, turn)

    def receipt(self, turn: int, numbers: Sequence[int]) -> Any:
        self.flush()

    def note(self, turn: int, receipt: Any) -> None:
        """They are in their files."""

    def flush(self) -> None:
        """Wait until all that was put is in files."""
        with self._lock:
            while self._asked:
                self._asked[0].result()
                del self._asked[0]

    def close(self) -> None:
        """Remove the folder."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        """Let the thread end; what it could not write nobody asks for any more."""
        if self._thread is not None:
            self._thread.shutdown()
        self._asked, self._thread, self._here, self._next = [], None, None, None
        self._unwritten.clear()

    def _submit(self, work: Callable[..., Any], *of: Any) -> Future[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
        return self._thread.submit(work, *of)

    def _ask(self, work: Callable[..., None], *of: int) -> None:
        self._asked.append(self._submit(work, *of))

    def _raise_what_failed(self) -> None:
        for asked in list(self._asked):
            if asked.done():
                asked.result()

    def _forget(self, is_gone: Callable[[tuple[int, int]], bool]) -> None:
        """What was read in advance, and is not what a file will hold."""
        here, following = (None if own is None or is_gone(own.place) else own for own in (self._here, self._next))
        self._here, self._next = here, following

    # -- by the thread -------------------------------------------------------------------------------------------------

    def _write_pending(self, turn: int, number: int) -> None:
        self._write(turn, number, self._unwritten[turn, number])
        del self._unwritten[turn, number]

    def _write(self, turn: int, number: int, arrays: Arrays) -> None:
        place = self.folder / str(turn)
        try:
            place.mkdir(parents=True, exist_ok=True)
            for name, array in arrays.items():
                partial = place / f".{number}.{name}.{uuid4().hex}.npy"
                np.save(partial, array)
                partial.replace(place / f"{number}.{name}.npy")
        except OSError as error:
            raise NotWritten("store", str(place), error.errno or 0, error.strerror or str(error)) from error

    def _read(self, turn: int, number: int, names: Sequence[str]) -> dict[str, Array] | None:
        try:
            return {name: self._load(turn, number, name) for name in names}
        except (OSError, ValueError):  # it may have been expected in vain: whoever asks for them reads them again
            return None

    def _load(self, turn: int, number: int, name: str) -> Array:
        found: Array = np.load(self.folder / str(turn) / f"{number}.{name}.npy")
        return found

    def _remove(self, turn: int) -> None:
        shutil.rmtree(self.folder / str(turn), ignore_errors=True)

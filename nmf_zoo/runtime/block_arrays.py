"""Where a run that goes over its data block by block keeps arrays of each block: in memory, or in files of its own.

Arrays are kept under a turn (a pass over the data) and the number of the block, and whole turns are dropped: a
pass that turns out to be a loss is written again from the turn before.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
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

    def names(self, turn: int) -> list[str]:
        return sorted(self._turns[turn][0])

    def drop(self, turn: int) -> None:
        self._turns.pop(turn, None)

    def receipt(self, turn: int, numbers: Sequence[int]) -> Any:
        raise NotImplementedError("no other process sees arrays in memory")

    note = receipt


class OnDisk:
    """Arrays of NumPy files below ``folder``, one for each array, which ``close`` removes.

    A file is there as a whole or not at all: a process that was thought dead may write one that is there already.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def put(self, turn: int, number: int, arrays: Arrays) -> None:
        place = self.folder / str(turn)
        try:
            place.mkdir(parents=True, exist_ok=True)
            for name, array in arrays.items():
                partial = place / f".{number}.{name}.{uuid4().hex}.npy"
                np.save(partial, array)
                partial.replace(place / f"{number}.{name}.npy")
        except OSError as error:
            raise NotWritten("store", str(place), error.errno or 0, error.strerror or str(error)) from error

    def get(self, turn: int, number: int, *names: str) -> list[Array]:
        return [np.load(self.folder / str(turn) / f"{number}.{name}.npy") for name in names]

    def names(self, turn: int) -> list[str]:
        found = (self.folder / str(turn)).glob("0.*.npy")
        return sorted(path.name.removeprefix("0.").removesuffix(".npy") for path in found)

    def drop(self, turn: int) -> None:
        shutil.rmtree(self.folder / str(turn), ignore_errors=True)

    def receipt(self, turn: int, numbers: Sequence[int]) -> Any:
        return None

    def note(self, turn: int, receipt: Any) -> None:
        """They are in their files."""

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

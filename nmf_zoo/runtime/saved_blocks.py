"""Checkpoints of runs over blocks: arrays of the blocks lie in the checkpoint's folder, those of a save until the next.

A state names the turn of its arrays, and their checksums are saved with it. A turn that the last save needs is dropped
only when another save is there, so that a kill at any moment leaves one whole: the state and its arrays.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nmf_zoo.runtime.block_arrays import Arrays, OnDisk
from nmf_zoo.runtime.checkpoint import Checkpoint, RunFiles, Saved
from nmf_zoo.runtime.state_io import Damaged
from nmf_zoo.runtime.state_patterns import Each
from nmf_zoo.structure import Array

FOLDER = "blocks"  # within that of the checkpoint


class SavedArrays(OnDisk):
    """Arrays of which those of one turn, the last one saved, stay."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._kept: int | None = None
        self._sums: dict[int, dict[str, int]] = {}

    def receipt(self, turn: int, numbers: Sequence[int]) -> Any:
        """Checksums of their arrays, which this process need not keep."""
        self.flush()
        wanted, sums = set(map(str, numbers)), self._sums.get(turn, {})  # of a pass that keeps nothing there are none
        return {entry: sums.pop(entry) for entry in list(sums) if entry.partition(".")[0] in wanted}

    def note(self, turn: int, receipt: Any) -> None:
        self._sums.setdefault(turn, {}).update(receipt)

    def drop(self, turn: int) -> None:
        if turn != self._kept:
            super().drop(turn)

    def sums(self, turn: int) -> dict[str, int]:
        """Checksums of the arrays of a turn, which are on the disk from now on."""
        self.flush()
        for path in (self.folder / str(turn)).glob("*.npy"):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        return dict(self._sums[turn])

    def keep(self, turn: int) -> None:
        """Let this turn stay, and no other."""
        self._kept = turn
        for path in list(self.folder.glob("*")):
            if path.name != str(turn):
                self.drop(int(path.name))

    def restore(self, turn: int, sums: dict[str, int]) -> None:
        """Be as when these were saved; Damaged where they are not there."""
        for entry, expected in sums.items():
            number, _, name = entry.partition(".")
            try:
                (array,) = self.get(turn, int(number), name)
            except (OSError, ValueError) as error:
                raise Damaged(f"without the array {name} of block {number} ({type(error).__name__})") from None
            if _sum_of(array) != expected:
                raise Damaged(f"damaged: the array {name} of block {number}")
        self._sums[turn] = dict(sums)
        self.keep(turn)

    def close(self) -> None:
        """Drop what no save needs."""
        self._end()
        for path in self.folder.glob("*"):
            if int(path.name) != self._kept:
                self._remove(int(path.name))

    # -- by the thread -------------------------------------------------------------------------------------------------

    def _write(self, turn: int, number: int, arrays: Arrays) -> None:
        super()._write(turn, number, arrays)
        self._sums.setdefault(turn, {}).update({f"{number}.{name}": _sum_of(array) for name, array in arrays.items()})

    def _remove(self, turn: int) -> None:
        self._sums.pop(turn, None)
        super()._remove(turn)


def _sum_of(array: Array) -> int:
    about = repr((array.shape, array.dtype.str)).encode()
    return zlib.crc32(np.ascontiguousarray(array).data, zlib.crc32(about))


class SavedWithArrays:
    """The files of a run whose state has a ``turn`` of arrays; as :class:`~nmf_zoo.runtime.checkpoint.RunFiles`."""

    def __init__(self, part: RunFiles, arrays: SavedArrays):
        self._part, self._arrays = part, arrays
        self.is_due, self.refused = part.is_due, part.refused

    def load(self, pattern: Any) -> Saved | None:
        """What was saved last, or None; its arrays are there, and no others."""
        saved = self._part.load({**pattern, "arrays": Each(int)})
        if saved is None:
            return None
        tree = dict(saved.tree)
        sums = tree.pop("arrays")
        with self._part.refused(self._arrays.folder):
            self._arrays.restore(tree["state"].turn, sums)
        return saved._replace(tree=tree)

    def save(self, tree: Any, rows: Any) -> bool:
        """The arrays, and then the state that names them."""
        turn = tree["state"].turn
        is_saved = self._part.save({**tree, "arrays": self._arrays.sums(turn)}, rows)
        if is_saved:
            self._arrays.keep(turn)
        return is_saved


class BlockCheckpoint(Checkpoint):
    """A checkpoint whose parts save arrays of blocks, too, each its own."""

    def __init__(self, checkpoint: Checkpoint, arrays: Sequence[SavedArrays]):
        self.path, self.entropy, self.run_id = checkpoint.path, checkpoint.entropy, checkpoint.run_id
        self._parts, self._arrays = checkpoint, arrays

    def part(self, name: int | str) -> Any:
        return SavedWithArrays(self._parts.part(name), self._arrays[int(name)])

    def close(self) -> None:
        self._parts.close()

"""What the driver keeps of a chain: its draws and their statistics, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nmf_zoo.structure import Array


class Trace:
    """Draws and statistics of one chain, in arrays made at the first record."""

    def __init__(self, length: int):
        self.length, self.filled = length, 0
        self.values: dict[str, Array] = {}
        self.stats: dict[str, Array] = {}

    def extend(self, values: Mapping[str, Array], stats: Mapping[str, Array]) -> None:
        """Append the kept sweeps of a block, (kept, *variable) each."""
        for store, new in ((self.values, values), (self.stats, stats)):
            for name, array in new.items():
                if name not in store:
                    store[name] = np.empty((self.length, *array.shape[1:]), dtype=array.dtype)
                store[name][self.filled : self.filled + len(array)] = array
        self.filled += len(next(iter(stats.values())))


@dataclass
class Chain:
    """What sampling one chain gave."""

    warmup: Trace
    draws: Trace

"""A sparse table of any size, made block by block: each sample has counts of some features, drawn from K profiles."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from nmf_zoo.verbs.block_source import bounds_of


class LargeTable:
    """``cells`` counts a sample, of F features, N samples, ``size`` of a block; the same whenever it is read."""

    def __init__(self, F: int, N: int, cells: int, size: int, rank: int = 5, seed: int = 1):
        rng = np.random.default_rng(seed)
        self.shape, self.bounds, self.cells, self.seed = (F, N), bounds_of(N, size), cells, seed
        self.profiles = np.cumsum(rng.dirichlet(np.full(F, 0.1), rank), axis=1)

    def read(self, number: int) -> sp.csc_array:
        """Samples of a block: counts of features that are drawn from one profile each, at least one a cell."""
        rng, n = np.random.default_rng((self.seed, number)), self.bounds[number + 1] - self.bounds[number]
        of_sample = rng.integers(len(self.profiles), size=n)
        rows = np.empty((n, self.cells), dtype=np.int32)
        for k, profile in enumerate(self.profiles):
            own = of_sample == k
            drawn = np.searchsorted(profile, rng.random((own.sum(), self.cells)))
            rows[own] = np.minimum(drawn, self.shape[0] - 1)
        indptr = np.arange(0, n * self.cells + 1, self.cells)
        matrix = sp.csc_array((np.ones(rows.size), rows.ravel(), indptr), shape=(self.shape[0], n))
        matrix.sum_duplicates()
        return matrix


def private_memory() -> int:
    """Bytes of this process that no file stands for."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class PeakOfMemory:
    """The most private memory while it lasts, looked at every few milliseconds."""

    def __enter__(self) -> PeakOfMemory:
        self.peak, self._over = private_memory(), threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._over.is_set():
            self.peak = max(self.peak, private_memory())
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

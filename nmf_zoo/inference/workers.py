"""Threads inside one chain: kernels release the GIL, so that chunks of the data run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Workers:
    """Map a kernel over chunks, in order; with one thread there is no pool at all.

    Sums over chunks are the caller's, in the order of the chunks, so that results do not depend on ``threads``.
    """

    def __init__(self, threads: int = 1):
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        """``[work(...) for ... in zip(*items)]``"""
        return list(map(work, *items) if self._pool is None else self._pool.map(work, *items))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


SERIAL = Workers()

"""Threads inside one chain: kernels release the GIL, so that chunks of the data run side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from threadpoolctl import threadpool_limits


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


class OneBlasThread:
    """Holds BLAS to one thread while any run lasts; runs may overlap, and the last to end restores what was there."""

    _lock = threading.Lock()
    _runs = 0
    _limits: threadpool_limits | None = None

    def __enter__(self) -> None:
        with self._lock:
            if OneBlasThread._runs == 0:
                OneBlasThread._limits = threadpool_limits(1)
            OneBlasThread._runs += 1

    def __exit__(self, *_) -> None:
        with self._lock:
            OneBlasThread._runs -= 1
            if OneBlasThread._runs == 0 and OneBlasThread._limits is not None:
                OneBlasThread._limits.restore_original_limits()

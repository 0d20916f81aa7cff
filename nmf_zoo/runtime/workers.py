"""Threads inside a chain: kernels release the GIL, so that chunks of the data run side by side."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from threadpoolctl import ThreadpoolController

WORTH_SHARING = 1 << 14  # cells; waking a helper takes as long as updating as many


class Workers:
    """Map a kernel over chunks, in order: in the caller's thread, and in helpers on the cores that are idle.

    Callers share the idle cores: each takes what is there when it starts a map, and gives it back after. Sums over
    chunks are the caller's, in the order of the chunks, so that results do not depend on who helped.
    """

    def __init__(self, threads: int = 1):
        self._idle = threads - 1
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def threads(self) -> int:
        """The threads that a map would have now, the caller's included."""
        return 1 + max(self._idle, 0)

    def add_cores(self, count: int) -> None:
        """Make cores available for helpers, or take them back."""
        with self._lock:
            self._idle += count

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        """``[work(...) for ... in zip(*items)]``"""
        tasks = list(zip(*items, strict=False))
        helpers = self._take(len(tasks) - 1)
        if not helpers:
            return [work(*task) for task in tasks]
        results: list[Any] = [None] * len(tasks)
        next_tasks = iter(range(len(tasks)))  # shared: whoever is free does the next one

        def take_turns() -> None:
            for task in next_tasks:
                results[task] = work(*tasks[task])

        futures = [self._pool.submit(copy_context().run, take_turns) for _ in range(helpers)]
        try:
            take_turns()
        finally:
            failed = [future.exception() for future in futures if not future.cancel()]
            self.add_cores(helpers)
        for error in filter(None, failed):
            raise error
        return results

    def map_rows(self, work: Callable[[int, int], Any], array: Any) -> list[Any]:
        """``work(first, last)`` over all rows of an array, as many at a time as suits the threads.

        For work whose results don't depend on how the rows are cut.
        """
        parts = 2 * self.threads if self.threads > 1 and array.size >= WORTH_SHARING else 1
        bounds = [len(array) * part // parts for part in range(parts + 1)]
        return self.map(work, bounds[:-1], bounds[1:])

    def fold(self, work: Callable[..., Any], items: Sequence[Any], add: Callable[[Any], None]) -> None:
        """``add(work(item))`` for every item, in order, each as soon as those before it are done.

        The one who finishes an item adds it while others work; few results wait for their turn.
        """
        waiting: dict[int, Any] = {}
        turn, lock = 0, threading.Lock()

        def work_and_add(number: int, item: Any) -> None:
            nonlocal turn
            found = work(item)
            with lock:
                waiting[number] = found
                while turn in waiting:
                    add(waiting.pop(turn))
                    turn += 1

        self.map(work_and_add, range(len(items)), items)

    def _take(self, most: int) -> int:
        """Take up to ``most`` idle cores; how many there were."""
        if most < 1 or self._idle < 1:
            return 0
        with self._lock:
            taken = max(min(most, self._idle), 0)
            self._idle -= taken
            if self._pool is None:
                self._pool = ThreadPoolExecutor()
        return taken

    def __reduce__(self) -> Any:
        """In another process they are that process's: its caller alone."""
        return Workers, ()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


SERIAL = Workers()


class OneBlasThread:
    """Holds BLAS to one thread while any run lasts; runs may overlap, and the last to end restores what was there."""

    _lock = threading.Lock()
    _runs = 0
    _limits: Any = None
    _controller: ThreadpoolController | None = None
    _modules = 0

    def __enter__(self) -> None:
        with self._lock:
            if OneBlasThread._runs == 0:
                OneBlasThread._limits = self._loaded().limit(limits=1)
            OneBlasThread._runs += 1

    def __exit__(self, *_) -> None:
        with self._lock:
            OneBlasThread._runs -= 1
            if OneBlasThread._runs == 0 and OneBlasThread._limits is not None:
                OneBlasThread._limits.restore_original_limits()

    @staticmethod
    def _loaded() -> ThreadpoolController:
        """The libraries there are. To look for them takes longer than a small fit; new ones come with new modules."""
        if OneBlasThread._controller is None or OneBlasThread._modules != len(sys.modules):
            OneBlasThread._controller, OneBlasThread._modules = ThreadpoolController(), len(sys.modules)
        return OneBlasThread._controller

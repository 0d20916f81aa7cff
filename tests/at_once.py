"""Executors without threads: what threads would do in their own time happens in one order, at once or at the last."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any


class AtOnce(Executor):
    """In the place of a thread that reads blocks: nothing is written, dropped or counted meanwhile."""

    def __init__(self, threads: int):
        assert threads == 1

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*args, **kwargs))
        return done


class AtLast(Executor):
    """Works only when somebody waits: a thread that has not come to what it was asked to, in order, until then."""

    def __init__(self, threads: int):
        assert threads == 1
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found = Late(self)
        self.waiting.append((found, partial(function, *args, **kwargs)))
        return found

    def work(self) -> None:
        """All that was asked so far."""
        while self.waiting:
            found, function = self.waiting.pop(0)
            try:
                found.set_result(function())
            except Exception as error:
                found.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.work()


class Late(Future[Any]):
    """Of an executor that works when its results are asked for."""

    def __init__(self, executor: AtLast):
        super().__init__()
        self.executor = executor

    def result(self, timeout: float | None = None) -> Any:
        self.executor.work()
        return super().result(timeout)

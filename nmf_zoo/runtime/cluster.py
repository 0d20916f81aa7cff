"""Work in pieces on a Dask cluster: futures in order, and no more of Dask than ``client.submit``.

What all pieces share goes to each worker once. A piece that is lost with its worker is done again by another, with the
same result: pieces read what they need from storage that all workers see, and leave there what is to stay. Workers are
held to the versions and the processor of this process, since results are to have the same bits wherever they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from importlib.metadata import version
from typing import Any, TypeVar

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.kernels.compile.cache import processor, versions
from nmf_zoo.runtime.workers import OneBlasThread

Item = TypeVar("Item")
RUNNING = "running"  # the status of a client with a scheduler
KILLED = "KilledWorker"  # what the scheduler says of a piece whose workers ended more often than it allows
FIRST, BEYOND = (2025, 1), (2027, 0)  # versions of distributed, year and month, that `nmf_zoo[dask]` installs
MOST_LOST = 5  # times in a pass that this may be said: by then it is the piece


def is_client(executor: Any) -> bool:
    """Whether it is a ``dask.distributed.Client``."""
    return type(executor).__module__.split(".")[0] == "distributed" and hasattr(executor, "scheduler_info")


def require_version() -> None:
    """Refuse a distributed that this has not been written for: its versions are dates, and promise nothing."""
    found = version("distributed")
    if not FIRST <= tuple(int(part) for part in found.split(".")[:2]) < BEYOND:
        expected = f"one of {FIRST[0]}.{FIRST[1]} or later, before {BEYOND[0]}"
        raise InputError("executor", f"a Client of distributed {found}", expected, "pip install 'nmf_zoo[dask]'")


class Cluster:
    """The workers of a ``dask.distributed.Client``, which is left open."""

    def __init__(self, client: Any):
        require_version()
        self._client = client
        self._address = client.scheduler_info()["address"]
        self._shared: Any = None  # what pieces shared last, and its future
        self._sent: Any = None

    def __reduce__(self) -> Any:
        """A worker has no cluster of its own."""
        return _none, ()

    def map(self, work: Callable[[Any, Any, Item], Any], shared: Any, own: Any, items: Sequence[Item]) -> Iterator[Any]:
        """``work(shared, own, item)`` of every item, in order.

        ``work`` is a function of a module. ``shared`` is sent where it is another object than in the call before.

        Raises
        ------
        RunFailed : the scheduler is gone, or pieces end the workers that take them
        """
        waiting, lost = list(items), 0
        try:
            while waiting:
                try:
                    for found in self._results(work, shared, own, waiting):
                        del waiting[0]
                        yield found
                except Exception as error:
                    lost += 1
                    if type(error).__name__ != KILLED:
                        raise
                    if lost > MOST_LOST:
                        raise RunFailed(
                            "workers end while they work on a piece, again and again, perhaps for want of memory; "
                            "smaller blocks take less"
                        ) from error
                    self._shared = None  # what they had goes out again
        except (CancelledError, OSError) as error:
            if isinstance(error, OSError) and self._client.status == RUNNING:
                raise
            raise RunFailed(
                f"the Dask scheduler at {self._address} is gone ({type(error).__name__}); with checkpoint= the same "
                f"call goes on where it was saved last"
            ) from error

    def _results(self, work: Callable[..., Any], shared: Any, own: Any, items: Sequence[Any]) -> Iterator[Any]:
        """Of the items, in order; those that nobody waits for any more are given up."""
        if shared is not self._shared:
            self._shared, self._sent = shared, self._client.submit(_itself, shared, pure=False)
        sent, here = self._client.submit(_itself, own, pure=False), fingerprint()
        futures = [self._client.submit(_piece, work, self._sent, sent, item, here, pure=False) for item in items]
        try:
            for place in range(len(futures)):
                found, futures[place] = futures[place].result(), None  # its result is dropped with the future
                yield found
        finally:
            self._give_up([future for future in futures if future is not None])

    def _give_up(self, futures: list[Any]) -> None:
        """Pieces that nobody waits for any more, if there are some."""
        if futures:
            self._client.cancel(futures)


def fingerprint() -> dict[str, str]:
    """What decides the bits of a result, beside the input."""
    from nmf_zoo import __version__

    python, numba, llvm, numpy, *_ = versions()
    found = {"nmf_zoo": __version__, "Python": python.split()[0], "numba": numba, "llvmlite": llvm, "NumPy": numpy}
    return {**found, "processor": processor()}


def _itself(value: Any) -> Any:
    return value


def _none() -> None:
    return None


def require_alike(expected: dict[str, str]) -> None:
    """Refuse to work for a process whose bits would be others than this one's."""
    for name, value in fingerprint().items():
        if value != expected[name]:
            got = f"a worker with {name} {value}"
            raise InputError("executor", got, f"{expected[name]}, as this process has", "start workers that are alike")


def _piece(work: Callable[..., Any], shared: Any, own: Any, item: Any, expected: dict[str, str]) -> Any:
    """One piece, in a process like the client's."""
    require_alike(expected)
    with OneBlasThread():
        return work(shared, own, item)

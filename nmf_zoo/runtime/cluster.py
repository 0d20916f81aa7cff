"""Work in pieces on a Dask cluster: futures in order, and no more of Dask than ``client.submit``.

What all pieces share goes to each worker once. A piece that is lost with its worker is done again by another, with the
same result: pieces read what they need from storage that all workers see, and leave there what is to stay. What they
have read workers keep while they live and have room, as results of Dask's own, so that it sends the piece of the next
call to where that is, makes it again where it was lost, and writes it to a worker's disk where memory gets short.
Workers are held to the versions and the processor of this process, since results are to have the same bits wherever
they come from.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from importlib.metadata import version
from typing import Any, TypeVar

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.kernels.compile.cache import processor, versions
from nmf_zoo.runtime.workers import OneBlasThread

Item = TypeVar("Item", bound=Hashable)
RUNNING = "running"  # the status of a client with a scheduler
KILLED = "KilledWorker"  # what the scheduler says of a piece whose workers ended more often than it allows
FIRST, BEYOND = (2025, 1), (2027, 0)  # versions of distributed, year and month, that `nmf_zoo[dask]` installs
ROOM = 0.4  # of a worker's memory, with all else that it has; from 0.6 on Dask writes to disk
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
    """The workers of a ``dask.distributed.Client``, left open; what they keep goes at the end of a ``with``."""

    def __init__(self, client: Any):
        require_version()
        self._client = client
        self._address = client.scheduler_info()["address"]
        self._shared: Any = None  # what pieces shared last, and its future
        self._sent: Any = None
        self._kept: dict[Any, Any] = {}  # futures of what workers keep, by item

    def __reduce__(self) -> Any:
        """A worker has no cluster of its own."""
        return _none, ()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self._shared, self._sent, self._kept = None, None, {}

    def map(
        self,
        work: Callable[..., Any],
        shared: Any,
        own: Any,
        items: Sequence[Item],
        keep: Callable[[Any, Item], Any] | None = None,
    ) -> Iterator[Any]:
        """``work(shared, own, item)`` of every item, in order; or ``work(shared, own, item, kept)``.

        ``work`` and ``keep`` are functions of modules. ``shared`` is sent where it is another object than in the call
        before. ``kept`` is what ``keep(shared, item)`` makes once for all calls, or None where a worker has no room.

        Raises
        ------
        RunFailed : the scheduler is gone, or pieces end the workers that take them
        """
        waiting, lost = list(items), 0
        try:
            while waiting:
                try:
                    for found in self._results(work, shared, own, waiting, keep):
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
                    self._shared = None  # what they had goes out and is made again
        except (CancelledError, OSError) as error:
            if isinstance(error, OSError) and self._client.status == RUNNING:
                raise
            raise RunFailed(
                f"the Dask scheduler at {self._address} is gone ({type(error).__name__}); with checkpoint= the same "
                f"call goes on where it was saved last"
            ) from error

    def _results(
        self, work: Callable[..., Any], shared: Any, own: Any, items: Sequence[Any], keep: Callable[..., Any] | None
    ) -> Iterator[Any]:
        """Of the items, in order; those that nobody waits for any more are given up."""
        submit, here = self._client.submit, fingerprint()
        if shared is not self._shared:
            self._shared, self._sent, self._kept = shared, submit(_itself, shared, pure=False), {}
        sent, futures = submit(_itself, own, pure=False), []
        for item in items:
            if keep is not None and item not in self._kept:
                self._kept[item] = submit(_keep, keep, self._sent, item, here, pure=False)
            kept = () if keep is None else (self._kept[item],)
            futures.append(submit(_piece, work, self._sent, sent, item, here, *kept, pure=False))
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


def _piece(work: Callable[..., Any], shared: Any, own: Any, item: Any, expected: dict[str, str], *kept: Any) -> Any:
    """One piece, in a process like the client's."""
    require_alike(expected)
    with OneBlasThread():
        return work(shared, own, item, *(None if it is None else it.value for it in kept))


class KeptByWorker:
    """What a worker keeps, and its bytes, by which Dask weighs whether to send it, or a piece to it."""

    def __init__(self, value: Any):
        self.value, self._bytes = value, bytes_of_arrays(value)

    def __sizeof__(self) -> int:
        return self._bytes


def bytes_of_arrays(value: Any) -> int:
    """Of all arrays in what can be pickled, each once; none is copied."""
    sizes: list[int] = []
    pickle.dumps(value, protocol=5, buffer_callback=lambda buffer: sizes.append(buffer.raw().nbytes))
    return sum(sizes)


def _keep(make: Callable[[Any, Any], Any], shared: Any, item: Any, expected: dict[str, str]) -> KeptByWorker | None:
    """What is made of an item, while this worker has room for it."""
    require_alike(expected)
    return KeptByWorker(make(shared, item)) if has_room() else None


def has_room() -> bool:
    """Whether this worker has less than `ROOM` of its memory, which without a limit is all that there is."""
    from distributed import get_worker
    from distributed.system import MEMORY_LIMIT

    worker = get_worker()
    limit = worker.memory_manager.memory_limit or MEMORY_LIMIT
    return bool(worker.monitor.get_process_memory() < ROOM * limit)

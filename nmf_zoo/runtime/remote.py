"""Calls in the processes of an executor, wherever these are: what all calls of a run share goes to each process once.

    with closing(Remote(executor, shared)) as remote:
        found = remote.call(function, *args, is_stopped=job.is_stopped)     function(shared, *args), over there

What is shared lies in a file of this machine, and a call has the file's name. A process that has not seen it reads it,
and keeps it until others take its place; one that can't, since it is on another machine, says so and gets it with the
call. The work is pickled as `cloudpickle` does it, so that functions of a notebook can be sent, too.

Ctrl-C in a terminal reaches processes of this machine as well. There it asks the call to end after its step, as it asks
a thread here, and what the call has done comes back. One that waits for work ends, and takes the pool with it.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import cloudpickle

from nmf_zoo.errors import InputError, RunFailed
from nmf_zoo.runtime.cluster import fingerprint, is_client, require_alike, require_version
from nmf_zoo.runtime.stopping import INTERRUPTED, Stop
from nmf_zoo.runtime.workers import OneBlasThread

LOOK = 0.1  # seconds between two looks whether a call that waits for its turn is still wanted
GRACE = 1.0  # seconds in which Ctrl-C reaches this process, when it has reached the pool's
KEPT = 2  # runs whose shared part a process keeps: one, and the search before it


class Stopped(Exception):
    """The run was asked to end before the call had begun, or Ctrl-C ended its process."""


class Unseen:
    """The answer of a process that does not have what calls share."""


def check_executor(executor: Any, on_step: Any = None) -> None:
    """It is an Executor, or Dask's Client of a version that is known, or None; then ``on_step`` hears of each step."""
    if executor is not None and not isinstance(executor, Executor) and not is_client(executor):
        expected = "a concurrent.futures.Executor, a dask.distributed.Client, or None"
        do = "e.g. ProcessPoolExecutor(2, multiprocessing.get_context('spawn'))"
        raise InputError("executor", type(executor).__name__, expected, do)
    if is_client(executor):
        require_version()
    if on_step is not None and not is_near(executor):
        got, expected = f"{on_step!r} with {type(executor).__name__}", "None where steps are made in other processes"
        raise InputError("on_step", got, expected, "leave one of them out; max_seconds= can end the run")


def is_near(executor: Any) -> bool:
    """Whether its work shares this process's memory."""
    return executor is None or type(executor) is ThreadPoolExecutor


class Remote:
    """Calls in an executor, which is left open, with what they share."""

    def __init__(self, executor: Any, shared: Any):
        self._executor = executor.get_executor(pure=False) if is_client(executor) else executor
        self._name = uuid4().hex
        handle, self._path = tempfile.mkstemp(prefix="nmf_zoo-")
        try:
            with os.fdopen(handle, "wb") as file:
                cloudpickle.dump((fingerprint(), shared), file)
        except Exception as error:
            self.close()
            got = f"{type(self._executor).__name__}, to which this run can't be sent ({error})"
            raise InputError("executor", got, "None, or a run that can be pickled", "threads will do") from error

    def submit(self, function: Callable[..., Any], *args: Any, sends: bool = False) -> Future:
        """``function(shared, *args)``; its result may be an :class:`Unseen`, and another try then ``sends`` it all."""
        sent = Path(self._path).read_bytes() if sends else None
        return self._executor.submit(_called, self._name, self._path, sent, function, *args)

    def call(self, function: Callable[..., Any], *args: Any, is_stopped: Callable[[], Any]) -> Any:
        """The result of ``function(shared, *args)``, in a thread that waits for it.

        Raises
        ------
        Stopped : the call has not been made
        RunFailed : processes of the executor ended
        """
        found = self._wait(function, args, is_stopped, False)
        return self._wait(function, args, is_stopped, True) if isinstance(found, Unseen) else found

    def _wait(self, function: Callable[..., Any], args: Any, is_stopped: Callable[[], Any], sends: bool) -> Any:
        try:
            future = self.submit(function, *args, sends=sends)
            while not wait([future], timeout=LOOK).done:
                if is_stopped():
                    future.cancel()
            return future.result()
        except CancelledError as error:  # by this, or by a scheduler that is gone
            if is_stopped():
                raise Stopped from None
            raise ended(error) from error
        except (BrokenExecutor, KeyboardInterrupt) as error:
            if is_within_grace(is_stopped):
                raise Stopped from None
            raise ended(error) from error

    def close(self) -> None:
        with suppress(OSError):
            os.unlink(self._path)


def is_within_grace(is_stopped: Callable[[], Any]) -> bool:
    """Whether Ctrl-C that ended other processes reaches this one, too: it may be a moment later."""
    until = time.monotonic() + GRACE
    while not is_stopped() and time.monotonic() < until:
        time.sleep(LOOK / 10)
    return bool(is_stopped())


def ended(error: BaseException) -> RunFailed:
    """What to say of processes that ended in their work."""
    return RunFailed(
        f"processes of the executor ended while they worked ({type(error).__name__}), perhaps for want of memory; with "
        "checkpoint= the same call goes on where it was saved last"
    )


@contextmanager
def asked_to_end() -> Iterator[Stop]:
    """Ctrl-C sets what this yields, instead of ending the work. Signals are the main thread's; others never hear it."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop(INTERRUPTED))
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


# -- in the other process ----------------------------------------------------------------------------------------------

_known: dict[str, Any] = {}  # what calls share, by the name of their run
_reading = threading.Lock()


def _called(name: str, path: str, sent: bytes | None, function: Callable[..., Any], *args: Any) -> Any:
    """One call, in whatever process it has come to."""
    shared = _shared(name, path, sent)
    if isinstance(shared, Unseen):
        return shared
    with OneBlasThread():
        return function(shared, *args)


def _shared(name: str, path: str, sent: bytes | None) -> Any:
    with _reading:
        if name not in _known:
            try:
                expected, shared = cloudpickle.loads(Path(path).read_bytes() if sent is None else sent)
            except FileNotFoundError:
                return Unseen()
            require_alike(expected)
            while len(_known) >= KEPT:
                del _known[next(iter(_known))]
            _known[name] = shared
        return _known[name]

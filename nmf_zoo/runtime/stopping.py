"""Why a run ends early: Ctrl-C, the caller's ``on_step``, or its ``max_seconds``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmf_zoo.errors import warn_caller

FAILED = "failed"  # a piece raised: no status, since the run then has no result
INTERRUPTED, BY_ON_STEP, OUT_OF_TIME = "interrupted", "stopped by on_step", "max_seconds reached"
BEHIND = "left behind"  # a fit of a search, which goes on
EARLY = (INTERRUPTED, BY_ON_STEP, OUT_OF_TIME)  # statuses of a run that ended before its end


@dataclass(frozen=True, kw_only=True)
class Step:
    """What ``on_step`` is told: where a chain or restart is.

    Attributes
    ----------
    chain : number of the chain or restart
    number : iterations, or sweeps with those of the warm-up, that it has done, also before it went on from a checkpoint
    total : those that it is to do, as far as is known: chains may go on
    is_warmup : the sweeps were of the warm-up
    info : by name, what the engine says of its last iteration (``objective``, ``residual``) or of the last sweep whose
        draw was made (``lp``, ``mean``, ...): numbers and arrays
    seconds : that the iteration, or the block of sweeps, took
    """

    chain: int
    number: int
    total: int
    is_warmup: bool
    info: Mapping[str, Any]
    seconds: float


OnStep = Callable[[Step], bool | None]


class Stop:
    """Asks all pieces of a run to end after their step. The first reason counts; true once there is one."""

    def __init__(self) -> None:
        self.reason = ""

    def __call__(self, reason: str) -> None:
        self.reason = self.reason or reason

    def __bool__(self) -> bool:
        return bool(self.reason)


class Observer:
    """Tells ``on_step`` of every step of every chain, one at a time, and knows when the time of a chain is over.

    ``turns`` : how often chains take each other's places; each turn has an equal part of the seconds, and what others
    leave of theirs

    Attributes
    ----------
    failure : what ``on_step`` raised
    """

    def __init__(self, on_step: OnStep | None, max_seconds: float | None, turns: int, stop: Stop):
        self._on_step, self._stop, self._telling = on_step, stop, threading.Lock()
        self._began, self._each = time.monotonic(), (np.inf if max_seconds is None else max_seconds) / max(turns, 1)
        self.failure: BaseException | None = None

    def after(self, step: Step, turn: int) -> str:
        """To be called after a step of a chain: "" when it may go on, else why it ends."""
        if self._on_step is not None:
            with self._telling:
                if not self._stop:
                    self._tell(step)
        is_late = time.monotonic() - self._began >= self._each * (turn + 1)
        return self._stop.reason or (OUT_OF_TIME if is_late else "")

    def _tell(self, step: Step) -> None:
        """An error in ``on_step`` ends the run as True does, and is raised once all chains have saved themselves."""
        assert self._on_step is not None
        try:
            ends = self._on_step(step)
        except BaseException as error:
            self.failure = error
            self._stop(BY_ON_STEP)
        else:
            if isinstance(ends, bool | np.bool_) and ends:
                self._stop(BY_ON_STEP)


@contextmanager
def left_out(what: str) -> Iterator[None]:
    """Ctrl-C in what follows a run stops that alone: the result is there and stays."""
    try:
        yield
    except KeyboardInterrupt:
        warn_caller(f"{what}: stopped by the user and left out; the result is kept")

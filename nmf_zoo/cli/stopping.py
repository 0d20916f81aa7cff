"""Ctrl-C and SIGTERM: both end a command in good order. Its exit code is 128 and the signal's number, as in shells."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_caught: list[int] = []  # a handler has no other place


@contextmanager
def stopping() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; a signal that is ignored (``nohup``) stays so."""
    _caught.clear()
    if threading.current_thread() is not threading.main_thread():  # where Python has no handlers
        yield
        return
    own = {number: signal.getsignal(number) for number in SIGNALS}
    taken = [number for number in SIGNALS if own[number] is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, own[number] or signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _caught.append(number)
    raise KeyboardInterrupt


def was_stopped() -> bool:
    """Whether a signal came; an import that it broke off may have made another error of it."""
    return bool(_caught)


def exit_code() -> int:
    """130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (_caught[0] if _caught else signal.SIGINT)

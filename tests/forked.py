"""Work in a process of its own, forked from this one: nothing has to be imported, loaded and compiled for it again.

For what is killed, stopped by signals, or has limits of its own. What a new process has to show from its beginning
(imports, caches, memory) is a subprocess.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path


class Forked:
    """A process that does ``work()`` and ends, with what it exits with, 0, or 1 after an error.

    Parameters
    ----------
    out, err : files for what it prints; default where this process prints
    """

    def __init__(self, work: Callable[[], object], out: Path | None = None, err: Path | None = None):
        sys.stdout.flush()
        sys.stderr.flush()
        self.code: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of tests rest
            self.pid = os.fork()
        if not self.pid:
            _work_and_end(work, out, err)

    def poll(self) -> int | None:
        """How it ended, as subprocess says it; None while it works."""
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def wait(self, seconds: float = 120.0) -> int:
        """How it ended; after so many seconds it is killed."""
        until = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > until:
                self.send_signal(signal.SIGKILL)
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _work_and_end(work: Callable[[], object], out: Path | None, err: Path | None) -> None:
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.simplefilter("ignore")
        for number, (name, path) in enumerate((("stdout", out), ("stderr", err)), start=1):
            if path is not None:
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
                setattr(sys, name, os.fdopen(number, "w", closefd=False))
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)

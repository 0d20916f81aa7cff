"""Processes of ours that run engines for their kernels: ``python -m nmf_zoo.interfaces.compiling``.

Each reads requests, one line each, and answers them with one line. Its standard input is its life: when that is closed
it ends, whatever it is compiling. So nothing is left behind when we are interrupted, or killed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

from nmf_zoo.errors import RunFailed, one_line
from nmf_zoo.inference.registry import OURS
from nmf_zoo.interfaces.compiling.small_runs import Unit
from nmf_zoo.kernels.compile.ahead import end_helper, start_helper

MOST = 8  # processes: each imports PyMC for some seconds, and the longest of all runs is no shorter with more of them


class Helper:
    """One process, as a context."""

    def __enter__(self) -> Helper:
        self._said = tempfile.TemporaryFile(mode="w+", errors="replace")  # a pipe that nobody reads would fill
        self._process = start_helper(__package__, stdout=subprocess.PIPE, stderr=self._said, text=True)
        return self

    def end(self) -> None:
        """Whatever it does; who waits for its answer goes on."""
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: Any) -> None:
        end_helper(self._process)
        self._process.stdout.close()
        self._said.close()

    def run(self, unit: Unit) -> float:
        """Run a unit there; CPU seconds."""
        place = next(number for number, entry in enumerate(OURS) if entry is unit.entry)
        try:
            print(json.dumps({"entry": place, "models": unit.models}), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            answer = {"error": f"its process ended with code {self._process.wait()}{self._last_words()}"}
        if "error" in answer:
            raise RunFailed(f"compile: {unit.name}: {one_line(answer['error'])}")
        return answer["seconds"]

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().split("\n")
        return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")


def in_helpers(units: Sequence[Unit], cores: int, done: Callable[[Unit, float], None]) -> None:
    """Run all units, each in the helper that is free; ``done(unit, CPU seconds)`` is called in its thread."""
    waiting = iter(units)

    def take_turns(helper: Helper) -> None:
        for unit in waiting:
            done(unit, helper.run(unit))

    n_helpers = min(cores, MOST, len(units))
    with ExitStack() as helpers, ThreadPoolExecutor(max(n_helpers, 1)) as threads, ExitStack() as ends:
        turns = []
        for _ in range(n_helpers):
            helper = helpers.enter_context(Helper())
            ends.callback(helper.end)  # Ctrl-C does not wait for what it compiles
            turns.append(threads.submit(take_turns, helper))
        for turn in wait(turns, return_when=FIRST_EXCEPTION).done:
            turn.result()

"""Runs the cases of one reader in processes of their own, and keeps what failed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 20.0  # of one case
START = 120.0  # until a process has imported what it needs
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Failure:
    case: int
    how: str
    size: int
    what: str


@dataclass
class Report:
    """What came of the cases of one reader."""

    reader: str
    seed: int
    read: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.read + self.refused + len(self.failures)

    def smallest(self) -> str:
        """The failure with the smallest file, and the command that makes it again."""
        worst = min(self.failures, key=lambda failure: failure.size)
        again = f"python -m tests.property.files --reader {self.reader!r} --seed {self.seed} --only {worst.case}"
        return f"{self.reader}, case {worst.case} ({worst.how}; {worst.size} bytes): {worst.what}\n    {again}"


def run(reader: str, cases: int, seed: int = 0, first: int = 0, seconds: float = SECONDS) -> Report:
    """``cases`` cases from ``first`` on; a crash or a hang costs one of them."""
    report = Report(reader, seed)
    with tempfile.TemporaryDirectory() as folder:
        at, stop = first, first + cases
        while at < stop:
            at = _run_process(report, at, stop, Path(folder), seconds)
    return report


def _run_process(report: Report, first: int, stop: int, folder: Path, seconds: float) -> int:
    """Let a process go through the cases; returns the first that is left when it ended."""
    command = [sys.executable, "-m", "tests.property.files.worker", report.reader]
    words = [str(report.seed), str(first), str(stop), str(folder)]
    errors = folder / "errors.txt"
    lines: queue.Queue[str] = queue.Queue()
    case, how, size, patience, ended = first, "not begun", 0, START, ""
    with (
        open(errors, "wb") as stderr,
        subprocess.Popen(
            [*command, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, env=_environment()
        ) as process,
    ):
        listener = threading.Thread(target=_listen, args=(process, lines))
        listener.start()
        try:
            while case < stop:
                line = lines.get(timeout=patience)
                if not line:
                    ended = _end_of(process, errors)
                    break
                said, patience = json.loads(line), seconds
                if "how" in said:
                    case, how, size = said["case"], said["how"], said["size"]
                    continue
                _count(report, Failure(case, how, size, said["failure"] or ""), said["failure"])
                case, how = case + 1, "not begun"
        except queue.Empty:
            ended = f"no end within {patience:g} s"
        finally:
            process.kill()
            listener.join()
    if ended:
        report.failures.append(Failure(case, how, size, ended))
        return case + 1 if how != "not begun" else stop  # a process that cannot begin will not begin again
    return case


def _count(report: Report, failure: Failure, outcome: str | None) -> None:
    if outcome:
        report.failures.append(failure)
    elif outcome is None:
        report.refused += 1
    else:
        report.read += 1


def _listen(process: subprocess.Popen, lines: queue.Queue) -> None:
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _end_of(process: subprocess.Popen, errors: Path) -> str:
    code = process.wait()
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    last = errors.read_text(errors="replace").strip().splitlines()[-1:]
    return f"the process ended: {name} {' '.join(last)}"


def _environment() -> dict[str, str]:
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": ""}

"""Peak memory of EM, VB and Gibbs on the NIPS counts at rank 10, each in a process of its own.

The kernel's own high-water mark is set back before each run (Linux): imports and reading the data set higher ones. What
is allowed above the model is data + 4 pairs of factors + stored draws, in a run after another of the engine on part of
the data. A second figure is of the first run of a process, with what it maps into memory as compiled code.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nmf_zoo as nz
from benchmarks.datasets import nips
from benchmarks.rows import Row, at_most, note

MIB = 2**20
RANK, KEPT = 10, 10
STORED = {"em": 1, "vb": KEPT + 1, "gibbs": KEPT}  # pairs of factors in the result; VB's holds its parameters too
SETTINGS = {"quiet": True, "random_seed": 1}


def run(engine: str, X: Any) -> Any:
    """20 steps."""
    model = nz.poisson_nmf(X, RANK) if engine == "em" else nz.gamma_nmf(X, RANK)
    nz.read(model)
    reset_peak()
    before = memory("VmRSS")
    if engine == "gibbs":
        options = nz.Gibbs(trajectories="never")  # as data of this size go anyway, and so the part that warms up
        nz.sample(KEPT, model=model, engine=options, tune=10, chains=1, start="random", **SETTINGS)
    else:
        nz.fit(model=model, engine=engine, max_iter=20, tol=0, search=None, draws=KEPT, **SETTINGS)
    return memory("VmHWM") - before


def measure(engine: str, warm: bool) -> None:
    """Print the peak above the resident size after reading the model, in MiB."""
    X, _ = nips()
    if warm:
        run(engine, X[:3000, :750])  # enough for the code of data in several chunks
    print(run(engine, X))


def reset_peak() -> None:
    """Set the high-water mark back to what is in use now: memory that was freed goes back to the system first."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def memory(field: str) -> float:
    """A size from the kernel's account of this process, in MiB: VmRSS now, VmHWM at the most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(field))
    return int(kib) / 1024


def rows(quick: bool) -> Iterator[Row]:
    """One row per engine, beside the size of a dense copy of the data."""
    if not Path("/proc/self/clear_refs").exists():
        yield note("peak memory", "skipped: needs Linux")
        return
    X, label = nips()
    data = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / MIB
    pair = sum(X.shape) * RANK * 8 / MIB
    dense = X.shape[0] * X.shape[1] * 8 / MIB
    for engine in list(STORED)[: 1 if quick else None]:
        allowed = data + (4 + STORED[engine]) * pair
        cold, warm = (_of_process(engine, warm) for warm in (False, True))
        yield at_most(
            f"peak memory of {engine}, 20 steps, {label}, K=10",
            f"{warm:.0f} MiB above the read model, kernels loaded ({cold:.0f} with loading them)",
            warm,
            allowed,
            f"{allowed:.0f} MiB (data {data:.0f}, factor pairs and draws {allowed - data:.0f})",
            f"{dense:.0f} MiB (one dense float64 copy of X)",
        )


def _of_process(engine: str, warm: bool) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", engine, "warm" if warm else "cold"]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


if __name__ == "__main__":
    measure(sys.argv[1], sys.argv[2] == "warm")

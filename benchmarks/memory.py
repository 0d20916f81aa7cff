"""Peak memory of EM, VB and Gibbs on the NIPS counts at rank 10, each in a process of its own.

The kernel's own high-water mark is set back before each run (Linux): imports and reading the data set higher ones.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nmf_zoo as nz
from benchmarks.datasets import nips

MIB = 2**20
RUNS = {
    "em": lambda model: nz.fit(model=model, engine="em", max_iter=20, tol=0, quiet=True, random_seed=1),
    "vb": lambda model: nz.fit(model=model, engine="vb", max_iter=20, tol=0, draws=10, quiet=True, random_seed=1),
    "gibbs": lambda model: nz.sample(10, model=model, engine="gibbs", tune=10, chains=1, quiet=True, random_seed=1),
}


def measure(engine: str) -> None:
    """Print the peak above the resident size after reading the model, in MiB, and the seconds of the run."""
    X, _ = nips()
    model = nz.poisson_nmf(X, 10) if engine == "em" else nz.gamma_nmf(X, 10)
    nz.read(model)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    began = time.perf_counter()
    RUNS[engine](model)
    seconds = time.perf_counter() - began
    peak = memory("VmHWM")
    print(peak - before, peak, seconds)


def memory(field: str) -> float:
    """A size from the kernel's account of this process, in MiB: VmRSS now, VmHWM at the most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(field))
    return int(kib) / 1024


def rows(quick: bool) -> Iterator[dict[str, str]]:
    """One row per engine, beside the size of a dense copy of the data."""
    if not Path("/proc/self/clear_refs").exists():
        return
    X, label = nips()
    dense = X.shape[0] * X.shape[1] * 8 / MIB
    for engine in RUNS:
        command = [sys.executable, "-m", "benchmarks.memory", engine]
        above, peak, seconds = map(
            float, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
        )
        yield {
            "work": f"peak memory of {engine}, 20 steps, {label}, K=10",
            "ours": f"{above:.0f} MiB above the read model ({peak:.0f} in all, {seconds:.1f} s with loading kernels)",
            "peer": f"{dense:.0f} MiB (one dense float64 copy of X)",
            "ratio": f"{dense / max(above, 1):.1f}x less" if above < dense else f"{above / dense:.1f}x more",
        }


if __name__ == "__main__":
    measure(sys.argv[1])

"""The report of a fit with its data: CPU seconds and memory above the imports, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.memory import memory, reset_peak
from benchmarks.rows import REPEATS, Row, at_most, note

SHAPE, RANK = (96, 2780), 20
SECONDS, MIB = 8.0, 300.0


def measure(shape: tuple[int, int], rank: int) -> None:
    """Print CPU seconds of `nz.report`, and MiB of its peak above what is resident before it, the fit included."""
    import matplotlib.figure

    import nmf_zoo as nz

    matplotlib.figure.Figure, nz.gamma_nmf, nz.fit, nz.report  # noqa: B018 - names are imported at their first use
    rng = np.random.default_rng(1)
    X = rng.poisson(5.0 * rng.gamma(0.3, size=(shape[0], rank)) @ rng.gamma(0.3, size=(rank, shape[1])))
    reset_peak()
    before = memory("VmRSS")
    model = nz.gamma_nmf(X, rank)
    idata = nz.fit(model, engine="vb", max_iter=100, search=None, random_seed=1, quiet=True)
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        nz.report(idata, Path(folder) / "report.html", model)
        print(time.process_time() - began, memory("VmHWM") - before)


def rows(quick: bool) -> Iterator[Row]:
    """Seconds of the report, and the peak of the fit and its report above the imports."""
    if not Path("/proc/self/clear_refs").exists():
        yield note("a report", "skipped: needs Linux")
        return
    shape, rank = ((20, 60), 3) if quick else (SHAPE, RANK)
    code = f"from benchmarks.report import measure; measure({shape}, {rank})"
    command = [sys.executable, "-W", "ignore", "-c", code]
    runs = [subprocess.run(command, capture_output=True, check=True, text=True) for _ in range(1 if quick else REPEATS)]
    seconds, mib = np.median([[float(word) for word in run.stdout.split()] for run in runs], axis=0)
    work = f"nz.report with the data, VB, {shape[0]} x {shape[1]:,} counts, K={rank}, one table, median of {len(runs)}"
    yield at_most(work, f"{seconds:.1f} s", seconds, SECONDS, f"{SECONDS:g} s")
    peak = f"peak memory of the fit and of {work}"
    yield at_most(peak, f"{mib:.0f} MiB above the imports", mib, MIB, f"{MIB:g} MiB")

"""EM, VB and Gibbs over the blocks of a store of 10^9 non-zeros: seconds, and private memory held to 1 GiB.

The table is made block by block and written compressed, as stores are by default, to the folder for temporary files
(``TMPDIR`` says which; 15 GB go there, and are removed at the end). Each engine runs in a process of its own, one
thread, after a small table for which it compiles. Private memory is that for which no file stands, looked at every few
milliseconds; what a process may have of it, libraries included, is limited by the system (``RLIMIT_DATA``). glibc's
allocator is told to give back large arrays when they are freed: otherwise it keeps some, and that is what one sees.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import nmf_zoo as nz
from benchmarks.rows import Others, Row, at_most, by_clock, note
from nmf_zoo.verbs.block_source import BLOCK_CELLS, bounds_of

MIB = 2**20
FEATURES, SAMPLES, CELLS, RANK = 20_000, 5_300_000, 200, 10
SMALL = (50, 400, 20)  # features, samples and counts of what a process compiles for
LIMIT = 1024  # MiB of private memory
PER_CELL, PER_SAMPLE = 60, 32  # bytes, of each of the two blocks that are held, and of what is held of a sample
LIKE_W = {"em": 27, "vb": 10, "gibbs": 10}  # arrays; of EM three times the curvature of K = 10, which is 5.5 of them
STEPS = 3  # iterations, or sweeps
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # bytes of an array from which on


class LargeTable:
    """``cells`` counts a sample, of F features, N samples, ``size`` of a block; the same whenever it is read."""

    def __init__(self, F: int, N: int, cells: int, size: int, rank: int = 5, seed: int = 1):
        rng = np.random.default_rng(seed)
        self.shape, self.bounds, self.cells, self.seed = (F, N), bounds_of(N, size), cells, seed
        self.profiles = np.cumsum(rng.dirichlet(np.full(F, 0.1), rank), axis=1)

    def read(self, number: int) -> sp.csc_array:
        """Samples of a block: counts of features that are drawn from one profile each, at least one a cell."""
        rng, n = np.random.default_rng((self.seed, number)), self.bounds[number + 1] - self.bounds[number]
        of_sample = rng.integers(len(self.profiles), size=n)
        rows = np.empty((n, self.cells), dtype=np.int32)
        for k, profile in enumerate(self.profiles):
            own = of_sample == k
            drawn = np.searchsorted(profile, rng.random((own.sum(), self.cells)))
            rows[own] = np.minimum(drawn, self.shape[0] - 1)
        indptr = np.arange(0, n * self.cells + 1, self.cells)
        matrix = sp.csc_array((np.ones(rows.size), rows.ravel(), indptr), shape=(self.shape[0], n))
        matrix.sum_duplicates()
        return matrix


def memory_of(field: str) -> int:
    """Bytes, from the kernel's account of this process: RssAnon is private memory, VmData what of it is reserved."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def private_memory() -> int:
    """Bytes of this process that no file stands for."""
    return memory_of("RssAnon")


class PeakOfMemory:
    """The most private memory while it lasts, looked at every few milliseconds."""

    def __enter__(self) -> PeakOfMemory:
        self.peak, self._over = private_memory(), threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._over.is_set():
            self.peak = max(self.peak, private_memory())
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()


def rows(quick: bool) -> Iterator[Row]:
    """How the store was made, then of each engine its memory and its seconds."""
    if sys.platform != "linux":
        yield note("a table of 10^9 non-zeros", "skipped: limits and private memory are Linux's")
        return
    n_samples = 4_000 if quick else SAMPLES
    with tempfile.TemporaryDirectory() as folder:
        path, others, began = Path(folder) / "table.zarr", Others(), (time.perf_counter(), time.process_time())
        nz.write_blocks(path, LargeTable(FEATURES, n_samples, CELLS, 10_000))
        blocks = nz.open_blocks(path)
        table = f"{blocks.n_cells:,} non-zeros, {FEATURES:,} x {n_samples:,}"
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        seconds = time.perf_counter() - began[0], time.process_time() - began[1]
        made = f"{seconds[0]:.0f} s, {seconds[1]:.0f} of CPU; {size / 1e9:.1f} GB on disk"
        yield by_clock(note(f"a store of {table}, simulated and written", made), others)
        for engine in LIKE_W:
            yield from rows_of(engine, path, table, blocks)


def rows_of(engine: str, path: Path, table: str, blocks: Any) -> Iterator[Row]:
    """Its private memory beside what is allowed, and seconds."""
    others = Others()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.large_table", engine, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | GIVES_BACK)
    work = f"{engine} over {len(blocks.bounds) - 1} blocks of a store, {table}, K={RANK}, {STEPS} iterations"
    if ran.returncode:
        last = (ran.stderr.strip() or "killed").splitlines()[-1]
        yield note(work, f"failed: {last[:200]}") | {"must reach": f"{LIMIT} MiB", "met?": "**no**"}
        return
    found = json.loads(ran.stdout)
    held = 2 * BLOCK_CELLS * PER_CELL + LIKE_W[engine] * FEATURES * RANK * 8 + PER_SAMPLE * blocks.shape[1]
    peak, before, most = found["peak"] / MIB, found["before"] / MIB, held / MIB
    took = f"{peak - before:.0f} MiB of private memory beside the libraries' {before:.0f}, limit {LIMIT} for both"
    limit = f"{most:.0f} MiB: two blocks, {LIKE_W[engine]} arrays like W, {PER_SAMPLE} bytes a sample"
    yield at_most(work, took, peak - before, most, limit)
    a_cell = f"{1e9 * found['cpu'] / blocks.n_cells:.0f} ns of CPU a non-zero"
    an_iteration = f"{found['cpu']:.0f} s of CPU, {found['clock']:.0f} by the clock; {a_cell}"
    of_call = f"the call {found['call_cpu']:.0f} s of CPU, {found['call']:.0f} by the clock"
    yield by_clock(note(f"one iteration of {engine} there, the median; {of_call}", an_iteration), others)


def measure(engine: str, path: str) -> dict[str, float]:
    """Bytes before and at the peak; seconds of the call and of an iteration, CPU and by the clock."""
    import resource

    features, samples, counts = SMALL
    run(engine, features, nz.open_blocks(LargeTable(features, samples, counts, samples).read(0), block=samples // 2))
    before = private_memory()
    room = LIMIT * MIB - before
    resource.setrlimit(resource.RLIMIT_DATA, (memory_of("VmData") + room, resource.RLIM_INFINITY))
    with PeakOfMemory() as peak:
        began, ends = (time.perf_counter(), time.process_time()), []
        run(engine, FEATURES, nz.open_blocks(path), ends, store=Path(path).with_suffix(f".{engine}.zarr"))
        call, call_cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    clock, cpu = (float(seconds) for seconds in np.median(np.diff(ends, axis=0), axis=0))
    found = {"before": before, "peak": peak.peak, "clock": clock, "cpu": cpu, "call": call, "call_cpu": call_cpu}
    return {name: float(value) for name, value in found.items()}


def run(engine: str, features: int, blocks: Any, ends: list | None = None, **more: Any) -> None:
    """Some iterations or sweeps over blocks; when each ended."""
    told: list = [] if ends is None else ends
    how = {"random_seed": 1, "quiet": True, "cores": 1, "data": blocks, **more}
    how["on_step"] = lambda step: told.append((time.perf_counter(), time.process_time()))
    if engine == "gibbs":
        model = nz.gamma_nmf(None, RANK, alpha_w=0.3, alpha_h=0.3, shape=(features, 1))
        nz.sample(STEPS - 1, tune=1, chains=1, model=model, start="random", **how)
        return
    model = (nz.poisson_nmf if engine == "em" else nz.gamma_nmf)(None, RANK, shape=(features, 1))
    nz.fit(model=model, engine=engine, max_iter=STEPS, tol=0, search=None, **how)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))

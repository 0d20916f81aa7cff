"""A second process, kernels cached: from ``import nmf_zoo`` to the end of the first iteration."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.rows import Row, at_most

RUNS = ("em", "vb", "gibbs")
MOST = 3.0
PYMC_ALONE = "import scipy.sparse, time; began = time.perf_counter(); import pymc; print(time.perf_counter() - began)"


def measure(engine: str) -> None:
    """Print the seconds of importing what a run needs, PyMC above all, and of the first iteration, model included."""
    from benchmarks.datasets import nips  # SciPy and the data are read before the clock starts

    X, _ = nips()
    began = time.perf_counter()
    import nmf_zoo as nz

    nz.read, nz.gamma_nmf, nz.sample  # noqa: B018 - names are imported at their first use, and PyMC with them
    imported = time.perf_counter()
    model = nz.poisson_nmf(X, 10) if engine == "em" else nz.gamma_nmf(X, 10)
    arguments = {"model": model, "random_seed": 1, "quiet": True}
    if engine == "gibbs":
        nz.sample(1, engine=engine, tune=0, chains=1, cores=1, **arguments)
    else:
        nz.fit(engine=engine, max_iter=1, draws=1, search=None, **arguments)
    print(imported - began, time.perf_counter() - imported)


def rows(quick: bool) -> Iterator[Row]:
    """One row per engine; the first process fills the caches."""
    alone = min(_printed("-c", PYMC_ALONE)[0] for _ in range(2))
    for engine in RUNS[:1] if quick else RUNS:
        for _ in range(2):
            imported, first = _printed("-m", "benchmarks.start", engine)
        work = f"second process: from import to the end of the first iteration of {engine}, NIPS, K=10"
        seconds = f"{imported + first:.1f} s, of which importing PyMC and all {imported:.1f} s"
        yield at_most(work, seconds, imported + first, MOST, f"{MOST:g} s", f"{alone:.1f} s (importing PyMC, no more)")


def _printed(*arguments: str) -> list[float]:
    """The numbers that a Python process prints."""
    command = [sys.executable, "-W", "ignore", *arguments]
    return [*map(float, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())]


if __name__ == "__main__":
    measure(sys.argv[1])

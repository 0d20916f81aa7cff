"""CPU seconds of a first run, kernels compiled and kernels from the cache, in new processes; imports left out.

``python -m benchmarks.compiling`` measures the first run of every engine on every kind of model, and writes what a run
that compiles says of it (`nmf_zoo/runtime/compile_times.json`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np

from benchmarks.rows import Row, at_most
from nmf_zoo.files import replacing
from nmf_zoo.runtime import compile_times

# engine -> (model, most seconds when everything is compiled)
RUNS = {
    "em": ("gamma_nmf", 4),
    "vb": ("gamma_nmf", 4),
    "gibbs": ("gamma_nmf", 20),
    "em of powers": ("is_nmf", 6),
    "vb of powers": ("is_nmf", 6),
    "gibbs of powers": ("is_nmf", 20),
    "hmm_exact": ("hmm_nmf", 8),
    "particle_em": ("hmm_nmf", 20),
    "mcem": ("gap", 15),
}
FROM_CACHE = 0.4


def measure(work: str) -> None:
    """Print the CPU seconds of a short run on a table of 20 x 50, with what it imports beside PyMC."""
    import pymc as pm

    import nmf_zoo as nz

    engine, maker = work.split()[0], RUNS[work][0]
    X = np.random.default_rng(1).poisson(3.0, size=(20, 50)) + (0.5 if maker == "is_nmf" else 0)
    began = time.process_time()
    model: pm.Model = getattr(nz, maker)(X, rank=3)
    arguments = {"model": model, "engine": engine, "random_seed": 1, "quiet": True, "cores": 1}
    if engine == "gibbs":
        nz.sample(2, tune=2, chains=1, start="random", **arguments)
    else:
        nz.fit(max_iter=2, draws=2, search=None, **arguments)
    print(time.process_time() - began)


def rows(quick: bool) -> Iterator[Row]:
    """Two rows for each engine."""
    for work, (model, most) in list(RUNS.items())[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = _seconds(work, folder), min(_seconds(work, folder) for _ in range(2))
        what = f"first run of {work} ({model}), 20 x 50"
        yield at_most(f"{what}, nothing compiled", f"{cold:.1f} CPU s", cold, most, f"{most} s")
        yield at_most(f"{what}, from the cache", f"{warm:.1f} CPU s", warm, FROM_CACHE, f"{FROM_CACHE} s")


def _seconds(work: str, folder: str) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.compiling", work]
    byte_code = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}  # as an installed package has it
    environment = os.environ | {"NMF_ZOO_CACHE": folder} | byte_code
    return float(subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout)


def first_runs() -> dict[str, float]:
    """CPU seconds of each engine on the plain model of each kind, with an empty cache each."""
    from nmf_zoo.inference.registry import names
    from nmf_zoo.interfaces.compiling.helpers import Helper
    from nmf_zoo.interfaces.compiling.small_runs import RUNS, units

    found: dict[str, float] = {}
    for unit in units(names(*RUNS)):
        with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, NMF_ZOO_CACHE=folder), Helper() as helper:
            seconds = round(helper.run(unit._replace(models=unit.models[:1])), 1)
        found[unit.name] = max(seconds, found.get(unit.name, 0.0))
        print(unit.name, seconds, flush=True)
    return found


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1])
    else:
        with replacing(compile_times.FILE, "times") as partial:
            partial.write_text(json.dumps(first_runs(), indent=1) + "\n", encoding="utf-8")

"""CPU seconds of a first run, kernels compiled and kernels from the cache, in new processes; imports left out.

Counts of 20 x 50 where nothing else is said. ``python -m benchmarks.compiling`` measures the first run of every engine
on every kind of model, and writes what a run that compiles says of it (`nmf_zoo/runtime/compile_times.json`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp

from benchmarks.rows import Row, at_most
from nmf_zoo.files import replacing
from nmf_zoo.runtime import compile_times

# what is run -> most seconds when everything is compiled
RUNS = {
    "em": 4,
    "em, sparse": 4,
    "vb": 4,
    "vb, sparse": 4,
    "gibbs": 20,
    "gibbs, 64 x 1797": 20,
    "gibbs, sparse": 20,
    "em of powers": 6,
    "vb of powers": 6,
    "gibbs of powers": 20,
    "hmm_exact": 8,
    "particle_em of binary chains": 20,
    "particle_em of log-normal chains": 20,
    "particle_gibbs of log-normal chains": 25,
    "mcem": 15,
    "online_em": 15,
    "online_em of log-normal chains": 15,
    "smc": 15,
    "chib": 15,
    "select_rank": 15,
}
FROM_CACHE = 0.4


def measure(work: str) -> None:
    """Print the CPU seconds of declaring and running it, with what it imports beside PyMC."""
    import pymc as pm

    import nmf_zoo as nz

    engine, _, rest = work.replace(",", " of").partition(" of ")
    X = np.random.default_rng(1).poisson(3.0, size=(64, 1797) if rest == "64 x 1797" else (20, 50))
    quiet = {"random_seed": 1, "quiet": True, "cores": 1}
    began = time.process_time()
    model: pm.Model = _declare(nz, engine, rest, X)
    if "gibbs" in engine:
        nz.sample(2, tune=2, chains=1, start="random", engine=engine, model=model, **quiet)
    elif engine == "online_em":
        nz.stream(model=model, engine=engine, random_seed=1, cores=1).update(X)
    elif engine in ("smc", "chib"):
        nz.evidence(model, engine, chains=1, **quiet)
    elif engine == "select_rank":
        nz.select_rank(lambda rank: nz.gamma_nmf(X, rank), [1, 2], restarts=1, search=None, **quiet)
    else:
        nz.fit(max_iter=2, draws=2, search=None, engine=engine, model=model, **quiet)
    print(time.process_time() - began)


def _declare(nz: Any, engine: str, rest: str, X: np.ndarray) -> Any:
    if rest == "powers":
        return nz.is_nmf(X + 0.5, rank=3)
    if engine == "hmm_exact" or "chains" in rest:
        chain = nz.LogNormalAR(0.0, 0.5, 1.0) if "log-normal" in rest else nz.BasisChain(0.9, 0.8)
        return nz.hmm_nmf(X, rank=3, chain=chain, background=0.1)
    if engine in ("mcem", "online_em"):
        return nz.gap(X, rank=3)
    return nz.gamma_nmf(sp.csr_array(X) if rest == "sparse" else X[:3, :4] if engine == "chib" else X, rank=3)


def rows(quick: bool) -> Iterator[Row]:
    """Two rows for each engine."""
    for work, most in list(RUNS.items())[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = _seconds(work, folder), min(_seconds(work, folder) for _ in range(2))
        what = f"first run of {work}"
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

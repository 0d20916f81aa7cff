"""About how long an engine's first run on a machine compiles, for those who wait for it.

``compile_times.json`` holds CPU seconds as they were measured: of the first run of an engine on one plain model of a
kind, everything compiled anew. ``python -m benchmarks.compiling`` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from nmf_zoo.structure import Factorisation

FILE = Path(__file__).with_suffix(".json")


def first_run(name: str, structure: Factorisation) -> str:
    """An engine and the kind of models whose kernels it shares: "gibbs for poisson data"."""
    H = structure.H
    return f"{name} for {f'{H.prior.family}s' if H.is_chain else f'{structure.likelihood.family} data'}"


@cache
def compile_times() -> dict[str, float]:
    """CPU seconds by first run."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def what_compiles(name: str, structure: Factorisation) -> str:
    """What a run compiles, and about how long, where that was measured."""
    run = first_run(name, structure)
    seconds = compile_times().get(run)
    return run if seconds is None else f"{run}, about {_rounded(seconds)} s"


def _rounded(seconds: float) -> int:
    """In words of people: 7, 15, 40."""
    return max(round(seconds), 1) if seconds < 10 else 5 * round(seconds / 5)

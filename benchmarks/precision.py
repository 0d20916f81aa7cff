"""float32 beside float64: the cost of an iteration and how far the objective is off after the same number of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import nips
from benchmarks.iterations import CALLS, PLAIN, Stepper
from benchmarks.rows import REPEATS, Row, compare, cpu_of, medians
from nmf_zoo import _compat

LEAST = 1.7  # at K = 50, where factors are most of what a pass reads


def rows(quick: bool) -> Iterator[Row]:
    """One row per engine and rank."""
    X, label = nips()
    engines = {"em": nz.poisson_nmf, "vb": nz.gamma_nmf}
    with threadpool_limits(1):
        for rank in (10,) if quick else (10, 50):
            for name, build in engines.items():
                model = build(X, rank)
                options = [replace(PLAIN[name], precision=p) for p in ("float32", "float64")]
                works = [cpu_of(Stepper(nz.read(model), one), CALLS) for one in options]
                single, double = medians(works, 1 if quick else REPEATS)
                length = {"max_iter": 5 if quick else 50, "tol": 0, "search": None}
                arguments = {"model": model, "random_seed": 1, "quiet": True, **length}
                ends = [objective(nz.fit(engine=one, **arguments)) for one in options]
                off = abs(ends[0] / ends[1] - 1)
                work = f"float32, one plain {name.upper()} iteration, {label}, K={rank}"
                ours = f"{1e3 * single:.2f} ms, objective off by {off:.1e} after {arguments['max_iter']}"
                least = LEAST if rank == 50 else None
                yield compare(work, ours, f"{1e3 * double:.2f} ms (float64)", double / single, least)


def objective(idata: Any) -> float:
    """The last objective of a fit."""
    return float(_compat.group(idata, "fit")["objective"].values[0, -1])

"""How many components: one fit with too many of them and a relevance for each, beside a fit of every rank."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import brca21, nips
from benchmarks.rows import Row, note

TABLES, MOST = 20, 12  # simulated tables, and the components that they are given
SHAPES, MEANS, SIZES = (0.3, 1.0), (3.0, 10.0, 30.0), ((30, 50), (60, 100))
RESTARTS = 3  # of every rank
NIPS_RANK, NIPS_RANKS, NIPS_ITERATIONS = 30, (5, 10, 20, 30), 300
SHRINKING: dict[str, Any] = {"VB": "vb", "EM": "em"}


def simulated(seed: int) -> tuple[np.ndarray, int, float]:
    """(counts, their rank from 1 to 6, the gamma shape of W's and H's cells)"""
    rng = np.random.default_rng([2013, seed])
    rank, shape, mean = 1 + seed % 6, SHAPES[seed % 2], MEANS[seed % 3]
    n_rows, n_cols = SIZES[(seed // 2) % 2]
    product = rng.gamma(shape, size=(n_rows, rank)) @ rng.gamma(shape, size=(rank, n_cols))
    return rng.poisson(product * mean / product.mean()), rank, shape


def counted(X: Any, rank: int, engine: Any, **length: Any) -> int:
    """By the relevances of one fit."""
    model = nz.gamma_nmf(X, rank, prior="ard")
    fitted = nz.fit(model=model, engine=engine, draws=100, cores=1, random_seed=1, quiet=True, **length)
    return int(nz.components_in_use(fitted).attrs["count"])


def selected(X: Any, ranks: Any, **how: Any) -> int:
    """By a fit of every rank, with gamma priors of shape 1."""
    found = nz.select_rank(lambda rank: nz.gamma_nmf(X, rank), ranks, cores=1, random_seed=1, quiet=True, **how)
    return int(found.attrs["best"])


def timed(count: Callable[[], int]) -> tuple[int, float]:
    began = time.process_time()
    return count(), time.process_time() - began


def rows(quick: bool) -> Iterator[Row]:
    """Ranks that are right and CPU seconds; where nobody knows the rank, what each says."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from on_simulated(2 if quick else TABLES)
        counts = brca21()
        if counts is not None:
            how: dict[str, Any] = {"ranks": range(1, 4 if quick else 11), "restarts": 1 if quick else 10}
            yield one_table("96 kinds of mutations in 21 breast cancers", counts, 10, how)
        if not quick:
            X, name = nips()
            how = {"ranks": NIPS_RANKS, "method": nz.Holdout(max_iter=NIPS_ITERATIONS), "restarts": 1}
            yield one_table(name, X, NIPS_RANK, how, search=None, max_iter=NIPS_ITERATIONS)


def on_simulated(n_tables: int) -> Iterator[Row]:
    """Each way beside the truth, on all tables and by how sparse their factors are."""
    tables = [simulated(seed) for seed in range(n_tables)]
    ways: dict[str, Callable[[np.ndarray], int]] = {
        f"ARD by {name}": lambda X, engine=engine: counted(X, MOST, engine) for name, engine in SHRINKING.items()
    }
    ways["select_rank"] = lambda X: selected(X, range(1, MOST + 1), restarts=RESTARTS)
    found = {way: [timed(lambda X=X, count=count: count(X)) for X, *_ in tables] for way, count in ways.items()}
    truth, shapes = np.array([rank for _, rank, _ in tables]), np.array([shape for *_, shape in tables])
    for shape in SHAPES:
        chosen = shapes == shape
        said = {way: _score(np.array(pairs)[chosen], truth[chosen]) for way, pairs in found.items()}
        label = f"rank of {int(chosen.sum())} simulated tables with gamma shapes {shape}, {MOST} components given"
        ours = "; ".join(f"{way}: {words}" for way, words in said.items() if way != "select_rank")
        yield note(label, ours, f"select_rank, 1 to {MOST}, {RESTARTS} restarts each: {said['select_rank']}")


def _score(pairs: np.ndarray, truth: np.ndarray) -> str:
    counts, seconds = pairs[:, 0], pairs[:, 1]
    low, high = int(np.sum(counts < truth)), int(np.sum(counts > truth))
    return f"{int(np.sum(counts == truth))} right, {low} too few, {high} too many, {np.sum(seconds):.0f} s"


def one_table(name: str, X: Any, rank: int, how: dict[str, Any], **length: Any) -> Row:
    """A table whose rank nobody knows."""
    ours = {way: timed(lambda engine=engine: counted(X, rank, engine, **length)) for way, engine in SHRINKING.items()}
    said = "; ".join(f"ARD by {way}: {count}, {seconds:.1f} s" for way, (count, seconds) in ours.items())
    ranks = how.pop("ranks")
    best, seconds = timed(lambda: selected(X, ranks, **how))
    judge = "held-out counts" if "method" in how else "corrected bound"
    among = f"of {', '.join(map(str, ranks))} by {judge}"
    return note(f"components of {name}, {rank} given", said, f"select_rank {among}: {best}, {seconds:.1f} s")


if __name__ == "__main__":
    for row in rows(quick=False):
        print(row, flush=True)

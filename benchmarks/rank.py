"""Choosing the rank: searches from the first declaration to the answer, wall-clock, kernels compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator

import nmf_zoo as nz
from benchmarks.datasets import cemgil_counts
from benchmarks.rows import Row, at_most, note

CORES = 2
SMALL_LIMIT, FACES_LIMIT = 10.0, 900.0


def rows(quick: bool) -> Iterator[Row]:
    """Cemgil's table with known and with learned hyperparameters; faces of 16 x 16 pixels."""
    yield small(quick, learned=False)
    yield small(quick, learned=True)
    yield faces_of_16(quick)


def small(quick: bool, learned: bool) -> Row:
    """Ranks 1 to 10, ten restarts each; only known hyperparameters have a limit."""
    X, free = cemgil_counts(), nz.free("all")
    known = {"alpha_w": 10.0, "mean_w": 1.0, "alpha_h": 1.0, "mean_h": 100.0}
    prior = dict.fromkeys(known, free) if learned else known

    def declare(rank: int):
        return nz.gamma_nmf(X, rank, **prior)

    nz.select_rank(declare, [1, 2], restarts=1, search=None, quiet=True)  # compiles
    ranks, restarts = (range(1, 4), 2) if quick else (range(1, 11), 10)
    began = time.perf_counter()
    table = nz.select_rank(declare, ranks, restarts=restarts, search=None, cores=CORES, random_seed=1, quiet=True)
    seconds = time.perf_counter() - began
    which = "learned" if learned else "known"
    search = f"rank 1..{len(ranks)} by the bound, {restarts} restarts each"
    work = f"{search}, 16 x 10 counts, {which} hyperparameters, {CORES} cores"
    found = f"{seconds:.1f} s; finds {table.attrs['best']}"
    return note(work, found) if learned else at_most(work, found, seconds, SMALL_LIMIT, f"{SMALL_LIMIT:g} s")


def faces_of_16(quick: bool) -> Row:
    """Ranks 1 to 100 with learned hyperparameters, one run each, as Cemgil's Fig. 4."""
    from benchmarks.papers.cemgil_fig4 import faces

    X, name = faces(16)
    free, ranks = nz.free("all"), range(5, 101, 45) if quick else range(1, 101)
    began = time.perf_counter()
    table = nz.select_rank(
        lambda rank: nz.gamma_nmf(X, rank, alpha_w=free, mean_w=free, alpha_h=free, mean_h=free),
        ranks,
        method=nz.RankBound(max_iter=50 if quick else 2000, tol=1e-5, corrected=False),
        restarts=1,
        search=None,
        cores=CORES,
        random_seed=1,
        quiet=True,
    )
    seconds = time.perf_counter() - began
    work = f"{name}, 16 x 16: {len(ranks)} ranks up to 100, learned hyperparameters, {CORES} cores"
    found = f"{seconds:.0f} s; finds {table.attrs['best']}"
    return at_most(work, found, seconds, FACES_LIMIT, f"{FACES_LIMIT / 60:g} minutes")


if __name__ == "__main__":
    for row in rows(quick=True):
        print(row)

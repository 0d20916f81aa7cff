"""The rank of overdispersed counts: how many components a Poisson and a negative binomial likelihood find.

Pelizzola, Laursen and Hobolth (2023, BMC Bioinformatics 24) see Poisson models take spread for signatures. The tables
here are simulated, and laid out as theirs: 96 features, four components.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.rows import Row, note

F, N, RANK = 96, 30, 4
SHAPE_W, SHAPE_H, SIZE = 0.2, 0.7, 1000.0  # SIZE: the median of a sample's counts
TABLES, ALPHAS, RANKS, RESTARTS = 10, (10.0, 50.0), range(1, 11), 3
WAYS: dict[str, Any] = {"the bound": "bound", "held-out counts": nz.Holdout(engine="vb")}


def simulated(seed: int, alpha: float) -> np.ndarray:
    rng = np.random.default_rng([2023, seed])
    W = rng.dirichlet(np.full(F, SHAPE_W), RANK).T
    H = rng.gamma(SHAPE_H, size=(RANK, N))
    mean = W @ (H * rng.lognormal(np.log(SIZE), 0.5, N) / H.sum(axis=0))
    return rng.poisson(mean * rng.gamma(alpha, 1.0 / alpha, mean.shape))


def chosen(X: np.ndarray, builder: Callable[..., Any], method: Any, ranks: Any, **how: Any) -> int:
    prior = {"alpha_w": SHAPE_W, "mean_w": 1.0 / F, "alpha_h": SHAPE_H, "mean_h": X.sum() / (N * RANK), **how}
    run: dict[str, Any] = {"restarts": RESTARTS, "search": None, "cores": 1, "random_seed": 1, "quiet": True}
    return int(nz.select_rank(lambda rank: builder(X, rank, **prior), ranks, method=method, **run).attrs["best"])


def rows(quick: bool) -> Iterator[Row]:
    """How often each rank is chosen, by each likelihood and each way to judge ranks."""
    ranks = range(3, 5) if quick else RANKS
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for alpha in ALPHAS:
            tables = [simulated(seed, alpha) for seed in range(1 if quick else TABLES)]
            for name, method in WAYS.items():
                yield one_way(
                    f"{len(tables)} simulated tables, {F} x {N}, alpha {alpha:g}, by {name}", tables, method, ranks
                )


def one_way(work: str, tables: list[np.ndarray], method: Any, ranks: Any) -> Row:
    """Ranks of the negative binomial likelihood beside Poisson's, and the tables that each has right."""
    found = []
    for builder, how in ((nz.negative_binomial_nmf, {"alpha": nz.free()}), (nz.gamma_nmf, {})):
        began = time.process_time()
        counted = Counter(chosen(X, builder, method, ranks, **how) for X in tables)
        said = ", ".join(f"{rank} ({times})" for rank, times in sorted(counted.items()))
        found.append(f"{said}; {counted[RANK]} right, {time.process_time() - began:.0f} s")
    return note(work, *found)


if __name__ == "__main__":
    for row in rows(quick=False):
        print(row["work"], "| negative binomial:", row["ours"], "| Poisson:", row["peer"], flush=True)

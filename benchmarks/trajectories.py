"""Where Gibbs is better off with trajectories: effective draws per CPU second with them and without, table by table.

The tables differ in how many of their cells are filled, in how large these are and in size. What `Gibbs` chooses by
itself (`nmf_zoo.inference.counts.sweeps`) is held against the better of the two. ``python -m
benchmarks.trajectories [name ...]`` measures some tables only.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

import nmf_zoo as nz
from benchmarks.mixing import OURS, least_ess
from benchmarks.rows import Row
from benchmarks.rows import compare as compared
from nmf_zoo import _compat
from nmf_zoo.inference.counts.sweeps import trajectories_pay
from nmf_zoo.inference.shared.layout import compress

LEAST = 0.8  # of the better way, for a choice to be right
ENOUGH_ESS, ENOUGH_SECONDS, MOST_DOUBLINGS = 1000.0, 1.0, 1


class Run(NamedTuple):
    """Effective draws per CPU second, and what they come from."""

    per_second: float
    ess: float
    seconds: float
    draws: int


class Table(NamedTuple):
    """Counts of a gamma model: their size, rank and mean, the gamma shape of the factors, and the least draws."""

    shape: tuple[int, int]
    rank: int
    mean: float
    gamma_shape: float = 1.0
    draws: int = 4000


TABLES = {
    "1%": Table((60, 120), 3, 0.012),
    "4%": Table((60, 120), 3, 0.05),
    "9%": Table((60, 120), 3, 0.12),
    "15%": Table((60, 120), 3, 0.22),
    "30%": Table((60, 120), 3, 0.6),
    "70%": Table((60, 120), 3, 3.0),
    "full": Table((60, 120), 3, 50.0),
    "few, large": Table((60, 120), 3, 3.0, 0.1),
    "few, larger": Table((60, 120), 3, 50.0, 0.1),
    "shape 0.3": Table((60, 120), 3, 0.3, 0.3),
    "shape 0.3, more": Table((60, 120), 3, 3.0, 0.3),
    "large, 1%": Table((300, 400), 5, 0.012),
    "large, 4%": Table((300, 400), 5, 0.05),
    "large, 15%": Table((300, 400), 5, 0.2),
    "larger, full": Table((1024, 400), 20, 60.0, 0.5, 300),
    "rank 10": Table((60, 120), 10, 0.6),
}


def draw_counts(table: Table) -> np.ndarray:
    """Counts of a table, from its own model."""
    rng, (n_rows, n_cols), a = np.random.default_rng(1), table.shape, table.gamma_shape
    product = rng.gamma(a, size=(n_rows, table.rank)) @ rng.gamma(a, size=(table.rank, n_cols))
    return rng.poisson(product * table.mean / product.mean())


def until_enough(run: Callable[[int], tuple[xr.Dataset, float]], draws: int, longest: int) -> Run:
    """``run(draws)`` returns (posterior, CPU seconds); draws double until the estimate is no noise."""
    for _ in range(longest + 1):
        posterior, seconds = run(draws)
        ess = least_ess(posterior)
        if ess >= ENOUGH_ESS and seconds >= ENOUGH_SECONDS:
            break
        draws *= 2
    return Run(ess / seconds, ess, seconds, posterior.sizes["draw"])


def ours(model: pm.Model, quick: bool, draws: int = 4000, **options: Any) -> Run:
    """A sampler of ours with its default warm-up; ``options`` go to ``nz.sample``, e.g. engine=nz.Gibbs(moves=()).

    Up to 32,000 draws of each chain are kept, thinned where more sweeps are needed.
    """
    first, most_kept = min(draws, 500) if quick else draws, 32_000

    def run(sweeps: int) -> tuple[xr.Dataset, float]:
        thin = max(1, sweeps // most_kept)
        began = time.process_time()
        idata = nz.sample(sweeps, model=model, thin=thin, random_seed=1, **OURS, **options)
        return _compat.group(idata, "posterior"), time.process_time() - began

    nz.sample(2, model=model, tune=2, random_seed=0, **OURS, **options)
    return until_enough(run, first, 0 if quick else MOST_DOUBLINGS)


def rows(quick: bool, names: tuple[str, ...] = tuple(TABLES)) -> Iterator[Row]:
    """One row per table: what is chosen beside what is not."""
    for name in names[-1:] if quick else names:
        table = TABLES[name]
        X = draw_counts(table)
        a = table.gamma_shape
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nz.gamma_nmf(X, table.rank, alpha_w=a, alpha_h=a, beta_w=a, beta_h=a)
            words = "always", "never"
            runs = {word: ours(model, quick, table.draws, engine=nz.Gibbs(trajectories=word)) for word in words}
        structure = nz.read(model)
        chosen = "always" if trajectories_pay(structure, compress(structure), {}) else "never"
        other = "never" if chosen == "always" else "always"
        mean = X[X > 0].mean()
        yield compared(
            f"least ESS of W H per CPU second, {table.shape[0]} x {table.shape[1]}, K={table.rank}, "
            f"{np.mean(X > 0):.0%} of the cells filled, mean of these {mean:.1f}",
            f"{runs[chosen].per_second:,.0f} (chosen: trajectories {chosen})",
            f"{runs[other].per_second:,.0f} (trajectories {other})",
            runs[chosen].per_second / runs[other].per_second,
            LEAST,
        )


if __name__ == "__main__":
    for row in rows(False, tuple(sys.argv[1:]) or tuple(TABLES)):
        print(" | ".join(row.values()), flush=True)

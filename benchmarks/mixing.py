"""Effective draws per CPU second of a sampler of ours beside nutpie on the same declaration, least over cells of W H.

Two chains, one after the other; warm-up counted, compilation not; CPU time of all threads. Runs are doubled until the
least bulk effective sample size is 1,000 (its standard error is then about 5%) and a CPU second has passed.
``python -m benchmarks.mixing [case ...]`` measures some cases only; `compare` is for other samplers and options.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import nutpie
import pymc as pm
import xarray as xr

import nmf_zoo as nz
from benchmarks.datasets import cemgil_counts, gamma_counts
from benchmarks.effective import bulk_ess
from benchmarks.rows import Row
from benchmarks.rows import compare as compared
from nmf_zoo import _compat

ENOUGH_ESS, ENOUGH_SECONDS, MOST_DOUBLINGS = 1000.0, 1.0, 9
MOST_CELLS = 1000
OURS = {"chains": 2, "cores": 1, "start": "random", "quiet": True, "compute_convergence_checks": False}
TARGET_ACCEPTS = (0.8, 0.95)


class Case(NamedTuple):
    """A declaration, and how many times nutpie's effective draws ours must reach."""

    label: str
    model: Callable[[], pm.Model]
    must: float


class Run(NamedTuple):
    """Effective draws per CPU second, and what they come from."""

    per_second: float
    ess: float
    seconds: float
    draws: int


CASES = {
    "a": Case("4 x 100, K=2, mean count 1.6", lambda: nz.gamma_nmf(gamma_counts(4, 100, 2, 1.6), 2), 6.0),
    "b": Case(
        "Cemgil's 16 x 10, K=5, mean count 450",
        lambda: nz.gamma_nmf(cemgil_counts(), 5, alpha_w=10.0, mean_w=1.0, alpha_h=1.0, mean_h=100.0),
        2.0,
    ),
    "c": Case("50 x 200, K=5, mean count 3", lambda: nz.gamma_nmf(gamma_counts(50, 200, 5, 3.0), 5), 2.0),
    "d": Case("4 x 100, K=2, mean count 56", lambda: nz.gamma_nmf(gamma_counts(4, 100, 2, 56.0), 2), 1.5),
}


def least_ess(posterior: xr.Dataset) -> float:
    """The least bulk effective sample size over the cells of W H (1,000 of them at the most, spread evenly)."""
    W, H = posterior["W"].values, posterior["H"].values
    shape = W.shape[-2], H.shape[-1]
    cells = np.linspace(0, shape[0] * shape[1] - 1, min(MOST_CELLS, shape[0] * shape[1])).astype(int)
    least = np.inf
    for some in np.array_split(cells, max(1, len(cells) // 100)):
        rows, cols = np.unravel_index(some, shape)
        mean = np.einsum("abck,abkc->abc", W[..., rows, :], H[..., cols])
        least = min(least, float(bulk_ess(mean).min()))
    return least


def until_enough(run: Callable[[int], tuple[xr.Dataset, float]], draws: int, longest: int = MOST_DOUBLINGS) -> Run:
    """``run(draws)`` returns (posterior, CPU seconds); draws double until the estimate is no noise."""
    for _ in range(longest + 1):
        posterior, seconds = run(draws)
        ess = least_ess(posterior)
        if ess >= ENOUGH_ESS and seconds >= ENOUGH_SECONDS:
            break
        draws *= 2
    return Run(ess / seconds, ess, seconds, posterior.sizes["draw"])


def ours(model: pm.Model, quick: bool = False, most: int = MOST_DOUBLINGS, **options: Any) -> Run:
    """A sampler of ours with its default warm-up; ``options`` go to ``nz.sample``, e.g. engine=nz.Gibbs(moves=()).

    Runs double ``most`` times at the most; up to 32,000 draws of each chain are kept, thinned where more sweeps are
    needed.
    """
    first, most_kept = 500 if quick else 4000, 32_000

    def run(sweeps: int) -> tuple[xr.Dataset, float]:
        thin = max(1, sweeps // most_kept)
        began = time.process_time()
        idata = nz.sample(sweeps, model=model, thin=thin, random_seed=1, **OURS, **options)
        return _compat.group(idata, "posterior"), time.process_time() - began

    nz.sample(2, model=model, tune=2, random_seed=0, **OURS, **options)
    return until_enough(run, first, 0 if quick else most)


def nutpie_run(model: pm.Model, target_accept: float, quick: bool = False) -> Run:
    """nutpie with its default warm-up."""
    compiled = nutpie.compile_pymc_model(model)
    arguments = {"chains": 2, "cores": 1, "seed": 1, "progress_bar": False, "target_accept": target_accept}

    def run(draws: int) -> tuple[xr.Dataset, float]:
        began = time.process_time()
        idata = nutpie.sample(compiled, draws=draws, save_warmup=False, **arguments)
        return _compat.group(idata, "posterior"), time.process_time() - began

    nutpie.sample(compiled, draws=2, tune=2, **arguments)
    return until_enough(run, 200 if quick else 1000, 0 if quick else MOST_DOUBLINGS)


def compare(case: str, quick: bool = False, **options: Any) -> tuple[Run, Run, float]:
    """(ours, the better of nutpie's runs, its target_accept) on one case; ``options`` as in `ours`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CASES[case].model()
        own = ours(model, quick, **options)
        peers = {accept: nutpie_run(model, accept, quick) for accept in TARGET_ACCEPTS}
    best = max(peers, key=lambda accept: peers[accept].per_second)
    return own, peers[best], best


def rows(quick: bool, cases: tuple[str, ...] = tuple(CASES)) -> Iterator[Row]:
    """One row per case."""
    for name in cases[:1] if quick else cases:
        own, peer, accept = compare(name, quick)
        yield compared(
            f"least ESS of W H per CPU second, ({name}) {CASES[name].label}",
            f"{own.per_second:,.0f} (ESS {own.ess:,.0f} in {own.seconds:.1f} s)",
            f"{peer.per_second:,.0f} (nutpie, target_accept {accept}: ESS {peer.ess:,.0f} in {peer.seconds:.1f} s)",
            own.per_second / peer.per_second,
            CASES[name].must,
        )


if __name__ == "__main__":
    for row in rows(False, tuple(sys.argv[1:]) or tuple(CASES)):
        print(" | ".join(row.values()), flush=True)

"""Effective draws per CPU second of a sampler of ours beside nutpie on the same declaration, of W H, W and H, and lp.

Two chains, one after the other, as many draws and as much warm-up on both sides: half of a run is warm-up, which
counts; compilation does not. Five seeds, of which the medians are told. Runs double until the worst cell of W H, and
lp, has an R-hat of 1.01 at the most in every run of either side, or nutpie's take too long: then the row says that it
is not valid. nutpie gets the better of two target_accept. ``python -m benchmarks.mixing [case ...]`` measures some.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import nutpie
import pymc as pm
import xarray as xr

import nmf_zoo as nz
from benchmarks.datasets import cemgil_counts, gamma_counts
from benchmarks.effective import bulk_ess, r_hat
from benchmarks.rows import REPEATS, Row
from benchmarks.rows import compare as compared
from nmf_zoo import _compat
from nmf_zoo.inference.shared.joint import log_joints
from nmf_zoo.structure import Factorisation

FEWEST, MOST_DOUBLINGS = 1000, 6  # draws of a run, and of warm-up
LONGEST = 40.0  # CPU seconds of nutpie's last runs
MOST_R_HAT = 1.01
MOST_CELLS = 1000
OURS = {"chains": 2, "cores": 1, "start": "random", "quiet": True, "compute_convergence_checks": False}
TARGET_ACCEPTS = (0.8, 0.95)


class Case(NamedTuple):
    """A declaration, and of each quantity told how many times nutpie's effective draws ours must reach, if at all."""

    label: str
    model: Callable[[], pm.Model]
    must: dict[str, float | None]


class Side(NamedTuple):
    """Runs of one sampler with several seeds: medians, and the worst R-hat.

    Attributes
    ----------
    rates : effective draws per CPU second, by quantity: "W H", of its worst cell, "W, H", of theirs, and "lp"
    ess : effective draws
    """

    rates: dict[str, float]
    ess: dict[str, float]
    seconds: float
    r_hat: float

    def told(self, quantity: str) -> str:
        return f"{self.rates[quantity]:,.0f} (ESS {self.ess[quantity]:,.0f} in {self.seconds:.1f} s)"


def with_hyperpriors() -> pm.Model:
    """The shapes of W, and the mean of H by component, are unknown."""
    with pm.Model():
        shape, means = pm.Gamma("a", 2.0, 2.0), pm.InverseGamma("m", 3.0, 4.0, shape=(3, 1))
        return nz.gamma_nmf(gamma_counts(20, 50, 3, 3.0), 3, alpha_w=shape, mean_h=means)


CASES = {
    "a": Case(
        "4 x 100, K=2, mean count 1.6", lambda: nz.gamma_nmf(gamma_counts(4, 100, 2, 1.6), 2), {"W H": 6.0, "lp": 4.0}
    ),
    "b": Case(
        "Cemgil's 16 x 10, K=5, mean count 450",
        lambda: nz.gamma_nmf(cemgil_counts(), 5, alpha_w=10.0, mean_w=1.0, alpha_h=1.0, mean_h=100.0),
        {"W H": 2.0, "lp": None},
    ),
    "c": Case(
        "50 x 200, K=5, mean count 3", lambda: nz.gamma_nmf(gamma_counts(50, 200, 5, 3.0), 5), {"W H": 2.0, "lp": 8.0}
    ),
    "d": Case(
        "4 x 100, K=2, mean count 56", lambda: nz.gamma_nmf(gamma_counts(4, 100, 2, 56.0), 2), {"W H": 1.5, "lp": None}
    ),
    "e": Case(
        "20 x 50, K=3, mean count 3, hyperpriors on W's shape and the means of H",
        with_hyperpriors,
        {"W H": 2.0, "W, H": 2.0, "lp": 2.0},
    ),
}


def cells_of(posterior: xr.Dataset) -> Iterator[np.ndarray]:
    """W H at its cells (1,000 of them at the most, spread evenly), (chain, draw, some cells) at a time."""
    W, H = posterior["W"].values, posterior["H"].values
    shape = W.shape[-2], H.shape[-1]
    cells = np.linspace(0, shape[0] * shape[1] - 1, min(MOST_CELLS, shape[0] * shape[1])).astype(int)
    for some in np.array_split(cells, max(1, len(cells) // 100)):
        rows, cols = np.unravel_index(some, shape)
        yield np.einsum("abck,abkc->abc", W[..., rows, :], H[..., cols])


def least_ess(posterior: xr.Dataset) -> float:
    """The least bulk effective sample size over the cells of W H."""
    return min(float(bulk_ess(mean).min()) for mean in cells_of(posterior))


def least_ess_of_factors(posterior: xr.Dataset) -> float:
    """The least over the cells of W and H of the sum over chains, whose components may have other places."""
    W, H = (posterior[name].to_numpy() for name in ("W", "H"))
    factors = np.concatenate([array.reshape(*array.shape[:2], -1) for array in (W, H)], axis=-1)
    return float(sum(bulk_ess(chain[None]) for chain in factors).min())


def log_joint_of(posterior: xr.Dataset, structure: Factorisation) -> np.ndarray:
    """(chain, draw, 1) the log joint density of the variables themselves, whatever a sampler reports."""
    values = {name: posterior[name].to_numpy() for name in ("W", "H", *structure.unknowns)}
    chains = ({name: draws[c] for name, draws in values.items()} for c in range(posterior.sizes["chain"]))
    return np.stack([log_joints(structure, chain) for chain in chains])[..., None]


def side_of(runs: list[tuple[xr.Dataset, float]], structure: Factorisation) -> Side:
    """What runs, each (posterior, CPU seconds), say together."""
    rates, sizes, worst = defaultdict(list), defaultdict(list), 1.0
    for posterior, seconds in runs:
        lp = log_joint_of(posterior, structure)
        own = {"W H": least_ess(posterior), "W, H": least_ess_of_factors(posterior), "lp": float(bulk_ess(lp)[0])}
        for name, size in own.items():
            sizes[name].append(size)
            rates[name].append(size / seconds)
        worst = max(worst, *(float(r_hat(array).max()) for array in (lp, *cells_of(posterior))))
    middle = [{name: median(values) for name, values in found.items()} for found in (rates, sizes)]
    return Side(*middle, median(seconds for _, seconds in runs), worst)


def run_ours(model: pm.Model, draws: int, seed: int, **options: Any) -> tuple[xr.Dataset, float]:
    """(posterior, CPU seconds) with as much warm-up as draws."""
    began = time.process_time()
    idata = nz.sample(draws, tune=draws, model=model, random_seed=seed, **OURS, **options)
    return _compat.group(idata, "posterior"), time.process_time() - began


def run_nutpie(compiled: Any, draws: int, seed: int, target_accept: float) -> tuple[xr.Dataset, float]:
    """(posterior, CPU seconds) with as much warm-up as draws."""
    arguments = {"chains": 2, "cores": 1, "progress_bar": False, "save_warmup": False}
    began = time.process_time()
    idata = nutpie.sample(compiled, draws=draws, tune=draws, seed=seed, target_accept=target_accept, **arguments)
    return _compat.group(idata, "posterior"), time.process_time() - began


def compare(model: pm.Model, quick: bool = False, **options: Any) -> tuple[Side, Side, str]:
    """(ours, nutpie's, how) on one declaration; ``options`` go to ``nz.sample``, e.g. engine=nz.Gibbs(moves=())."""
    structure, compiled = nz.read(model), nutpie.compile_pymc_model(model)
    run_ours(model, 2, 0, **options)
    draws, seeds = 200 if quick else FEWEST, range(1, 2 if quick else REPEATS + 1)
    trials = {accept: run_nutpie(compiled, draws, 0, accept) for accept in TARGET_ACCEPTS}
    best = max(trials, key=lambda accept: least_ess(trials[accept][0]) / trials[accept][1])
    for _ in range(1 if quick else MOST_DOUBLINGS):
        own = side_of([run_ours(model, draws, seed, **options) for seed in seeds], structure)
        peer = side_of([run_nutpie(compiled, draws, seed, best) for seed in seeds], structure)
        if max(own.r_hat, peer.r_hat) <= MOST_R_HAT or 2 * peer.seconds > LONGEST:
            break
        draws *= 2
    how = f"{draws:,} draws after as many of warm-up, one table, median of {len(seeds)} seeds"
    return own, peer, f"{how}, target_accept {best}"


def rows_of(label: str, must: dict[str, float | None], own: Side, peer: Side, how: str) -> Iterator[Row]:
    """A row of each quantity."""
    is_valid = max(own.r_hat, peer.r_hat) <= MOST_R_HAT
    mixing = f"R-hat at worst {own.r_hat:.3f} beside {peer.r_hat:.3f}"
    for quantity, least in must.items():
        row = compared(
            f"least ESS of {quantity} per CPU second, {label}: {how}; {mixing}",
            own.told(quantity),
            f"{peer.told(quantity)}, nutpie",
            own.rates[quantity] / peer.rates[quantity],
            least,
        )
        yield row if is_valid else row | {"ratio": f"not valid ({row['ratio']})", "met?": "**not valid**" * bool(least)}


def rows(quick: bool, cases: tuple[str, ...] = tuple(CASES)) -> Iterator[Row]:
    """The rows of each case."""
    for name in cases[:1] if quick else cases:
        case = CASES[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compare(case.model(), quick)
        yield from rows_of(f"({name}) {case.label}", case.must, *found)


if __name__ == "__main__":
    for row in rows(False, tuple(sys.argv[1:]) or tuple(CASES)):
        print(" | ".join(row.values()), flush=True)

"""Cemgil (2009), Fig. 3: the number of templates by the variational bound and by Chib's method, on simulated counts.

``python -m benchmarks.papers.cemgil_fig3 [--quick] [--cores 2]`` writes the figure; ``--many`` instead counts what the
bound with known hyperparameters chooses over 24 data sets drawn alike.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.datasets import cemgil_counts
from nmf_zoo._compat import group

FIGURES = Path(__file__).parent / "figures"
INK, ACCENT, PALE = "#22304a", "#c4552d", "#8a94a6"
TRUE, RUNS = 5, 5
KNOWN = {"alpha_w": 10.0, "mean_w": 1.0, "alpha_h": 1.0, "mean_h": 100.0}
DATA_SETS = 24


def main() -> None:
    arguments = parse()
    FIGURES.mkdir(exist_ok=True)
    warnings.simplefilter("ignore", nz.NmfZooWarning)
    if arguments.many:
        many(arguments.quick, arguments.cores)
        return
    print("Paper: X (16 x 10) drawn from 5 templates; shapes 10 and 1, means 1 and 100; I = 1 ... 10. Bound: until it")
    print(
        "converges or 10,000 iterations. Chib: 5,000 sweeps of burn-in, 10,000 free, 10,000 with clamped sources; the"
    )
    print("average of 5 runs. The bound and Chib agree and choose 5, also with hyperparameters learned.")
    ranks = range(3, 7) if arguments.quick else range(1, 11)
    methods = settings(arguments.quick)
    found = {name: [] for name in methods}
    print("I     " + "".join(f"{name:>28}" for name in methods))
    for rank in ranks:
        words = []
        for name, (method, hyperparameters) in methods.items():
            result, seconds = one(rank, method, hyperparameters, arguments.cores)
            found[name].append(result)
            value, error = (result.attrs[key] for key in ("log_evidence", "log_evidence_error"))
            words.append(f"{value:14.2f} ± {error:5.2f} {seconds:4.0f} s")
        print(f"{rank:<6}" + "".join(f"{word:>28}" for word in words), flush=True)
    for name, results in found.items():
        print(f"{name}: {ranks[int(np.argmax([result.attrs['log_evidence'] for result in results]))]} templates")
    path = FIGURES / f"cemgil_fig3{'_quick' if arguments.quick else ''}.png"
    picture(ranks, found).savefig(path, dpi=130)
    print(f"wrote {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.cemgil_fig3", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four ranks, short runs: shows that it runs")
    parser.add_argument("--many", action="store_true", help="what the bound chooses over 24 data sets; no figure")
    parser.add_argument("--cores", type=int, default=2)
    return parser.parse_args()


def settings(quick: bool) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Name of a curve -> (method, hyperparameters)."""
    free = dict.fromkeys(KNOWN, nz.free("all"))
    draws = 1000 if quick else 10_000
    return {
        "bound": (nz.Bound(search=None), KNOWN),
        "Chib, tightened": (nz.Chib(draws=1000 if quick else 2000), KNOWN),
        "Chib, as printed": (nz.Chib(ordinate="sources", draws=draws, tune=draws // 2), KNOWN),
        "bound, learned": (nz.Bound(search=None), free),
    }


def one(rank: int, method: Any, hyperparameters: dict[str, Any], cores: int) -> tuple[Any, float]:
    """The evidence at a rank, and the seconds it took."""
    began = time.perf_counter()
    model = nz.gamma_nmf(cemgil_counts(), rank, **hyperparameters)
    result = nz.evidence(model, method, chains=RUNS, cores=cores, random_seed=rank, quiet=True)
    return result, time.perf_counter() - began


def many(quick: bool, cores: int) -> None:
    """Print how often the bound chooses each rank, the data drawn anew from the priors, which the bound knows."""
    chosen = []
    for seed in range(4 if quick else DATA_SETS):
        counts = cemgil_counts(seed)
        bounds = {
            rank: nz.evidence(
                nz.gamma_nmf(counts, rank, **KNOWN),
                nz.Bound(search=None, draws=1),
                random_seed=rank,
                cores=cores,
                quiet=True,
            ).attrs["log_evidence"]
            for rank in range(1, 8)
        }
        chosen.append(max(bounds, key=bounds.get))
    words = ", ".join(f"{rank}: {chosen.count(rank)}" for rank in sorted(set(chosen)))
    print(f"Known hyperparameters, {len(chosen)} data sets of {TRUE} templates: how often the bound chose I: {words}")


def picture(ranks: range, found: dict[str, list[Any]]) -> Any:
    """The paper's three panels: bound beside Chib, Chib's runs, the bound with learned hyperparameters."""
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(7, 10), sharex=True, layout="constrained")
    values = {name: [result.attrs["log_evidence"] for result in results] for name, results in found.items()}
    top.plot(ranks, values["bound"], "s-", color=INK, label="variational bound (lower)")
    top.plot(ranks, values["Chib, tightened"], "o-", color=ACCENT, label="Chib, tightened posterior")
    top.plot(ranks, values["Chib, as printed"], "o:", color=PALE, label="Chib, sources as in the paper")
    top.set_title("known hyperparameters")
    runs = [group(result, "sample_stats")["log_marginal_likelihood"].values for result in found["Chib, tightened"]]
    middle.boxplot(runs, positions=list(ranks), medianprops={"color": ACCENT})
    middle.set_title(f"Chib, tightened posterior: {RUNS} runs")
    bottom.plot(ranks, values["bound, learned"], "s-", color=INK)
    bottom.set_title("variational bound, hyperparameters learned")
    for axes in (top, middle, bottom):
        axes.axvline(TRUE, color=PALE, linewidth=0.8, linestyle="--")
        axes.set_ylabel("log evidence (nats)")
        axes.spines[["top", "right"]].set_visible(False)
    top.legend(frameon=False)
    bottom.set_xlabel("number of templates")
    bottom.set_xticks(list(ranks), [str(rank) for rank in ranks])
    return figure


if __name__ == "__main__":
    main()

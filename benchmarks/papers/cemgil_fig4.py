"""Cemgil (2009), Fig. 4: the variational bound by the number of templates, on faces, hyperparameters learned.

``python -m benchmarks.papers.cemgil_fig4 [--quick] [--size 16 32] [--plain] [--cores 2]``. Searches are kept in
``figures/``: a second call draws the picture from what is there, or goes on with it.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import xarray as xr

import nmf_zoo as nz
from benchmarks.papers.cemgil_faces import ACCENT, FIGURES, INK, faces

PAPER = {16: 27, 32: 42}


def main() -> None:
    arguments = parse()
    FIGURES.mkdir(exist_ok=True)
    warnings.simplefilter("ignore", nz.NmfZooWarning)
    print(
        "Paper: 400 faces of the Olivetti set, downsampled to 16 x 16 or 32 x 32; one shape and one mean for all of W,"
    )
    print("one of each for all of H, learned with the bound; I = 1 ... 100, one run each. I* = 27 and 42.")
    found = {size: search(size, arguments) for size in arguments.size}
    for size, table in found.items():
        print(f"{size} x {size}: paper {PAPER[size]}, here {table.attrs['best']}. {table.attrs['answer']}")
    path = FIGURES / f"cemgil_fig4{'_plain' if arguments.plain else ''}{'_quick' if arguments.quick else ''}.png"
    picture(found, arguments.plain).savefig(path, dpi=130)
    print(f"wrote {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.cemgil_fig4", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten ranks, 100 iterations: shows that it runs")
    parser.add_argument("--size", type=int, nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--plain", action="store_true", help="the updates as printed, without momentum")
    parser.add_argument("--max-iter", type=int, default=2000, help="iterations of a run at the most (default 2000)")
    parser.add_argument("--cores", type=int, default=2)
    return parser.parse_args()


def search(size: int, arguments: argparse.Namespace) -> xr.Dataset:
    """The bound of every rank, from one random start each."""
    X, name = faces(size)
    free = nz.free("all")
    ranks = range(5, 101, 10) if arguments.quick else range(1, 101)
    engine = nz.VB(accelerate=None) if arguments.plain else nz.VB()
    max_iter = 100 if arguments.quick else arguments.max_iter
    began, cpu = time.perf_counter(), time.process_time()
    table = nz.select_rank(
        lambda rank: nz.gamma_nmf(X, rank, alpha_w=free, mean_w=free, alpha_h=free, mean_h=free),
        ranks,
        method=nz.RankBound(vb=engine, max_iter=max_iter, tol=1e-5, corrected=False),
        restarts=1,
        search=None,
        cores=arguments.cores,
        random_seed=1,
        checkpoint=FIGURES / f"cemgil_fig4_{size}_{'plain' if arguments.plain else 'fast'}_{max_iter}.search",
    )
    seconds = f"{time.perf_counter() - began:.0f} s on {arguments.cores} cores, {time.process_time() - cpu:.0f} CPU s"
    print(f"{size} x {size}: {name}, {X.shape[0]} x {X.shape[1]}, {len(ranks)} ranks, {seconds}, of which")
    print(f"  the runs themselves {float(table['seconds'].sum()):.0f} s, sessions before this one included")
    for rank in (1, 5, 15, 25, 27, 35, 42, 45, 65, 85, 100):
        if rank in table["rank"]:
            row = table.sel(rank=rank)
            print(f"  I = {rank:3}: bound {float(row['combined']):.1f}, {row['status'].values[0]}")
    return table


def picture(found: dict[int, xr.Dataset], plain: bool):
    """A panel per size, as in the paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(found), 3.6), layout="constrained")
    for axes, (size, table) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        best, bound = table.attrs["best"], table["combined"].to_numpy()
        axes.plot(table["rank"], bound, color=INK, lw=1.2, marker=".", ms=3)
        axes.axvline(best, color=ACCENT, lw=1, label=f"here I* = {best}")
        axes.axvline(PAPER[size], color=INK, lw=1, ls=":", label=f"paper I* = {PAPER[size]}")
        axes.set_ylim(np.quantile(bound, 0.1), bound.max() + 0.05 * (bound.max() - np.quantile(bound, 0.1)))
        axes.set(xlabel="number of templates I", ylabel="bound (nats)", title=f"{size} x {size}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle("Updates as printed" if plain else "Accelerated updates", fontsize=10)
    return figure


if __name__ == "__main__":
    main()

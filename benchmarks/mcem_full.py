"""MCEM-C on NIPS at the paper's size, 1,000 iterations of 250 sweeps, the reference of ``benchmarks.mcem``.

``python -m benchmarks.mcem_full FOLDER [--drawn] [--cores 2]`` takes more than an hour on two cores, and goes on where
it was stopped. Every 50 iterations it prints the estimated log p(X | W), the sorted column norms, and the zeros of W.
``--drawn`` averages drawn sources, as the paper does, instead of their expectations.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import nmf_zoo as nz
from benchmarks.datasets import nips
from benchmarks.mcem import RANK, first_w, judge
from nmf_zoo import _compat
from nmf_zoo.runtime.workers import Workers

ITERATIONS, EVERY = 1000, 50


def main() -> None:
    arguments = parse()
    X, name = nips()
    model, workers = nz.gap(X, RANK), Workers(arguments.cores)
    engine = nz.MCEM(
        complete="C", sweeps=250, burn_in=125, average=False, exact=False, rao_blackwell=not arguments.drawn
    )
    print(f"{name}, K={RANK}: {engine}", flush=True)
    for iterations in range(EVERY, ITERATIONS + 1, EVERY):
        idata = nz.fit(
            engine=engine,
            model=model,
            max_iter=iterations,
            tol=0,
            random_seed=1,
            initvals={"W": first_w(X)},
            cores=arguments.cores,
            checkpoint=arguments.folder,
            quiet=True,
        )
        W = _compat.group(idata, "posterior")["W"].to_numpy()[0, 0]
        norms = np.sort(W.sum(axis=0)).round(1)
        print(iterations, f"{judge(nz.read(model), W, workers):.0f}", norms, f"{np.mean(W == 0):.1%} zeros", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcem_full", description=__doc__)
    parser.add_argument("folder", type=Path, help="checkpoint; the run is kept there")
    parser.add_argument("--drawn", action="store_true", help="averages of drawn sources")
    parser.add_argument("--cores", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Cemgil (2009), section 5: the variational method is faster than the Gibbs sampler by a factor of around 13.

``python -m benchmarks.papers.cemgil_speed [--quick]``. One core, an iteration against a sweep, on the table of its
Fig. 3 (16 x 10, five sources) and on the faces of its Fig. 4.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

import nmf_zoo as nz
from benchmarks.papers.cemgil_faces import faces

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.cemgil_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few iterations")
    length = 40 if parser.parse_args().quick else 400
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(1)
    table = rng.poisson(rng.gamma(10.0, 1 / 10.0, (16, 5)) @ rng.gamma(1.0, 100.0, (5, 10)))
    X, name = faces(16)
    print("Paper: an iteration of VB takes 1/13 of the time of a Gibbs sweep, in the author's implementation of both.")
    print(f"{'data':44}{'VB, ms':>10}{'Gibbs, ms':>12}{'Gibbs / VB':>12}{'least ESS, % of sweeps':>24}")
    row("16 x 10, 5 sources, mean 500", table, 5, length)
    row(f"{name.split()[0]} faces, 256 x 400, 27 templates", X, 27, length // 10)


def row(name: str, X: np.ndarray, rank: int, length: int) -> None:
    """Plain updates and plain sweeps, as in the paper; and how many sweeps an independent draw takes."""
    model = nz.gamma_nmf(X, rank, alpha_w=10.0, mean_w=1.0, alpha_h=1.0, mean_h=X.mean() / rank)
    how: dict[str, Any] = {"model": model, "random_seed": 1, "quiet": True, "cores": 1}
    vb = nz.VB(accelerate=None)
    gibbs = nz.Gibbs(moves=(), trajectories="never")

    def iterate(n: int) -> Any:
        return nz.fit(engine=vb, max_iter=n, tol=0, draws=1, **how)

    def sweep(n: int) -> Any:
        return nz.sample(n, tune=0, chains=1, engine=gibbs, compute_convergence_checks=False, keep="moments", **how)

    of_vb, of_gibbs = (1e3 * seconds_each(work, length) for work in (iterate, sweep))
    drawn = nz.sample(10 * length, tune=length, chains=1, engine=gibbs, compute_convergence_checks=False, **how)
    share = 100 * nz.summarise(drawn)["ess_bulk"].min() / (10 * length)
    print(f"{name:44}{of_vb:10.3f}{of_gibbs:12.3f}{of_gibbs / of_vb:12.1f}{share:24.2f}", flush=True)


def seconds_each(work: Any, length: int) -> float:
    """Of one step: the difference of a long and a short run, the least of several."""
    work(2)
    found = []
    for _ in range(REPEATS):
        times = []
        for n in (length, 3 * length):
            began = time.process_time()
            work(n)
            times.append(time.process_time() - began)
        found.append((times[1] - times[0]) / (2 * length))
    return min(found)


if __name__ == "__main__":
    main()

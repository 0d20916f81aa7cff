"""Yildirim 2012, Fig. 1: W along a stream, by exact online EM for binary chains whose law is known.

The paper: W (8 x 5), T = 100,000, p = 0.8571, q = 0.6926, step sizes t^-0.8, updates from t_b = 100 on.
"""

from __future__ import annotations

import nmf_zoo as nz
from benchmarks.papers.filstroff import is_quick, save
from benchmarks.papers.yildirim import FEATURES, RANK, STEPS, P, Q, draw_grid, follow, say, simulate, weights

STARTS = 10


def main() -> None:
    quick = is_quick(__doc__)
    n_times, starts = (2_000, 2) if quick else (100_000, STARTS)
    W = weights()
    X = simulate(lambda **shape: nz.BasisChain.dist(P, Q, **shape), W, n_times)
    print(f"M={FEATURES}, K={RANK}, T={n_times:,}, p={P}, q={Q}, t^-0.8, t_b=100, exact online EM, {starts} starts")
    paths = []
    for seed in range(starts):
        paths.append(follow(X, RANK, nz.BasisChain(P, Q), nz.ChainOnlineEM(**STEPS), seed=seed))
        say(f"start {seed}", W, paths[-1])
    draw_grid(W, {"estimate, start 0": paths[0]}, f"Exact online EM, p = {P}, q = {Q} known")
    save("yildirim_fig1")


if __name__ == "__main__":
    main()

"""Yildirim 2012, Fig. 3: W along a stream, by online EM with particles (Algorithm 1), for the unit chain.

The paper: W (8 x 5), T = 50,000, alpha = 0.95 known, N = 1000 particles, bootstrap proposal, resampled at every step,
step sizes t^-0.8, updates from t_b = 100 on. Beside it the same with step sizes t^-0.6, from the same starts.
"""

from __future__ import annotations

import nmf_zoo as nz
from benchmarks.papers.filstroff import is_quick, save
from benchmarks.papers.yildirim import (
    ALPHA,
    FEATURES,
    PATIENT,
    RANK,
    STEPS,
    draw_grid,
    error,
    follow,
    say,
    simulate,
    weights,
)

STARTS = 4


def main() -> None:
    quick = is_quick(__doc__)
    n_times, starts = (2_000, 2) if quick else (50_000, STARTS)
    W = weights()
    X = simulate(lambda **shape: nz.UnitChain.dist(ALPHA, **shape), W, n_times)
    print(f"M={FEATURES}, K={RANK}, T={n_times:,}, alpha={ALPHA}, N=1000, bootstrap, t^-0.8, t_b=100, {starts} starts")
    paths = {}
    for name, steps in (("t^-0.8", STEPS), ("t^-0.6", PATIENT)):
        engine = nz.ParticleOnlineEM(proposal="bootstrap", resampling="multinomial", ess=1.0, smoother="path", **steps)
        for seed in range(starts):
            paths[name, seed] = follow(X, RANK, nz.UnitChain(ALPHA), engine, seed=seed)
            say(f"{name}, start {seed}", W, paths[name, seed])
    best = min(range(starts), key=lambda seed: error(W, paths["t^-0.8", seed].W[-1]))  # with the paper's steps
    shown = {f"{name}, start {best}": paths[name, best] for name in ("t^-0.8", "t^-0.6")}
    draw_grid(W, shown, f"Algorithm 1, N = 1000, unit chain, alpha = {ALPHA} known")
    save("yildirim_fig3")


if __name__ == "__main__":
    main()

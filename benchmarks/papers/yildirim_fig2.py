"""Yildirim 2012, Fig. 2: a realisation of the unit chain, alpha = 0.95, 500 steps; and what float64 makes of one.

Near 1 float64 has steps of 2^-53, and an x nearer than that is 1. From there a move towards 1 leaves x as it is, which
looks like none, so that alpha, estimated by the share of moves towards the nearer end, comes out too small.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.papers.filstroff import is_quick, save
from benchmarks.papers.yildirim import ALPHA


def distances(uniforms: np.ndarray, alpha: float) -> np.ndarray:
    """x and 1 - x (2, T), each kept, along a path that starts in the middle; uniforms (2, T): which way and how far."""
    path, below, above = [], 0.5, 0.5
    for way, part in uniforms.T:
        if way < (alpha if below <= above else 1.0 - alpha):
            below = below * part
            above = 1.0 - below
        else:
            above = above * part
            below = 1.0 - above
        path.append((below, above))
    return np.array(path).T


def naive(uniforms: np.ndarray, alpha: float) -> np.ndarray:
    """The same path (T,) with x alone."""
    path, x = [], 0.5
    for way, part in uniforms.T:
        x = x * part if way < (alpha if x <= 0.5 else 1.0 - alpha) else 1.0 - (1.0 - x) * part
        path.append(x)
    return np.array(path)


def share_of_stays(x: np.ndarray, away: np.ndarray) -> float:
    """Which part of the moves of x, with ``away`` = 1 - x, went towards the nearer end: the estimate of alpha."""
    is_low = x[:-1] <= away[:-1]
    return float(np.mean(np.where(is_low, x[1:] < x[:-1], away[1:] < away[:-1])))


def main() -> None:
    n_paths = 20 if is_quick(__doc__) else 400
    draws = np.random.default_rng(2012).random((n_paths, 2, 500))
    kept, alone = [distances(u, ALPHA) for u in draws], [naive(u, ALPHA) for u in draws]
    first = [int(np.argmax(x == 1.0)) if np.any(x == 1.0) else len(x) for x in alone]
    stays = [np.mean([share_of_stays(*path) for path in kept]), np.mean([share_of_stays(x, 1.0 - x) for x in alone])]
    steps = f"{np.median(first):.0f} steps (median)"
    print(f"alpha={ALPHA}, 500 steps, {n_paths} paths; x alone is exactly 1 first after {steps}")
    print(f"share of moves towards the nearer end: {stays[0]:.3f} with x and 1 - x, {stays[1]:.3f} with x alone")
    lost = np.array([np.sum(x == 1.0) for x in alone])
    chosen = int(np.argmin(np.abs(lost - np.mean(lost))))  # a path that is neither lucky nor unlucky
    draw(kept[chosen], alone[chosen])


def draw(kept: np.ndarray, alone: np.ndarray) -> None:
    """The path, and its distance to 1 with both numbers kept and with x alone."""
    _, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    above.plot(kept[0], lw=1)
    above.set_ylabel("x")
    above.set_title(f"The unit chain, alpha = {ALPHA}", fontsize=10)
    below.semilogy(kept[1], lw=3, alpha=0.5, label="x and 1 - x kept")
    below.semilogy(np.where(alone < 1.0, 1.0 - alone, np.nan), color="tab:red", lw=1, label="x alone")
    lost = np.flatnonzero(alone == 1.0)
    below.plot(lost, np.full(len(lost), 2.0**-53), "|", color="tab:red", label="x alone: exactly 1")
    below.set_ylabel("1 - x")
    below.set_xlabel("t")
    below.legend(fontsize=8)
    save("yildirim_fig2")


if __name__ == "__main__":
    main()

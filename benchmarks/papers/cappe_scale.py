"""Scale of W along a stream at the size of the paper's recording, with and without parameter expansion.

F = 256, K = 3, alpha = beta = 1, frames from the model; W starts at its true profiles, 30 times too large, right, or 30
times too small. The scale that the frames themselves ask for is alpha over the mean of beta / h.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.papers.filstroff import is_quick, save

F, K, FACTORS = 256, 3, (30.0, 1.0, 1.0 / 30.0)


def draw_frames(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W (F, K), the inverses of H (K, n), and powers (F, n) from the model."""
    rng = np.random.default_rng(0)
    W, inverse = rng.gamma(0.5, size=(F, K)) + 1e-3, rng.gamma(1.0, size=(K, n))
    return W, inverse, rng.exponential(size=(F, n)) * (W @ (1.0 / inverse))


def follow(X: np.ndarray, start: np.ndarray, after: np.ndarray, expand: bool) -> np.ndarray:
    """Sums of W's columns (len(after), K)."""
    engine, model = nz.SimulatedOnlineEM(expand=expand), nz.is_nmf(None, K, shape=(F, 1))
    stream, path = nz.stream(model, engine=engine, initvals={"W": start}, random_seed=1, cores=1), []
    for n in after:
        stream.update(X[:, stream.columns_seen : n])
        path.append(stream.norms.to_numpy())
    return np.array(path)


def main() -> None:
    n = 300 if is_quick(__doc__) else 3000
    W, inverse, X = draw_frames(n)
    after = np.unique(np.geomspace(1, n, 40).astype(int))
    right = W.sum(axis=0) / inverse.mean(axis=1)
    _, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    for axis, expand in zip(axes, (False, True), strict=True):
        for factor, colour in zip(FACTORS, ("tab:red", "black", "tab:blue"), strict=True):
            ratio = follow(X, factor * W, after, expand) / right
            axis.loglog(after, ratio, color=colour, lw=1)
            print(f"expand={expand}, start x {factor:.3g}: scale over the right one {np.round(ratio[-1], 2)} after {n}")
        axis.axhline(1.0, color="grey", lw=3, alpha=0.4)
        axis.set_title(f"expand={expand}", fontsize=9)
        axis.set_xlabel("frames")
    axes[0].set_ylabel("scale of W, per component")
    save("cappe_scale")


if __name__ == "__main__":
    main()

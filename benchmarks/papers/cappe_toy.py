"""Cappe 2011, Fig. 3: profiles estimated by simulated online EM on the toy, after 100, 500, 1000 and 5000 frames.

The paper: F = 10, K = 2, alpha = beta = 1, L = 100 sweeps of which the last m = 1 is kept, step sizes n^-0.6, three
starts; smoothing a_n = 1/n, b_n = b/n.
"""

from __future__ import annotations

import time

import matplotlib.pyplot as plt
import numpy as np

import nmf_zoo as nz
from benchmarks.papers.filstroff import is_quick, save
from nmf_zoo.kernels.powers.frame_gibbs import FramePlan, Frames, FrameStatistics, expect_frames, make_workspace
from nmf_zoo.kernels.random.keyed_rng import seed_key

F, K, STARTS, AFTER = 10, 2, 3, (100, 500, 1000, 5000)
SMOOTHING = (1.0, 1e-3)  # the paper does not give its b
COLOURS = ("tab:blue", "tab:red")


def profiles() -> np.ndarray:
    """Two smooth bumps (F, K), the second a hundredth of the first at f = 1, and the other way round at f = 10."""
    f = np.arange(1, F + 1)[:, None]
    return np.exp(-((f - np.array([3.0, 8.0])) ** 2) * np.log(100.0) / 45.0)


def draw_frames(W: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Powers (F, n) from the model."""
    rng = np.random.default_rng(seed)
    return rng.exponential(size=(len(W), n)) * (W @ (1.0 / rng.gamma(1.0, size=(W.shape[1], n))))


def follow(X: np.ndarray, after: tuple[int, ...], seed: int, **options) -> np.ndarray:
    """W (len(after), F, K) along one stream, components in the order of their peaks."""
    paper = {"leaps": 0, "expand": False, "first_frames": 0, "sweeps": 100, "keep": 1, "smoothing": SMOOTHING}
    settings = paper | options
    model, path = nz.is_nmf(None, K, shape=(F, 1)), []
    stream = nz.stream(model, engine=nz.SimulatedOnlineEM(**settings), random_seed=seed, cores=1)
    for n in after:
        stream.update(X[:, stream.columns_seen : n])
        W = stream.W.to_numpy()
        path.append(W[:, np.argsort(W.argmax(axis=0))])
    return np.array(path)


def report(W: np.ndarray, paths: np.ndarray, after: tuple[int, ...]) -> None:
    """Mean ratio of estimate to truth, where a component dominates a cell and where it is dominated."""
    share = W / W.sum(axis=1, keepdims=True)
    for n, found in zip(after, paths.swapaxes(0, 1), strict=True):
        ratio = np.exp(np.log(found / W).mean(axis=0))
        spread = np.log(found).std(axis=0).mean()
        words = [
            f"{ratio[inside].min():.2f} to {ratio[inside].max():.2f} (mean {np.exp(np.log(ratio[inside]).mean()):.2f})"
            for inside in (share > 0.5, (share <= 0.5) & (share > 0.05), share <= 0.05)
        ]
        print(f"n = {n}: estimate / truth {words[0]} where it is louder, {words[1]} where it is softer,")
        print(f"    {words[2]} where its share is below 5 %; starts differ by {100 * spread:.0f} %")


def compare_statistics(X: np.ndarray, W: np.ndarray, copies: int) -> np.ndarray:
    """Variance of the Rao-Blackwellised statistic over that of the plain one (F, K), given a frame; L = 100, m = 1."""
    Wt, workspace, key = np.array(W.T, order="C"), make_workspace(F, K), seed_key(1)
    spread = []
    for is_plain in (False, True):
        chain, variances = FramePlan(np.ones(K), np.ones(K), np.empty(0), 100, 1, is_plain), []
        for power in X.T:
            found = np.zeros((copies, K, F))
            for number in range(copies):  # the number of a frame keys its draws
                frame = Frames(power[None].copy(), np.empty((0, 0), dtype=bool), number)
                expect_frames(
                    FrameStatistics(found[number], np.zeros(F), np.zeros(K)), frame, Wt, chain, workspace, key
                )
            variances.append(found.var(axis=0).T)
        spread.append(np.mean(variances, axis=0))
    return spread[0] / spread[1]


def main() -> None:
    quick = is_quick(__doc__)
    after = (50, 100) if quick else AFTER
    W = profiles()
    X = draw_frames(W, after[-1], 2011)
    print(f"F={F}, K={K}, alpha=beta=1, L=100, m=1, n^-0.6, (a, b)={SMOOTHING}, {STARTS} starts, {after[-1]} frames")
    began = time.process_time()
    paths = np.array([follow(X, after, seed) for seed in range(STARTS)])
    print(f"{(time.process_time() - began) / STARTS:.2f} CPU seconds a stream")
    report(W, paths, after)
    ratio = 100 * compare_statistics(X[:, :20], W, 50 if quick else 400)
    print("variance of the Rao-Blackwellised statistic, given a frame, in per cent of the plain one's, cell by cell:")
    print(np.array2string(ratio.T, precision=1, suppress_small=True))
    draw(W, paths, after)


def draw(W: np.ndarray, paths: np.ndarray, after: tuple[int, ...]) -> None:
    """The truth thick, the starts thin."""
    _, axes = plt.subplots(len(after), 1, figsize=(5.5, 2.2 * len(after)), sharex=True, squeeze=False)
    for axis, n, found in zip(axes[:, 0], after, paths.swapaxes(0, 1), strict=True):
        for k, colour in enumerate(COLOURS):
            axis.semilogy(range(1, F + 1), W[:, k], color=colour, lw=4, alpha=0.4)
            axis.semilogy(range(1, F + 1), found[:, :, k].T, color=colour, lw=1)
        axis.set_title(f"n = {n}", fontsize=9)
    axes[-1, 0].set_xlabel("frequency")
    save("cappe_toy")


if __name__ == "__main__":
    main()

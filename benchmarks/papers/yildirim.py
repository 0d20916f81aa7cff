"""What the figures of Yildirim, Cemgil and Singh (2012) share: data, W followed along a stream, grids of paths."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.optimize import linear_sum_assignment

import nmf_zoo as nz

FEATURES, RANK = 8, 5
P, Q, ALPHA = 0.8571, 0.6926, 0.95
STEPS = {"exponent": 0.8, "burn_in": 100}  # gamma_t = t^-0.8, t_b = 100
PATIENT = STEPS | {"exponent": 0.6}  # larger steps, which forget the start sooner


class Path(NamedTuple):
    """W (points, F, K) along a stream, after so many columns (points,), components as they came; and what came out."""

    after: np.ndarray
    W: np.ndarray
    seconds: float
    result: Any


def weights(features: int = FEATURES, rank: int = RANK, seed: int = 2012) -> np.ndarray:
    """A true W, Gamma(1, mean 10): the paper does not print its own."""
    return np.random.default_rng(seed).gamma(1.0, 10.0, (features, rank))


def simulate(chain: Any, W: np.ndarray, n_times: int, seed: int = 2012) -> np.ndarray:
    """X (F, T) of counts from activations that ``chain``, a distribution with its parameters, draws."""
    H = pm.draw(chain(shape=(W.shape[1], n_times)), random_seed=seed)
    return np.random.default_rng(seed).poisson(W @ H)


def follow(X: np.ndarray, rank: int, chain: Any, engine: Any, *, seed: int, points: int = 400) -> Path:
    """Stream X once, from a random start at the scale of its first columns, and read W at evenly spaced times."""
    model = nz.hmm_nmf(None, rank, chain=chain, shape=(len(X), 1))
    stream, found = nz.stream(model, engine=engine, random_seed=seed, cores=1), []
    after = np.unique(np.linspace(0, X.shape[1], points + 1).astype(int))[1:]
    began = time.process_time()
    for n in after:
        stream.update(X[:, stream.columns_seen : n])
        found.append(stream.W.to_numpy())
    return Path(after, np.array(found), time.process_time() - began, stream.result())


def match(W: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The order of ``found``'s columns that is nearest to W (F, K)."""
    distances = np.abs(W[:, :, None] - found[:, None, :]).sum(axis=0)
    return linear_sum_assignment(distances)[1]


def error(W: np.ndarray, found: np.ndarray) -> float:
    """||found - W|| / ||W||, columns matched."""
    return float(np.linalg.norm(found[:, match(W, found)] - W) / np.linalg.norm(W))


def say(name: str, W: np.ndarray, path: Path) -> None:
    """The error along the stream in a line."""
    marks = [m for m in (1_000, 10_000, 100_000) if m < path.after[-1]]
    at = [int(np.searchsorted(path.after, m)) for m in marks] + [len(path.after) - 1]
    words = ", ".join(f"{100 * error(W, path.W[i]):.2g} % after {path.after[i]:,}" for i in at)
    print(f"{name}: error of W {words}; {path.seconds:.1f} CPU seconds")


def draw_grid(W: np.ndarray, paths: dict[str, Path], title: str) -> None:
    """A panel for each cell of W, with a scale of its own: the estimates along the stream, the truth a dashed line."""
    figure, axes = plt.subplots(*W.shape, figsize=(2.1 * W.shape[1], 1.1 * W.shape[0]), sharex=True)
    found = {name: path.W[:, :, match(W, path.W[-1])] for name, path in paths.items()}
    for (f, k), axis in np.ndenumerate(axes):
        for name, path in paths.items():
            axis.plot(path.after / 1000, found[name][:, f, k], lw=1.5, label=name)
        axis.axhline(W[f, k], color="black", lw=0.8, ls="--", label="truth")
        axis.set_ylim(0, 1.2 * max(W[f, k], *(each[:, f, k].max() for each in found.values())))
        axis.tick_params(labelsize=7)
        axis.set_title(f"W({f + 1}, {k + 1})", fontsize=7, pad=2)
    for axis in axes[-1]:
        axis.set_xlabel("t / 1000", fontsize=8)
    figure.suptitle(title, x=0.03, ha="left", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper right", ncols=3, fontsize=8)

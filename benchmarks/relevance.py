"""ARD by our EM beside the updates of SignatureAnalyzer, those of Tan and Fevotte (2013), written in NumPy.

Both from the same starts, under the same prior, and both end when no relevance changes by more than a part of itself in
an iteration. What they reach is told by the same function, the log density of the model; which of several optima a
start leads to is luck.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.convergence import spread
from benchmarks.datasets import brca21
from benchmarks.iterations import Stepper
from benchmarks.rows import Row, compare, note
from benchmarks.shrinkage import simulated

STARTS, MOST = 5, 200_000  # iterations, of either
CHANGE = 1e-7  # SignatureAnalyzer's tolerance
SHAPE = 10.0  # of the inverse-gamma prior, its a
FORMS = {"exponential": "l1", "half-normal": "l2"}


class Published:
    """Tan and Fevotte (2013), algorithms 1 and 2 at beta = 1: l1-ARD of exponential, l2-ARD of half-normal cells."""

    def __init__(self, X: np.ndarray, W: np.ndarray, H: np.ndarray, prior: Any, scale: float):
        self.X, self.W, self.H, self.is_half_normal = X.astype(np.float64), W, H, prior.is_half_normal
        cells = sum(X.shape) / (2 if self.is_half_normal else 1)
        self.scale, self.count = scale, cells + prior.shape + 1.0
        self.relevance = np.full(W.shape[1], scale / (prior.shape + 1.0))

    def __call__(self) -> float:
        """One iteration: H, W, the relevances; returns the largest change of these, relative to themselves."""
        self.H = self._updated(self.H, self.W.T @ (self.X / (self.W @ self.H)), self.W.sum(0)[:, None], (-1, 1))
        self.W = self._updated(self.W, (self.X / (self.W @ self.H)) @ self.H.T, self.H.sum(1), (1, -1))
        if self.is_half_normal:
            size = (np.square(self.W).sum(0) + np.square(self.H).sum(1)) / 2
        else:
            size = self.W.sum(0) + self.H.sum(1)
        new = (size + self.scale) / self.count
        change = float(np.max(np.abs(new / self.relevance - 1.0)))
        self.relevance = new
        return change

    def _updated(
        self, old: np.ndarray, numerator: np.ndarray, denominator: np.ndarray, shape: tuple[int, int]
    ) -> np.ndarray:
        relevance = self.relevance.reshape(shape)
        if self.is_half_normal:
            return np.maximum(old * np.sqrt(numerator / (denominator + old / relevance)), 1e-100)
        return np.maximum(old * numerator / (denominator + 1.0 / relevance), 1e-100)


def starts(X: np.ndarray, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At the scale of the data."""
    rng, scale = np.random.default_rng(seed), np.sqrt(X.mean() / rank)
    return scale * rng.uniform(0.5, 1.5, (X.shape[0], rank)), scale * rng.uniform(0.5, 1.5, (rank, X.shape[1]))


def until_still(step: Callable[[], float], most: int) -> int:
    """Iterations until one changes the relevances by less than `CHANGE`."""
    return next((i for i in range(1, most + 1) if step() < CHANGE), most)


def run_published(structure: Any, prior: Any, W: np.ndarray, H: np.ndarray, most: int) -> tuple[float, int, float]:
    """(CPU seconds, iterations, minus the log density at the end)"""
    name = prior.name
    scale = float(np.ravel(structure.unknowns[name].prior.args[1])[0])
    began = time.process_time()
    peer = Published(structure.data.values, W, H, prior, scale)
    iterations = until_still(peer, most)
    seconds = time.process_time() - began
    return seconds, iterations, -structure.log_joint({"W": peer.W, "H": peer.H, name: peer.relevance})


def run_em(structure: Any, prior: Any, W: np.ndarray, H: np.ndarray, most: int) -> tuple[float, int, float]:
    """The same of ours, with laying out the data."""
    began = time.process_time()
    stepper = Stepper(structure, "em", start={"W": W, "H": H})

    def change() -> float:
        before = stepper.state.values[prior.name]
        stepper()
        return float(np.max(np.abs(stepper.state.values[prior.name] / before - 1.0)))

    iterations = until_still(change, most)
    return time.process_time() - began, iterations, stepper.state.objective


def rows(quick: bool) -> Iterator[Row]:
    """CPU to the end and the log density there, for both forms."""
    tables = {"a simulated table, 60 x 100 of rank 6, K=12": (simulated(11)[0], 12)}
    counts = brca21()
    if counts is not None:
        tables["96 kinds of mutations in 21 breast cancers, K=10"] = (counts, 10)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (label, (X, rank)), cells in ((table, cells) for table in tables.items() for cells in FORMS):
            yield from of_table(X, rank, cells, f"{FORMS[cells]}-ARD, {label}", quick)


def of_table(X: np.ndarray, rank: int, cells: Any, label: str, quick: bool) -> Iterator[Row]:
    """Both from the same starts."""
    prior = nz.ARD(shape=SHAPE, cells=cells)
    structure = nz.read(nz.gamma_nmf(X, rank, prior=prior))
    run_em(structure, prior, *starts(X, rank, 0), 2)  # compile
    found = []
    for seed in range(1 if quick else STARTS):
        start = starts(X, rank, seed)
        most = 50 if quick else MOST
        found.append((*run_em(structure, prior, *start, most), *run_published(structure, prior, *start, most)))
    ours, n_ours, at, theirs, n_theirs, at_theirs = (np.array(column) for column in zip(*found, strict=True))
    until = f"until no relevance changes by more than {CHANGE:g} of itself"
    yield compare(
        f"CPU {until}, {label}, {len(found)} starts",
        f"{spread(list(ours))}, {np.median(n_ours):.0f} iterations",
        f"{spread(list(theirs))}, {np.median(n_theirs):.0f} iterations (SignatureAnalyzer's updates in NumPy)",
        float(np.median(theirs / ours)),
    )
    said = f"mean {np.mean(at):.2f}, by start {np.min(at - at_theirs):+.2f} to {np.max(at - at_theirs):+.2f} beside it"
    yield note(f"minus log density at the end, {label}", said, f"mean {np.mean(at_theirs):.2f}")

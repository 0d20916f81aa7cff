"""Whole calls on models that are there: small tables beside bare updates in NumPy, and what a call costs by itself.

What a user waits for on a small table is mostly reading, laying out and packing, so that `nz.fit` itself is timed, from
the call to the result. The peers' updates are timed without their objective: how many they need is found beforehand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from typing import Any

import numpy as np
import pymc as pm
from scipy.special import xlogy
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.convergence import divergence_constant
from benchmarks.datasets import nips
from benchmarks.hierarchies import CHANGE, EVERY, SHAPE, Published
from benchmarks.iterations import PLAIN
from benchmarks.rows import REPEATS, Row, at_most, compare, cpu_of, medians
from nmf_zoo import _compat

TABLE, RANK, MEAN = (100, 200), 5, 5.0
MOST = 5000  # iterations of either side
ALONE = {"search": None, "cores": 1, "quiet": True, "tol": 0.0, "draws": 1}
SMALL, LARGE = 8.0, 60.0  # milliseconds that a call may take


def rows(quick: bool) -> Iterator[Row]:
    """EM and VB on small tables; calls of one iteration."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        n_tables = 1 if quick else REPEATS
        tables = [draw_table(seed) for seed in range(n_tables)]
        yield judged("EM to a KL within 1 % of the best known", "multiplicative updates", map(em_pair, tables, count()))
        yield judged("VB of prior='hpf' to convergence", "scHPF's updates", map(vb_pair, tables, count()))
        yield from calls(n_tables)


def draw_table(seed: int) -> np.ndarray:
    """Counts of the gamma model, this mean."""
    rng = np.random.default_rng(seed)
    product = rng.gamma(1.0, size=(TABLE[0], RANK)) @ rng.gamma(1.0, size=(RANK, TABLE[1]))
    return rng.poisson(product * MEAN / product.mean())


def judged(what: str, peer: str, pairs: Iterator[tuple[float, float]]) -> Row:
    """The row of (seconds of ours, of the peer) by table."""
    ours, theirs = (list(side) for side in zip(*pairs, strict=True))
    size = f"{TABLE[0]} x {TABLE[1]} counts of mean {MEAN:g}, K={RANK}, median of {len(ours)} tables"
    work = f"a call of nz.fit, {what}, {size}"
    told = [f"{1e3 * median(side):.1f} ms ({1e3 * min(side):.1f} to {1e3 * max(side):.1f})" for side in (ours, theirs)]
    return compare(work, told[0], f"{told[1]}, {peer} in NumPy", median(np.divide(theirs, ours)), 1.0)


# -- EM ----------------------------------------------------------------------------------------------------------------


def em_pair(X: np.ndarray, seed: int) -> tuple[float, float]:
    """(seconds of nz.fit, of NumPy) from one start to 1 % of the best divergence that a search finds."""
    model, constant = nz.poisson_nmf(X, RANK), divergence_constant(X)
    found = _compat.group(nz.fit(model, random_seed=seed, quiet=True, cores=1), "fit")
    target = 1.01 * (float(found["objective"].min()) + constant)
    start = random_start(X, seed)
    iterations = next((n for n, divergence in enumerate(divergences(X, *start)) if divergence <= target), MOST)

    def ours() -> None:
        given = {"W": start[0], "H": start[1]}
        nz.fit(model, initvals=given, on_step=lambda step: step.info["objective"] + constant <= target, **ALONE)

    def theirs() -> None:
        W, H = (factor.copy() for factor in start)
        for _ in range(iterations):
            multiply(X, W, H)

    own, peer = medians([cpu_of(ours), cpu_of(theirs)])
    return own, peer


def random_start(X: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(W, H) of the right mean."""
    rng, scale = np.random.default_rng(seed), np.sqrt(X.mean() / RANK)
    return scale * rng.uniform(0.5, 1.5, (len(X), RANK)), scale * rng.uniform(0.5, 1.5, (RANK, X.shape[1]))


def multiply(X: np.ndarray, W: np.ndarray, H: np.ndarray) -> None:
    """One update of Lee and Seung of W, then of H, in place."""
    W *= (X / (W @ H)) @ H.T / H.sum(axis=1)
    H *= W.T @ (X / (W @ H)) / W.sum(axis=0)[:, None]


def divergences(X: np.ndarray, W: np.ndarray, H: np.ndarray) -> Iterator[float]:
    """The divergence after 0, 1, 2, ... updates."""
    W, H, constant = W.copy(), H.copy(), float(np.sum(xlogy(X, X) - X))
    for _ in range(MOST):
        mean = W @ H
        yield constant + float(np.sum(mean - xlogy(X, mean)))
        multiply(X, W, H)


# -- VB ----------------------------------------------------------------------------------------------------------------


def vb_pair(X: np.ndarray, seed: int) -> tuple[float, float]:
    """(seconds of nz.fit, of NumPy) from one start until `EVERY` iterations change the objective by `CHANGE` of it."""
    model = nz.gamma_nmf(X, RANK, prior=nz.HPF(shape=SHAPE))
    iterations = iterations_of(PublishedDense(X, seed, RANK))
    W, H = PublishedDense(X, seed, RANK).geometric

    def ours() -> None:
        nz.fit(model, engine="vb", initvals={"W": W, "H": H.T}, on_step=Settled(), max_iter=MOST, **ALONE)

    def theirs() -> None:
        peer = PublishedDense(X, seed, RANK)
        for _ in range(iterations):
            peer()

    own, peer = medians([cpu_of(ours), cpu_of(theirs)])
    return own, peer


class PublishedDense(Published):
    """The same updates of a dense table, which is faster so."""

    def lay_out(self, X: np.ndarray) -> None:
        self.X = X.astype(np.float64)

    def sources(self, of_W: np.ndarray, of_H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ratios = self.X / (of_W @ of_H.T)
        return of_W * (ratios @ of_H), of_H * (ratios.T @ of_W)

    def log_likelihood(self) -> float:
        W, H = self.means
        mean = W @ H.T
        return float(np.sum(xlogy(self.X, mean) - mean))


def iterations_of(peer: Published) -> int:
    """How many updates the peer makes."""
    is_settled = Settled()
    for n in range(1, MOST + 1):
        peer()
        if n % EVERY == 0 and is_settled.looks(peer.log_likelihood()):
            break
    return n


class Settled:
    """The end of both sides; as `on_step` for ours."""

    def __init__(self) -> None:
        self.before = -np.inf

    def looks(self, objective: float) -> bool:
        before, self.before = self.before, objective
        return abs(objective - before) < CHANGE * abs(objective)

    def __call__(self, step: Any) -> bool:
        return step.number % EVERY == 0 and self.looks(step.info["objective"])


# -- a call ------------------------------------------------------------------------------------------------------------


def calls(n_tables: int) -> Iterator[Row]:
    """Calls that read, prepare, make one plain iteration and pack."""
    X, label = nips()
    for data, rank, name, most in (
        (draw_table(0), RANK, f"{TABLE[0]} x {TABLE[1]} counts, K={RANK}", SMALL),
        (X, 10, f"{label}, K=10", LARGE),
    ):
        works = {"em": call(nz.poisson_nmf(data, rank), "em"), "vb": call(nz.gamma_nmf(data, rank), "vb")}
        seconds = medians([cpu_of(work, 5) for work in works.values()], n_tables)
        for engine, took in zip(works, seconds, strict=True):
            work = (
                f"a call of nz.fit by {engine} that reads, prepares, makes one iteration and packs, {name}, one table"
            )
            yield at_most(work, f"{1e3 * took:.1f} ms", 1e3 * took, most, f"{most:g} ms")


def call(model: pm.Model, engine: str) -> Callable[[], object]:
    return lambda: nz.fit(model, engine=PLAIN[engine], max_iter=1, random_seed=1, **ALONE)

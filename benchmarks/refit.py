"""Activations of a known catalogue, a convex problem: EM beside SciPy, and the same optimum."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm
from scipy.optimize import minimize, nnls
from scipy.special import gammaln
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.rows import Row, compare
from nmf_zoo import _compat

SHAPE = 96, 60, 1000  # features, components, samples
MUST = 20.0
REPEATS = 3


def data(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Counts, and the catalogue that they come from."""
    F, K, N = shape
    rng = np.random.default_rng(1)
    catalogue = rng.dirichlet(np.full(F, 0.2), K).T
    return rng.poisson(catalogue @ rng.gamma(0.3, 100.0, (K, N))).astype(float), catalogue


def ours(model: pm.Model) -> tuple[float, float, float]:
    """(CPU seconds, objective, duality gap) of a fit."""
    began = time.process_time()
    idata = nz.fit(engine="em", model=model, tol=1e-6, restarts=1, random_seed=1, cores=1, quiet=True)
    seconds, fit = time.process_time() - began, _compat.group(idata, "fit")
    return seconds, float(fit["objective"].dropna("iteration").to_numpy()[0, -1]), float(fit["duality_gap"].item())


def by_nnls(X: np.ndarray, catalogue: np.ndarray) -> float:
    """-log p of SciPy's active sets, column by column."""
    squares = sum(nnls(catalogue, x)[1] ** 2 for x in X.T)
    return 0.5 * squares + 0.5 * X.size * np.log(2.0 * np.pi)


def by_lbfgs(X: np.ndarray, catalogue: np.ndarray) -> float:
    """-log p of SciPy's bounded quasi-Newton steps, column by column."""
    totals = catalogue.sum(axis=0)

    def loss(h: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray]:
        mean = np.maximum(catalogue @ h, 1e-300)
        return mean.sum() - x @ np.log(mean), totals - catalogue.T @ (x / mean)

    options = {"maxiter": 5000, "maxfun": 100_000, "ftol": 1e-12, "gtol": 1e-6}
    bounds, found = [(0.0, None)] * catalogue.shape[1], 0.0
    for x in X.T:
        start = np.full(len(totals), x.sum() / len(totals))
        found += minimize(loss, start, (x,), jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun
    return found + float(np.sum(gammaln(X + 1.0)))


def rows(quick: bool) -> Iterator[Row]:
    """One row for each likelihood."""
    shape = (12, 4, 20) if quick else SHAPE
    X, catalogue = data(shape)
    peers: dict[str, tuple[pm.Model, Callable[[Any, Any], float], str]] = {
        "normal": (nz.normal_nmf(X, shape[1], known=catalogue, sigma=1.0), by_nnls, "nnls"),
        "Poisson": (nz.poisson_nmf(X, shape[1], known=catalogue), by_lbfgs, "L-BFGS-B"),
    }
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (model, peer, method) in peers.items():
            ours(model)  # compiles
            runs = [(ours(model), timed(peer, X, catalogue)) for _ in range(1 if quick else REPEATS)]
            (seconds, objective, gap), (theirs, found) = (min(side) for side in zip(*runs, strict=True))
            yield compare(
                f"activations of a known W, {name} data {shape[0]} x {shape[2]}, K={shape[1]}",
                f"{seconds:.3f} s, at most {gap:.2g} nats above the optimum",
                f"{theirs:.3f} s (SciPy's {method}, column by column), {found - objective:+.2g} nats above ours",
                theirs / seconds,
                MUST,
            )


def timed(peer: Callable[[Any, Any], float], X: np.ndarray, catalogue: np.ndarray) -> tuple[float, float]:
    """(CPU seconds, objective)"""
    began = time.process_time()
    found = peer(X, catalogue)
    return time.process_time() - began, found

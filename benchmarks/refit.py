"""Activations of a known catalogue, a convex problem: EM beside SciPy, of dense and sparse data; the same optimum."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import scipy.sparse as sp
from scipy.optimize import minimize, nnls
from scipy.special import gammaln
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.rows import Row, compare
from nmf_zoo import _compat

SHAPE = 96, 60, 1000  # features, components, samples
SPARSE_SHAPE, SPARSE_TOTAL = (2000, 20, 500), 150  # and the counts of a sample
MUST = 20.0
REPEATS = 3


def data(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Counts, and the catalogue that they come from."""
    F, K, N = shape
    rng = np.random.default_rng(1)
    catalogue = rng.dirichlet(np.full(F, 0.2), K).T
    return rng.poisson(catalogue @ rng.gamma(0.3, 100.0, (K, N))).astype(float), catalogue


def sparse_data(shape: tuple[int, int, int]) -> tuple[sp.csc_array, np.ndarray]:
    """Few counts of many features, as texts have them."""
    F, K, N = shape
    rng = np.random.default_rng(1)
    catalogue = rng.dirichlet(np.full(F, 0.1), K).T
    activations = SPARSE_TOTAL * rng.dirichlet(np.full(K, 0.3), N).T
    return sp.csc_array(rng.poisson(catalogue @ activations).astype(float)), catalogue


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
    found = sum(lbfgs(x, catalogue, totals) for x in X.T)
    return found + float(np.sum(gammaln(X + 1.0)))


def by_sparse_lbfgs(X: sp.csc_array, catalogue: np.ndarray) -> float:
    """The same by the rows of the catalogue at which a sample has counts; the others' sum is known."""
    totals, found = catalogue.sum(axis=0), 0.0
    for first, last in pairwise(X.indptr):
        found += lbfgs(X.data[first:last], catalogue[X.indices[first:last]], totals)
    return found + float(np.sum(gammaln(X.data + 1.0)))


def lbfgs(x: np.ndarray, catalogue: np.ndarray, totals: np.ndarray) -> float:
    """-log p of one sample, but for its constant."""

    def loss(h: np.ndarray) -> tuple[float, np.ndarray]:
        mean = np.maximum(catalogue @ h, 1e-300)
        return totals @ h - x @ np.log(mean), totals - catalogue.T @ (x / mean)

    options = {"maxiter": 5000, "maxfun": 100_000, "ftol": 1e-12, "gtol": 1e-6}
    start, bounds = np.full(len(totals), x.sum() / len(totals)), [(0.0, None)] * len(totals)
    return float(minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun)


def rows(quick: bool) -> Iterator[Row]:
    """One row for each likelihood, and one of sparse counts."""
    X, catalogue = data((12, 4, 20) if quick else SHAPE)
    sparse, profiles = sparse_data((200, 4, 20) if quick else SPARSE_SHAPE)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        normal = nz.normal_nmf(X, catalogue.shape[1], known=catalogue, sigma=1.0)
        yield beside(normal, "normal data", by_nnls, "nnls", (X, catalogue), MUST, quick)
        poisson = nz.poisson_nmf(X, catalogue.shape[1], known=catalogue)
        yield beside(poisson, "Poisson data", by_lbfgs, "L-BFGS-B", (X, catalogue), MUST, quick)
        of_sparse = nz.poisson_nmf(sparse, profiles.shape[1], known=profiles)
        filled = f"sparse counts ({100 * sparse.nnz / np.prod(sparse.shape):.1f} % non-zero)"
        yield beside(of_sparse, filled, by_sparse_lbfgs, "L-BFGS-B", (sparse, profiles), None, quick)


def beside(
    model: pm.Model,
    what: str,
    peer: Callable[[Any, Any], float],
    method: str,
    given: tuple[Any, np.ndarray],
    least: float | None,
    quick: bool,
) -> Row:
    """The best of some runs of either side."""
    ours(model)  # compiles
    runs = [(ours(model), timed(peer, *given)) for _ in range(1 if quick else REPEATS)]
    (seconds, objective, gap), (theirs, found) = (min(side) for side in zip(*runs, strict=True))
    X, catalogue = given
    return compare(
        f"activations of a known W, {what} {X.shape[0]} x {X.shape[1]}, K={catalogue.shape[1]}",
        f"{seconds:.3f} s, at most {gap:.2g} nats above the optimum",
        f"{theirs:.3f} s (SciPy's {method}, column by column), {found - objective:+.2g} nats above ours",
        theirs / seconds,
        least,
    )


def timed(peer: Callable[[Any, Any], float], X: np.ndarray, catalogue: np.ndarray) -> tuple[float, float]:
    """(CPU seconds, objective)"""
    began = time.process_time()
    found = peer(X, catalogue)
    return time.process_time() - began, found

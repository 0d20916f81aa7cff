"""Least squares beside scikit-learn, one sigma for all cells; and what errors per cell cost beside one.

Simulated sources. Both sides go from one start to a loss, half the squared error, within 0.1 % of the least that EM
finds. How many iterations either side needs is found beforehand. Errors per cell have another loss, and no peer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
from sklearn.decomposition import NMF
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.rows import REPEATS, Row, compare, cpu_of, medians, note
from nmf_zoo import _compat

F, N, K = 60, 1000, 6
NEAR = 1.001  # of the least loss
SOLVERS = {"cd": "coordinate descent", "mu": "multiplicative updates"}
AT_ONCE, MOST = 10, 10_000  # iterations of a peer between two looks at its loss, and in all
LONG, SAME = 300, 100  # iterations of EM: to the least loss, and where two models are compared
ALONE: dict[str, Any] = {"engine": "em", "tol": 0, "search": None, "cores": 1, "quiet": True}
Factors = tuple[np.ndarray, np.ndarray]


def rows(quick: bool) -> Iterator[Row]:
    """Each solver of scikit-learn's beside EM; EM with an error for each cell beside one for all."""
    n_samples, n_starts = (50, 1) if quick else (N, REPEATS)
    X, sigma = simulated(n_samples)
    size = f"simulated sources, {F} x {n_samples}, K={K}"
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of what has not converged
        for solver, name in SOLVERS.items():
            pairs = [pair(X, solver, start(X, seed)) for seed in range(n_starts)]
            own, iterations, peer, of_peer = (median(side) for side in zip(*pairs, strict=True))
            yield compare(
                f"one sigma, {size}, a call of nz.fit to a loss within 0.1 % of the least known, median of {n_starts}"
                " starts",
                f"{1e3 * own:.0f} ms, {iterations:g} iterations",
                f"{1e3 * peer:.0f} ms, {of_peer:g} iterations (scikit-learn, {name})",
                peer / own,
            )
        fits = [cpu_of(lambda errors=errors: fitted(X, errors, start(X, 0), SAME)) for errors in (sigma, 1.0)]
        per_cell, one = medians(fits)
        yield note(
            f"errors per cell, {size}, {SAME} iterations",
            f"{1e3 * per_cell:.0f} ms, {per_cell / one:.1f} times as long as with one sigma",
        )


def simulated(n_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """(X, its errors): a limit of detection, and a tenth of the truth."""
    rng = np.random.default_rng(1)
    truth = rng.dirichlet(np.full(F, 0.5), K).T @ rng.gamma(2.0, 10.0, (K, n_samples))
    sigma = 0.05 + 0.1 * truth
    return np.maximum(truth + sigma * rng.standard_normal(truth.shape), 0.0), sigma


def start(X: np.ndarray, seed: int) -> Factors:
    """Random factors (W, H) at the scale of X."""
    rng = np.random.default_rng(seed)
    W, H = rng.gamma(1.0, size=(len(X), K)), rng.gamma(1.0, size=(K, X.shape[1]))
    return W, H * (X.mean() / (W @ H).mean())


def pair(X: np.ndarray, solver: str, begin: Factors) -> tuple[float, int, float, int]:
    """(CPU seconds and iterations of EM, of scikit-learn) to the loss."""
    losses = objectives(fitted(X, 1.0, begin, LONG)) - 0.5 * X.size * np.log(2.0 * np.pi)
    target = NEAR * losses.min()
    iterations, of_peer = int(np.argmax(losses <= target)) + 1, iterations_of(X, solver, begin, target)
    works = (lambda: fitted(X, 1.0, begin, iterations)), (lambda: theirs(X, solver, begin, of_peer))
    own, peer = medians([cpu_of(work) for work in works], 3)
    return own, iterations, peer, of_peer


def fitted(X: np.ndarray, sigma: Any, begin: Factors, iterations: int) -> Any:
    """A call of `nz.fit`, the declaration included, as scikit-learn's includes its checks."""
    model = nz.normal_nmf(X, K, sigma=sigma)
    return nz.fit(model=model, max_iter=iterations, initvals=dict(zip("WH", begin, strict=True)), **ALONE)


def objectives(found: Any) -> np.ndarray:
    """By iteration."""
    return _compat.group(found, "fit")["objective"].to_numpy()[0]


def iterations_of(X: np.ndarray, solver: str, begin: Factors, target: float) -> int:
    """How many scikit-learn needs to a loss, or the most that it gets: where it stopped it goes on as it would have."""
    at = begin
    for done in range(AT_ONCE, MOST + 1, AT_ONCE):
        at = theirs(X, solver, at, AT_ONCE)
        if 0.5 * float(np.sum(np.square(X - at[0] @ at[1]))) <= target:
            return done
    return MOST


def theirs(X: np.ndarray, solver: str, begin: Factors, iterations: int) -> Factors:
    """(W, H) of scikit-learn, whose samples are rows."""
    W, H = begin
    model = NMF(K, init="custom", solver=solver, max_iter=iterations, tol=0)
    found = model.fit_transform(np.ascontiguousarray(X.T), W=np.ascontiguousarray(H.T), H=np.ascontiguousarray(W.T))
    return model.components_.T, found.T

"""Least squares beside scikit-learn, one sigma for all cells; and what errors per cell cost.

`python -m benchmarks.errors_of_measurement`. Simulated sources. Times are the best of three, of the same number of
iterations from random starts, and the loss is half the squared error; EM's errors per cell are beside it.
"""

from __future__ import annotations

import warnings
from time import perf_counter

import numpy as np
from sklearn.decomposition import NMF

import nmf_zoo as nz

F, N, K, ITERATIONS = 60, 1000, 6, 100


def timed(work):
    """(seconds of the best of three, its result)"""
    found = []
    for _ in range(3):
        begun = perf_counter()
        result = work()
        found.append((perf_counter() - begun, result))
    return min(found, key=lambda one: one[0])


def ours(X: np.ndarray, sigma):
    model = nz.normal_nmf(X, K, sigma=sigma)
    fitted = nz.fit(
        model=model, engine="em", max_iter=ITERATIONS, tol=0, search=None, restarts=1, random_seed=1, quiet=True
    )
    return float(fitted["fit"]["divergence"].to_numpy().ravel()[0])


def theirs(X: np.ndarray, solver: str):
    model = NMF(K, init="random", solver=solver, max_iter=ITERATIONS, tol=0, random_state=1)
    W = model.fit_transform(X.T)
    return 0.5 * float(np.sum((X.T - W @ model.components_) ** 2))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")  # scikit-learn's, of what has not converged
    rng = np.random.default_rng(1)
    truth = rng.dirichlet(np.full(F, 0.5), K).T @ rng.gamma(2.0, 10.0, (K, N))
    sigma = 0.05 + 0.1 * truth
    X = np.maximum(truth + sigma * rng.standard_normal(truth.shape), 0.0)
    rows = {
        "nmf_zoo, one sigma": lambda: ours(X, 1.0),
        "scikit-learn, coordinate descent": lambda: theirs(X, "cd"),
        "scikit-learn, multiplicative": lambda: theirs(X, "mu"),
        "nmf_zoo, errors per cell (another loss)": lambda: ours(X, sigma),
    }
    for name, work in rows.items():
        work()
        seconds, loss = timed(work)
        print(f"{name:42} {seconds:8.3f} s   loss {loss:12.2f}")


if __name__ == "__main__":
    main()

"""Seconds per iteration of EM and VB beside scikit-learn's multiplicative update, one thread, float64."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import gamma_counts, nips
from nmf_zoo.engines import resolve_engine
from nmf_zoo.inference.workers import SERIAL
from nmf_zoo.kernels.streams import child, seed_key


def per_step(structure: Any, engine: str, steps: int) -> float:
    """Median seconds of one iteration of ours, after one to compile."""
    _, options, chosen = resolve_engine(engine, "fit")
    problem = chosen.prepare(structure, options, SERIAL)
    key = seed_key(1)
    state = chosen.init(problem, key, {})
    state, _ = chosen.step(problem, state, key)
    return _median(lambda i: chosen.step(problem, state, child(key, i)), steps)


def _median(work: Callable[[int], Any], times: int) -> float:
    seconds = []
    for i in range(times):
        began = time.perf_counter()
        work(i)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def sklearn_per_step(X: Any, rank: int, steps: int) -> float:
    """Seconds of one iteration of scikit-learn's NMF, from runs of two lengths, so that set-up cancels."""

    def run(max_iter: int) -> float:
        nmf = NMF(
            rank, init="random", solver="mu", beta_loss="kullback-leibler", tol=0, max_iter=max_iter, random_state=1
        )
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            nmf.fit(X)
        return time.perf_counter() - began

    run(1)
    return (run(1 + steps) - run(1)) / steps


def as_peer_likes(X: Any) -> Any:
    """float64, and CSR when sparse, on which scikit-learn is fastest."""
    return sp.csr_array(X, dtype=np.float64) if sp.issparse(X) else X.astype(np.float64)


def rows(quick: bool) -> Iterator[dict[str, str]]:
    """One row per data set, rank and engine."""
    sparse, name = nips()
    dense = gamma_counts(1024, 400, 40, 100.0)
    cases = [(sparse, name, 10), (sparse, name, 50), (dense, "dense counts 1,024 x 400", 40)]
    for X, label, rank in cases[:1] if quick else cases:
        with threadpool_limits(1):
            peer = sklearn_per_step(as_peer_likes(X), rank, 2 if quick else 5)
            for engine, build in (("em", nz.poisson_nmf), ("vb", nz.gamma_nmf)):
                ours = per_step(nz.read(build(X, rank)), engine, 5 if quick else 15)
                yield {
                    "work": f"one {engine.upper()} iteration, {label}, K={rank}",
                    "ours": f"{1e3 * ours:.1f} ms",
                    "peer": f"{1e3 * peer:.1f} ms (scikit-learn, one multiplicative update of W and H)",
                    "ratio": f"{peer / ours:.1f}x faster" if ours <= peer else f"{ours / peer:.1f}x slower",
                }

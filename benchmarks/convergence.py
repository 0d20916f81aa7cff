"""CPU seconds to a given fit, beside peers: what all iterations cost together. One thread, float64."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, xlogy
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import nips, used_words
from benchmarks.rows import Row, compare, note, verdict
from benchmarks.scikit_learn import NAME, Peer
from nmf_zoo.inference.registry import resolve_engine
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL

BEST_NIPS, BEST_FACES = 3_484_190.0, 248_959.0  # generalised Kullback-Leibler divergence, the best that is known
SEEDS = 5


def divergence_constant(X: Any) -> float:
    """The divergence plus the log-likelihood."""
    x = X.data if sp.issparse(X) else X
    return float(np.sum(xlogy(x, x) - x - gammaln(x + 1)))


def run_ours(model: Any, engine: Any, seed: int, is_done: Callable[[Any], bool], most: float) -> tuple[float, Any, Any]:
    """(CPU seconds, last state, last info) of a run until ``is_done(info)``, or of ``most`` seconds; start included."""
    structure = nz.read(model)
    chosen, options = resolve_engine(engine, "fit", structure)
    problem = chosen.prepare(structure, options, SERIAL)
    chosen.step(problem, chosen.init(problem, seed_key(0), {}), seed_key(0))  # compiles
    key, began = seed_key(seed), time.process_time()
    state, iteration, done = chosen.init(problem, child(key, 0), {}), 0, False
    while not done and time.process_time() - began < most:
        state, info = chosen.step(problem, state, child(key, 1, iteration))
        iteration, done = iteration + 1, is_done(info)
    return time.process_time() - began if done else np.inf, state, info


def iterations_to(peer: Peer, X: Any, seed: int, target: float, chunk: int, most: int) -> int:
    """How many of scikit-learn's iterations lead to the target, looked at every chunk."""
    found, iterations = peer.updates(X, 10, chunk, seed=seed), chunk
    while found.divergence > target and iterations < most:
        found = peer.updates(X, 10, chunk, start=(found.W, found.H))
        iterations += chunk
    return iterations


def nips_row(quick: bool) -> Row:
    """EM to 0.1 % of the best known divergence, scikit-learn to 1 %."""
    X, _ = nips()
    X = used_words(sp.csr_array(X, dtype=np.float64))
    constant, seeds = divergence_constant(X), range(1 if quick else SEEDS)
    with Peer() as peer:
        counts = [iterations_to(peer, X, seed, 1.01 * BEST_NIPS, 5, 5 if quick else 300) for seed in seeds[:2]]
        peers = [peer.updates(X, 10, count, seed=seed).seconds for seed, count in zip(seeds, counts, strict=False)]
    target = 1.001 * BEST_NIPS
    model, most = nz.poisson_nmf(X, 10), 0.2 if quick else 30.0
    ours = [run_ours(model, "em", seed, lambda info: info.objective + constant <= target, most)[0] for seed in seeds]
    theirs = float(np.median(peers))
    return judge(
        "CPU to a KL within 0.1 % of the best known, NIPS counts, K=10, random start",
        spread(ours),
        f"{theirs:.1f} s (to 1 % only, {len(peers)} starts; {NAME})",
        theirs / float(np.median(ours)),
        5.0,
    )


def judge(work: str, ours: str, peer: str, ratio: float, least: float) -> Row:
    """A row; where not half of our runs arrive, or they fit worse, there is no ratio but a loss."""
    lost = {"must reach": f"{least:g}x", "met?": verdict(False)}
    return compare(work, ours, peer, ratio, least) if ratio > 0 else note(work, f"{ours}: **not reached**", peer) | lost


def spread(seconds: list[float]) -> str:
    """The median of some runs, how many arrived, and in what times."""
    there = [value for value in seconds if np.isfinite(value)]
    times = f"{min(there):.2f} to {max(there):.2f} s" if there else "none"
    return f"{np.median(seconds):.2f} s (median; {len(there)} of {len(seconds)} starts arrive, {times})"


def faces() -> np.ndarray | None:
    """Olivetti faces, 32 x 32 pixels as features, rounded to integers; None without the data."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "olivetti" / "olivetti.npz"
    return np.rint(np.load(path)["X32"]).astype(np.float64) if path.exists() else None


def faces_row(quick: bool) -> Row:
    """EM to 1 % of the best known divergence, scikit-learn's 2,000 iterations."""
    X = np.ascontiguousarray(faces())
    constant, most = divergence_constant(X), 20 if quick else 2000
    with Peer() as peer:
        found = peer.updates(X, 40, most, seed=0)
    model, limit = nz.poisson_nmf(X, 40), 0.2 if quick else 30.0
    target = 1.01 * BEST_FACES
    seeds = range(1 if quick else SEEDS)
    ours = [run_ours(model, "em", seed, lambda info: info.objective + constant <= target, limit)[0] for seed in seeds]
    return judge(
        "CPU to a KL within 1 % of the best known, faces 1,024 x 400, K=40, random start",
        spread(ours),
        f"{found.seconds:.1f} s ({most:,} iterations from one start, which end "
        f"{100 * (found.divergence / BEST_FACES - 1):.1f} % above; {NAME})",
        found.seconds / float(np.median(ours)),
        4.0,
    )


def thinned(seed: int = 0) -> tuple[Any, Any]:
    """NIPS counts with a tenth of each held out, binomially."""
    X, _ = nips()
    X = used_words(sp.csr_array(X))
    held, train = X.copy(), X.copy()
    held.data = np.random.default_rng(seed).binomial(X.data.astype(np.int64), 0.1).astype(np.float64)
    train.data = X.data - held.data
    for part in (held, train):
        part.eliminate_zeros()
    return train, held


def per_token(W: np.ndarray, Ht: np.ndarray, held: Any) -> float:
    """Held-out log-likelihood per token, log (W H)_fn / sum_f (W H)_fn."""
    cells = held.tocoo()
    rows, cols = cells.coords
    mean = sum(W[rows, k] * Ht[cols, k] for k in range(W.shape[1]))
    return float(cells.data @ np.log(np.maximum(mean, 1e-300) / (Ht @ W.sum(axis=0))[cols]) / cells.data.sum())


def rows(quick: bool) -> Iterator[Row]:
    """EM on sparse and on dense data."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield nips_row(quick)
        if faces() is not None:
            yield faces_row(quick)

"""CPU seconds to a given fit, beside peers: what all iterations cost together. One thread, float64."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, xlogy
from sklearn.decomposition import NMF
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import nips
from benchmarks.rows import Row, compare, note
from nmf_zoo.inference.registry import resolve_engine
from nmf_zoo.kernels.random.keyed_rng import child, seed_key
from nmf_zoo.runtime.workers import SERIAL

BEST_NIPS, BEST_FACES = 3_484_190.0, 248_959.0  # generalised Kullback-Leibler divergence, the best that is known
SEEDS = 5
TIGHT = 1e-6  # hpfrec's relative change of the log-likelihood
TOL = 1e-3  # ours: the largest change of an expected cell, relative to its column's largest


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


def run_sklearn(X: Any, rank: int, seed: int, iterations: int) -> tuple[float, float, dict[str, Any]]:
    """(CPU seconds, divergence, its factors) of so many multiplicative updates."""
    peer = NMF(rank, init="random", solver="mu", beta_loss="kullback-leibler", tol=0, max_iter=iterations)
    peer.set_params(random_state=seed)
    began = time.process_time()
    W = peer.fit_transform(X)
    return time.process_time() - began, peer.reconstruction_err_**2 / 2, {"W": W, "H": peer.components_}


def iterations_to(X: Any, seed: int, target: float, chunk: int, most: int) -> int:
    """How many of scikit-learn's iterations lead to the target, looked at every chunk."""
    _, divergence, factors = run_sklearn(X, 10, seed, chunk)
    peer = NMF(10, init="custom", solver="mu", beta_loss="kullback-leibler", tol=0, max_iter=chunk)
    iterations = chunk
    while divergence > target and iterations < most:
        W = peer.fit_transform(X, **factors)
        factors, divergence = {"W": W, "H": peer.components_}, peer.reconstruction_err_**2 / 2
        iterations += chunk
    return iterations


def nips_row(quick: bool) -> Row:
    """EM to 0.1 % of the best known divergence, scikit-learn to 1 %."""
    X, _ = nips()
    X = sp.csr_array(X, dtype=np.float64)
    X = X[np.asarray(X.sum(axis=1)).ravel() > 0]
    constant, seeds = divergence_constant(X), range(1 if quick else SEEDS)
    counts = [iterations_to(X, seed, 1.01 * BEST_NIPS, 5, 5 if quick else 300) for seed in seeds[:2]]
    peers = [run_sklearn(X, 10, seed, count)[0] for seed, count in zip(seeds, counts, strict=False)]
    target = 1.001 * BEST_NIPS
    model, most = nz.poisson_nmf(X, 10), 0.2 if quick else 30.0
    ours = [run_ours(model, "em", seed, lambda info: info.objective + constant <= target, most)[0] for seed in seeds]
    peer = float(np.median(peers))
    return judge(
        "CPU to a KL within 0.1 % of the best known, NIPS counts, K=10, random start",
        spread(ours),
        f"{peer:.1f} s (scikit-learn, to 1 % only)",
        peer / float(np.median(ours)),
        5.0,
    )


def judge(work: str, ours: str, peer: str, ratio: float, least: float) -> Row:
    """A row; where not half of our runs arrive, or they fit worse, there is no ratio but a loss."""
    return compare(work, ours, peer, ratio, least) if ratio > 0 else note(work, f"{ours}: **not reached**", peer)


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
    peer, end, _ = run_sklearn(X, 40, 0, most)
    model, limit = nz.poisson_nmf(X, 40), 0.2 if quick else 30.0
    target = 1.01 * BEST_FACES
    seeds = range(1 if quick else SEEDS)
    ours = [run_ours(model, "em", seed, lambda info: info.objective + constant <= target, limit)[0] for seed in seeds]
    return judge(
        "CPU to a KL within 1 % of the best known, faces 1,024 x 400, K=40, random start",
        spread(ours),
        f"{peer:.1f} s (scikit-learn, {most:,} iterations, which end {100 * (end / BEST_FACES - 1):.1f} % above)",
        peer / float(np.median(ours)),
        4.0,
    )


def thinned(seed: int = 0) -> tuple[Any, Any]:
    """NIPS counts with a tenth of each held out, binomially."""
    X, _ = nips()
    X = sp.csr_array(X)
    X = X[np.asarray(X.sum(axis=1)).ravel() > 0]
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


def run_hpfrec(train: Any, held: Any, seed: int, most: int) -> tuple[float, float]:
    """(CPU seconds, held-out log-likelihood per token) of hierarchical Poisson factorisation, one thread."""
    import hpfrec
    import pandas as pd

    cells = train.tocoo()
    rows, cols = cells.coords
    frame = pd.DataFrame({"UserId": cols.astype(np.int64), "ItemId": rows.astype(np.int64), "Count": cells.data})
    peer = hpfrec.HPF(
        k=10, ncores=1, random_seed=seed, verbose=False, reindex=False, produce_dicts=False, use_float=False,
        stop_crit="train-llk", stop_thr=TIGHT, check_every=10, maxiter=most,
    )  # fmt: skip
    began = time.process_time()
    peer.fit(frame)
    seconds = time.process_time() - began
    W = np.zeros((train.shape[0], 10))
    W[: len(peer.Beta)] = peer.Beta
    return seconds, per_token(W, np.asarray(peer.Theta), held)


def vb_row(quick: bool) -> Row:
    """VB to convergence beside hpfrec."""
    train, held = thinned()
    model = nz.gamma_nmf(train, 10, alpha_w=0.3, beta_w=0.3, alpha_h=0.3, beta_h=0.3)
    seeds, most = range(1 if quick else 3), 0.2 if quick else 30.0
    runs = [run_ours(model, "vb", seed, lambda info: info.residual < TOL, most) for seed in seeds]
    fits = [per_token(state.W.mean, state.H.mean, held) for _, state, _ in runs]
    ours = [seconds for seconds, _, _ in runs]
    label = "CPU of VB to convergence, NIPS counts less a tenth held out, K=10"
    said = f"{spread(ours)}, log-likelihood per held-out token {np.mean(fits):.4f}"
    if find_spec("hpfrec") is None:
        return note(label, said, "skipped: hpfrec is not installed")
    peer, fit = run_hpfrec(train, held, 1, 20 if quick else 3000)
    told = f"{peer:.0f} s (hpfrec, to a relative change of {TIGHT:g}), {fit:.4f}"
    return judge(label, said, told, peer / float(np.median(ours)) if np.mean(fits) >= fit else 0.0, 20.0)


def rows(quick: bool) -> Iterator[Row]:
    """EM on sparse and on dense data, and VB."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield nips_row(quick)
        if faces() is not None:
            yield faces_row(quick)
        yield vb_row(quick)

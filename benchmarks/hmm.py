"""Chains in time, one thread: the exact filter beside a dense recursion in NumPy, and exact online EM."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.rows import Row, at_most, compare, fastest, note
from nmf_zoo.distributions import BasisChain
from nmf_zoo.inference.hmm import online
from nmf_zoo.inference.hmm.recursions import Recursions
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.inference.stream_engine import columns_of
from nmf_zoo.inference.workers import SERIAL
from nmf_zoo.kernels.basis_states import Chain
from nmf_zoo.kernels.chain_draws import basis_path
from nmf_zoo.kernels.streams import seed_key
from nmf_zoo.models import hmm_nmf
from nmf_zoo.reading import read

P, Q, FEATURES = 0.8571, 0.6926, 8  # of Yildirim, Cemgil, Singh (2012), section 4.1


def rows(quick: bool) -> Iterator[Row]:
    """Filter, smoother, paths and online EM, at the paper's size, and the filter with 4,096 states."""
    n_times = 2_000 if quick else 20_000
    yield filter_row(5, n_times, least=20.0)
    yield filter_row(12, n_times // 100, least=None)
    yield from passes(5, n_times)
    yield online_row(10_000 if quick else 100_000)


def simulate(rank: int, n_times: int) -> tuple[np.ndarray, np.ndarray]:
    """(X (F, T), W (F, K))"""
    rng = np.random.default_rng(1)
    W = rng.gamma(1.0, 10.0, (FEATURES, rank))
    H = np.stack([basis_path(rng.random(n_times), P, Q, 0.5) for _ in range(rank)])
    return rng.poisson(W @ H + 0.1), W


def recursions(X: np.ndarray, W: np.ndarray) -> Recursions:
    rank = W.shape[1]
    samples = read_samples(read(hmm_nmf(X, rank, chain=BasisChain(P, Q), background=0.1)))
    return Recursions(samples.counts(W), samples.base, W, Chain(np.full(rank, P), np.full(rank, Q), np.full(rank, 0.5)))


def filter_row(rank: int, n_times: int, least: float | None) -> Row:
    """The log-likelihood, emissions included on both sides."""
    X, W = simulate(rank, n_times)
    X[X.sum(axis=1) == 0, 0] = 1
    ours = recursions(X, W)
    own, other = (1e6 * seconds / n_times for seconds in fastest([ours.log_likelihood, dense(X, W)], 5))
    work = f"exact filter, {2**rank} states, {FEATURES} features, a step"
    return compare(work, f"{own:.2f} us", f"{other:.2f} us (dense NumPy)", other / own, least)


def dense(X: np.ndarray, W: np.ndarray) -> Callable[[], float]:
    """Scaled forward recursion over a 2^K x 2^K matrix; all emissions in one product."""
    rank = W.shape[1]
    bits = np.arange(2**rank)[:, None] >> np.arange(rank) & 1
    rates = W @ bits.T + 0.1
    A = np.ones((1, 1))
    for _ in range(rank):
        A = np.kron(np.array([[P, 1 - P], [1 - Q, Q]]), A)

    def work() -> float:
        emissions = X.T @ np.log(rates) - rates.sum(axis=0)
        peaks = emissions.max(axis=1, keepdims=True)
        emissions = np.exp(emissions - peaks)
        law, total = np.full(2**rank, 0.5**rank) * emissions[0], float(peaks.sum())
        for row in emissions[1:]:
            mass = law.sum()
            total += np.log(mass)
            law = (law / mass) @ A
            law *= row
        return total + float(np.log(law.sum()))

    return work


def passes(rank: int, n_times: int) -> Iterator[Row]:
    """What the filter is part of: smoother, draws of paths, the best path."""
    ours = recursions(*simulate(rank, n_times))
    key = seed_key(1)
    works = {
        "filter and smoother": ours.smooth,
        "filter and 10 paths": lambda: ours.draw_paths(10, key),
        "Viterbi": ours.best_path,
    }
    for (name, _), seconds in zip(works.items(), fastest(list(works.values()), 3), strict=True):
        yield note(f"exact {name}, {2**rank} states, a step", f"{1e6 * seconds / n_times:.2f} us")


def online_row(n_times: int) -> Row:
    """Exact online EM of W at the paper's size."""
    X, _ = simulate(5, n_times)
    structure = read(hmm_nmf(None, 5, chain=BasisChain(P, Q), background=0.1, shape=(FEATURES, 1)))
    problem = online.prepare(structure, online.ChainOnlineEM(), SERIAL)
    cols, features = np.nonzero(X.T)
    indptr = np.searchsorted(cols, np.arange(n_times + 1))
    columns = columns_of(indptr, features, X.T[cols, features], np.ones(n_times, dtype=bool), 0)
    state = online.init(problem, columns, seed_key(1), {})
    (seconds,) = fastest([lambda: online.update(problem, state, columns, seed_key(1))], 2)
    work = f"exact online EM, M={FEATURES}, K=5, T={n_times:,}"
    most = 1.5 * n_times / 100_000
    return at_most(work, f"{seconds:.2f} s", seconds, most, f"{most:g} s")

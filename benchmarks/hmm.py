"""Chains in time: the exact filter beside dense recursions in NumPy and hmmlearn, in threads, and exact online EM."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.rows import REPEATS, Others, Row, at_most, by_clock, compare, cpu_of, fastest, medians, note
from nmf_zoo.distributions import BasisChain
from nmf_zoo.inference.hmm import online
from nmf_zoo.inference.hmm.recursions import Recursions
from nmf_zoo.inference.hmm.samples import read_samples
from nmf_zoo.kernels.hmm.basis_states import BinaryChain
from nmf_zoo.kernels.random.chain_draws import basis_path
from nmf_zoo.kernels.random.keyed_rng import seed_key
from nmf_zoo.models import hmm_nmf
from nmf_zoo.reading import read
from nmf_zoo.runtime.stream_engine import columns_of
from nmf_zoo.runtime.workers import SERIAL

P, Q, FEATURES = 0.8571, 0.6926, 8  # of Yildirim, Cemgil, Singh (2012), section 4.1


def rows(quick: bool) -> Iterator[Row]:
    """Filter, smoother, paths and online EM, at the paper's size, and the filter with 4,096 states."""
    with threadpool_limits(1):
        n_times = 2_000 if quick else 20_000
        times = 1 if quick else REPEATS
        yield from filter_rows(5, n_times // 2, times)
        yield filter_row(12, n_times // 100, times)
        yield threads_row(4 * n_times)
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
    return Recursions(
        samples.counts(W), samples.base, W, BinaryChain(np.full(rank, P), np.full(rank, Q), np.full(rank, 0.5))
    )


def public_filter(X: np.ndarray, W: np.ndarray) -> Callable[[], float]:
    """What a user calls: the model is there, and each call reads it, lays the data out and packs the answer."""
    model = hmm_nmf(X, W.shape[1], chain=BasisChain(P, Q), background=0.1)
    return lambda: float(nz.filter(model, W)["log_likelihood"])


def filter_rows(rank: int, n_times: int, times: int) -> Iterator[Row]:
    """The log-likelihood by `nz.filter`, emissions included on both sides, at the size that has targets.

    hmmlearn's ``score`` takes emissions as its Poisson class has them. Its recursion of likelihoods, which that class
    can't use where they underflow, is fed with the best we can do by hand: a product in NumPy, over each row's peak.
    """
    X, W = simulate(rank, n_times)
    peers = {"dense NumPy": (dense(X, W), 20.0)}
    if find_spec("hmmlearn") is not None:
        peers["hmmlearn, PoissonHMM(implementation='scaling').score"] = (hmmlearn_score(X, W), 10.0)
        peers["hmmlearn, its _hmmc.forward_scaling by hand"] = (hmmlearn_by_hand(X, W), 3.0)
    works = [cpu_of(work) for work in (public_filter(X, W), *(work for work, _ in peers.values()))]
    own, *others = medians(works, times)
    work = f"nz.filter, exact, {2**rank} states, {FEATURES} features, T={n_times:,}, one table"
    for (name, (_, least)), other in zip(peers.items(), others, strict=True):
        yield compare(work, f"{1e3 * own:.2f} ms", f"{1e3 * other:.2f} ms ({name})", other / own, least)


def filter_row(rank: int, n_times: int, times: int) -> Row:
    """As many states as it takes, beside dense NumPy."""
    X, W = simulate(rank, n_times)
    own, other = medians([cpu_of(work) for work in (public_filter(X, W), dense(X, W))], times)
    work = f"nz.filter, exact, {2**rank} states, {FEATURES} features, T={n_times:,}, one table"
    return compare(work, f"{1e3 * own:.1f} ms", f"{1e3 * other:.0f} ms (dense NumPy)", other / own)


def law(W: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rates (F, 2^K), the law of the first state (2^K,) and the transition (2^K, 2^K), dense."""
    rank = W.shape[1]
    A = np.ones((1, 1))
    for _ in range(rank):
        A = np.kron(np.array([[P, 1 - P], [1 - Q, Q]]), A)
    bits = np.arange(2**rank)[:, None] >> np.arange(rank) & 1
    return W @ bits.T + 0.1, np.full(2**rank, 0.5**rank), A


def emissions_by_numpy(X: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, float]:
    """e^(log-likelihood - peak) (T, 2^K), all in one product, and the sum of the peaks."""
    logs = X.T @ np.log(rates) - rates.sum(axis=0)
    peaks = logs.max(axis=1, keepdims=True)
    return np.exp(logs - peaks), float(peaks.sum())


def dense(X: np.ndarray, W: np.ndarray) -> Callable[[], float]:
    """Scaled forward recursion over a 2^K x 2^K matrix."""
    rates, start, A = law(W)

    def work() -> float:
        emissions, total = emissions_by_numpy(X, rates)
        state = start * emissions[0]
        for row in emissions[1:]:
            mass = state.sum()
            total += np.log(mass)
            state = (state / mass) @ A
            state *= row
        return total + float(np.log(state.sum()))

    return work


def hmmlearn_score(X: np.ndarray, W: np.ndarray) -> Callable[[], float]:
    """What a user of hmmlearn calls."""
    from hmmlearn.hmm import PoissonHMM

    rates, start, A = law(W)
    model = PoissonHMM(len(start), implementation="scaling")
    model.startprob_, model.transmat_, model.lambdas_, model.n_features = start, A, rates.T, len(X)
    samples = np.ascontiguousarray(X.T)
    return lambda: model.score(samples)


def hmmlearn_by_hand(X: np.ndarray, W: np.ndarray) -> Callable[[], float]:
    """Its compiled recursion of likelihoods alone."""
    from hmmlearn import _hmmc

    rates, start, A = law(W)

    def work() -> float:
        emissions, total = emissions_by_numpy(X, rates)
        return total + _hmmc.forward_scaling(start, A, emissions)[0]

    return work


def threads_row(n_times: int) -> Row:
    """Independent filters in two threads, beside the same one after the other; seconds on the clock."""
    runs = [recursions(*simulate(5, n_times)) for _ in range(4)]

    def together(pool: ThreadPoolExecutor) -> None:
        list(pool.map(lambda run: run.log_likelihood(), runs))

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as two:
        others = Others()
        alone, both = fastest([lambda: together(one), lambda: together(two)], 15, time.perf_counter)
    work = f"exact filter, {len(runs)} independent runs, T={n_times:,}, 2 threads"
    row = compare(work, f"{1e3 * both:.0f} ms", f"{1e3 * alone:.0f} ms (1 thread)", alone / both, 1.7)
    return by_clock(row, others)


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

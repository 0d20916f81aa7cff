"""Stochastic VB beside VB of all samples, a stream of ours, and scikit-learn's minibatches: what a pass is worth.

Bounds are those of :mod:`nmf_zoo`'s VB, so that the other methods have none. Every W is scored on texts that no fit has
seen, as in :mod:`benchmarks.streaming`, brought to the mean length of the texts that were learnt from. Seconds are of
CPU, of one core; of ours with all that a call does, the check of the blocks among it.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.datasets import nips, simulated_counts
from benchmarks.rows import Row, compare, note
from benchmarks.streaming import SHAPE, score, split

RANK, ALPHA_W, TOPICS = 10, 0.1, 20
FEATURES, SAMPLES, TOKENS = 5000, 120_000, 150  # of the simulated texts: some 10^7 non-zeros to learn from


class Table(NamedTuple):
    """Texts: ``data`` for ours, ``train`` for others, halves of unseen ones; the size of a minibatch, and the rank."""

    label: str
    data: Any
    train: sp.csc_array
    given: sp.csc_array
    scored: sp.coo_array
    batch_size: int
    rank: int


class Learnt(NamedTuple):
    """W (F, K), the bound where there is one, CPU seconds."""

    W: np.ndarray
    bound: float
    seconds: float


def rows(quick: bool) -> Iterator[Row]:
    """Of NIPS, and of a simulated table in a store."""
    with threadpool_limits(1), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        X, label = (simulated_counts(300, 200, 4000), "simulated counts 300 x 200") if quick else nips()
        yield from of_table(in_memory(X, label), (1, 3, 10), (10, 30, 100), 5)
        X = topics(300, 1000, 50) if quick else topics(FEATURES, SAMPLES, TOKENS)
        table = stored(X, Path(folder))
        for rank in (RANK, TOPICS):
            yield from of_table(table._replace(rank=rank), (1, 3, 10), (10, 30, 60), 1)


def in_memory(X: sp.csc_array, label: str) -> Table:
    train, given, scored = split(sp.csc_array(X).astype(np.float64))
    return Table(label, train, train, given, scored, 128, RANK)


def stored(X: sp.csc_array, folder: Path) -> Table:
    train, given, scored = split(X)
    nz.write_blocks(folder / "texts.zarr", train)
    label = (
        f"simulated texts of {TOPICS} topics {X.shape[0]:,} x {train.shape[1]:,} in a store, {train.nnz:,} non-zeros"
    )
    return Table(label, nz.open_blocks(folder / "texts.zarr"), train, given, scored, 1000, RANK)


def topics(n_features: int, n_samples: int, tokens: int) -> sp.csc_array:
    """Counts of texts, words' frequencies heavy-tailed."""
    rng = np.random.default_rng(0)
    W = rng.gamma(0.1, size=(n_features, TOPICS)) * (rng.pareto(1.1, (n_features, 1)) + 0.05)
    H = rng.gamma(0.2, size=(TOPICS, n_samples)) + 1e-9
    counts = rng.poisson(H * rng.lognormal(0.0, 0.5, n_samples) / H.sum(axis=0) * tokens)
    cols = [np.repeat(np.arange(n_samples, dtype=np.int32), own) for own in counts]
    rows = [np.searchsorted(np.cumsum(own), rng.random(len(of)) * own.sum()) for own, of in zip(W.T, cols, strict=True)]
    cells = np.concatenate(rows).astype(np.int32), np.concatenate(cols)
    return sp.csc_array((np.ones(len(cells[0])), cells), shape=(n_features, n_samples))


def of_table(table: Table, few: tuple[int, ...], many: tuple[int, ...], others: int) -> Iterator[Row]:
    """Passes and what they led to; then the seconds to the bound of VB's last pass."""
    stochastic = nz.VB(batch_size=table.batch_size)
    vb(table, stochastic, 1)  # compile
    vb(table, nz.VB(), 1)
    steps, whole = (
        {n: vb(table, engine, n) for n in passes} for engine, passes in ((stochastic, few), (nz.VB(), many))
    )
    for n, found in steps.items():
        yield of_learnt(f"stochastic VB, {table.batch_size} samples a step", n, found, table)
    for n, found in whole.items():
        yield of_learnt("VB of all samples", n, found, table)
    for name, learn in OTHERS.items():
        try:
            yield of_learnt(name, others, learn(table, others), table)
        except ImportError:
            yield note(f"{name}, {table.label}", "skipped: scikit-learn is not installed")
    yield from to_the_same_bound(table, steps, whole)


def of_learnt(name: str, passes: int, found: Learnt, table: Table) -> Row:
    bound = "" if np.isnan(found.bound) else f", bound {found.bound:,.0f}"
    W = found.W * (table.train.sum() / table.train.shape[1] / found.W.sum())
    said = f"{found.seconds:.1f} s, {score(W, table.given, table.scored):.3f} nats a word{bound}"
    return note(f"{name}, passes: {passes}; {table.label}, K={table.rank}", said)


def to_the_same_bound(table: Table, steps: dict[int, Learnt], whole: dict[int, Learnt]) -> Iterator[Row]:
    """CPU of the shortest runs that are at least as high as each of VB's."""
    for n, found in whole.items():
        able = [(own.seconds, passes) for passes, own in steps.items() if own.bound >= found.bound]
        what = f"CPU to the bound of VB after {n} passes, {table.label}, K={table.rank}"
        if not able:
            yield note(what, "not reached by stochastic VB", f"{found.seconds:.1f} s")
            continue
        seconds, passes = min(able)
        theirs = f"{found.seconds:.1f} s, VB"
        yield compare(what, f"{seconds:.1f} s, passes: {passes}", theirs, found.seconds / seconds)


def vb(table: Table, engine: nz.VB, passes: int) -> Learnt:
    model = nz.gamma_nmf(None, table.rank, alpha_w=ALPHA_W, alpha_h=SHAPE, shape=(table.train.shape[0], 1))
    began = time.process_time()
    run = {"max_iter": passes, "tol": 0, "cores": 1, "random_seed": 1, "quiet": True}
    found = nz.fit(model=model, data=table.data, engine=engine, **run)
    seconds = time.process_time() - began
    W = (found.fit["W_shape"] / found.fit["W_rate"]).to_numpy()[0]
    return Learnt(W, float(found.fit["objective"][0, -1]), seconds)


def timed(learn: Callable[[], np.ndarray]) -> Learnt:
    began = time.process_time()
    return Learnt(learn(), np.nan, time.process_time() - began)


def stream(table: Table, passes: int) -> Learnt:
    """Online EM."""
    model = nz.gap(None, table.rank, shape=(table.train.shape[0], 1), alpha_h=SHAPE)
    how = {"engine": nz.OnlineEM(batch=table.batch_size), "random_seed": 1, "cores": 1}
    return timed(lambda: nz.stream(model, data=table.data, passes=passes, **how).W.to_numpy())


def minibatch_nmf(table: Table, passes: int) -> Learnt:
    """scikit-learn's, of the same divergence, without priors."""
    from sklearn.decomposition import MiniBatchNMF

    how = {"batch_size": table.batch_size, "max_iter": passes, "tol": 0, "max_no_improvement": None}
    peer = MiniBatchNMF(table.rank, init="random", beta_loss="kullback-leibler", random_state=1, **how)
    T = sp.csr_matrix(table.train.T)
    return timed(lambda: peer.fit(T).components_.T)


def allocation(table: Table, passes: int) -> Learnt:
    """scikit-learn's online variational Bayes of latent Dirichlet allocation, topics at the length of the texts."""
    from sklearn.decomposition import LatentDirichletAllocation

    n = table.train.shape[1]
    peer = LatentDirichletAllocation(table.rank, doc_topic_prior=SHAPE, random_state=1, total_samples=n, n_jobs=1)
    T = sp.csr_matrix(table.train.T)

    def learn() -> np.ndarray:
        for number in range(passes):
            order = np.random.default_rng(number).permutation(n)
            for first in range(0, n, table.batch_size):
                peer.partial_fit(T[order[first : first + table.batch_size]])
        return (peer.components_ / peer.components_.sum(axis=1, keepdims=True)).T

    return timed(learn)


OTHERS = {
    "nz.stream": stream,
    "scikit-learn's MiniBatchNMF": minibatch_nmf,
    "scikit-learn's LatentDirichletAllocation.partial_fit": allocation,
}

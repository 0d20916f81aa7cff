"""Online EM over a stream of columns: seconds per pass, what it learns, and memory, beside the batch and a peer.

What is learnt is judged on papers that no fit has seen: half of each paper's words give its activations, by the same
update for every method, and the other half is scored, in nats per word (words of the training papers only).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import psi

import nmf_zoo as nz
from benchmarks.datasets import nips, simulated_counts
from benchmarks.memory import memory
from benchmarks.rows import Row, compare, note

RANK, SHAPE, ROUNDS, PASSES = 10, 1.0, 50, 5


def rows(quick: bool) -> Iterator[Row]:
    """Speed and score against other packages' online variational Bayes; score against the batch; memory."""
    X, label = nips()
    if quick:
        X, label = simulated_counts(300, 200, 4000), "simulated counts 300 x 200"
    X = sp.csc_array(X).astype(np.float64)
    train, given, scored = split(X)
    ours, our_pass = timed(lambda: stream_weights(train, average_after=train.shape[1]))
    batch, batch_seconds = timed(lambda: batch_weights(train, 20 if quick else 200), 1)
    mine, theirs = score(ours, given, scored), score(batch, given, scored)
    what = f"{label}, K={RANK}, {PASSES} passes, averages after the first"
    yield note(
        f"score of unseen papers, online EM against batch VB (200 iterations), {what}",
        f"{mine:.3f} nats a word, {our_pass:.2f} s",
        f"{theirs:.3f} nats a word, {batch_seconds:.1f} s",
    )
    for name, learn in PEERS.items():
        work = f"online EM, one column a step, {what}: CPU seconds; {name}"
        try:
            peer, peer_pass = timed(lambda learn=learn: learn(train), 1)
        except ImportError as error:
            yield note(work, f"skipped: {error.name} is not installed")
            continue
        other = score(peer, given, scored)
        own = f"{our_pass:.2f} s, {mine:.3f} nats a word"
        yield compare(work, own, f"{peer_pass:.2f} s, {other:.3f} nats a word", peer_pass / our_pass)
    yield growth(train, 2 if quick else 20)


def split(X: sp.csc_array) -> tuple[sp.csc_array, sp.csc_array, sp.coo_array]:
    """Columns to learn from (six in seven), and the others' words in two halves."""
    rng = np.random.default_rng(0)
    order = rng.permutation(X.shape[1])
    first = X.shape[1] // 7
    train, rest = X[:, order[first:]], X[:, order[:first]]
    rest = sp.coo_array(rest)
    known = np.asarray(train.sum(axis=1)).ravel()[rest.row] > 0
    row, col, counts = rest.row[known], rest.col[known], rest.data[known]
    given = rng.binomial(counts.astype(int), 0.5)
    halves = [sp.csc_array((part.astype(float), (row, col)), shape=rest.shape) for part in (given, counts - given)]
    for half in halves:
        half.eliminate_zeros()
    return sp.csc_array(train), halves[0], sp.coo_array(halves[1])


def timed(work: Callable[[], Any], times: int = 2) -> tuple[Any, float]:
    """(result, least CPU seconds)."""
    least = np.inf
    for _ in range(times):
        began = time.process_time()
        result = work()
        least = min(least, time.process_time() - began)
    return result, least


def passes(n: int) -> Iterator[np.ndarray]:
    for seed in range(PASSES):
        yield np.random.default_rng(seed).permutation(n)


def stream_weights(X: sp.csc_array, **options: Any) -> np.ndarray:
    """W of online EM, columns in a new order in every pass."""
    model = nz.gap(None, RANK, shape=X.shape, alpha_h=SHAPE)
    stream = nz.stream(model, engine=nz.OnlineEM(**options), random_seed=1, cores=1)
    for order in passes(X.shape[1]):
        stream.update(X[:, order])
    return stream.W.to_numpy()


def batch_weights(X: sp.csc_array, iterations: int) -> np.ndarray:
    model = nz.gamma_nmf(X, RANK, alpha_w=0.5, alpha_h=SHAPE)
    settings = {
        "max_iter": iterations,
        "tol": 0,
        "search": None,
        "draws": 20,
        "cores": 1,
        "random_seed": 1,
        "quiet": True,
    }
    return nz.fit(model=model, engine="vb", var_names=["W"], **settings).posterior["W"][0].mean("draw").to_numpy()


def by_scikit_learn(X: sp.csc_array) -> np.ndarray:
    """Online variational Bayes (Hoffman, Blei, Bach 2010) of latent Dirichlet allocation."""
    from sklearn.decomposition import LatentDirichletAllocation

    peer = LatentDirichletAllocation(RANK, doc_topic_prior=SHAPE, random_state=1, total_samples=X.shape[1], n_jobs=1)
    T = sp.csr_matrix(X.T)
    for order in passes(X.shape[1]):
        for first in range(0, len(order), 128):
            peer.partial_fit(T[order[first : first + 128]])
    return as_weights(peer.components_, X)


def by_gensim(X: sp.csc_array) -> np.ndarray:
    """The same, with the settings of gensim's own tutorial, which has twenty passes and learns the priors."""
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel
    from gensim.utils import FakeDict

    how = {"chunksize": 2000, "passes": 20, "iterations": 400, "alpha": "auto", "eta": "auto", "eval_every": None}
    peer = LdaModel(Sparse2Corpus(X), RANK, id2word=FakeDict(X.shape[0]), random_state=1, **how)
    return as_weights(peer.get_topics(), X)


def as_weights(topics: np.ndarray, X: sp.csc_array) -> np.ndarray:
    """(F, K) topics, given as rows, at the size of the counts."""
    return (topics / topics.sum(axis=1, keepdims=True)).T * X.sum() / X.shape[1] / RANK


PEERS: dict[str, Callable[[sp.csc_array], np.ndarray]] = {
    "scikit-learn's LDA.partial_fit, 128 columns a step": by_scikit_learn,
    "gensim's LdaModel, 20 passes, as its tutorial has it": by_gensim,
}


def score(W: np.ndarray, given: sp.csc_array, scored: sp.coo_array) -> float:
    """Mean log-probability of the scored words, activations from the given ones by the variational update."""
    given, E, below = sp.coo_array(given), np.ones((given.shape[1], W.shape[1])), W.sum(axis=0) + 1.0
    L = E
    for _ in range(ROUNDS):
        ratio = given.data / np.einsum("ck,ck->c", W[given.row], L[given.col])
        numerator = sp.csr_array((ratio, (given.col, given.row)), shape=given.shape[::-1]) @ W
        shape = SHAPE + L * numerator
        E, L = shape / below, np.exp(psi(shape)) / below
    shares = np.einsum("ck,ck->c", W[scored.row], E[scored.col]) / (E @ W.sum(axis=0))[scored.col]
    return float(scored.data @ np.log(np.maximum(shares, 1e-12)) / scored.data.sum())


def growth(X: sp.csc_array, repeats: int) -> Row:
    """Resident size after one pass and after many."""
    model = nz.gap(None, RANK, shape=X.shape, alpha_h=SHAPE)
    stream = nz.stream(model, engine=nz.OnlineEM(sweeps=4, keep=3), random_seed=1, cores=1)
    sizes = []
    for _ in range(repeats):
        stream.update(X)
        sizes.append(memory("VmRSS"))
    return note(
        f"memory of a stream, {stream.columns_seen:,} columns", f"{sizes[-1] - sizes[0]:+.1f} MiB since the first pass"
    )

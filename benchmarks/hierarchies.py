"""Hierarchical Poisson factorisation by our VB beside the published updates of scHPF, written in NumPy and SciPy.

Both from the same starts, to the same held-out score of the same cells: the better one that both reach. From different
starts the ends of either differ by several thousandths of a nat a token. hpfrec, where it is installed, has its own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import psi
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.convergence import per_token, spread, thinned
from benchmarks.iterations import Stepper
from benchmarks.rows import Row, at_most, compare, note

RANK, SHAPE = 10, 0.3  # of the cells and of their rates, whose prior mean is 1
SPLITS = 5
EVERY, CHANGE = 10, 1e-5  # the end: so many iterations change the objective by less than this part of it
CHUNK = 1 << 16
ENOUGH = 5e-4  # nats a token, below which scores are the same
FIRST, LAST = 25, 200  # iterations of hpfrec's runs, which double


class Course(NamedTuple):
    """CPU seconds and held-out score after every `EVERY` iterations."""

    seconds: list[float]
    scores: list[float]

    @property
    def best(self) -> float:
        return max(self.scores)

    def seconds_to(self, score: float) -> float:
        return next(seconds for seconds, own in zip(self.seconds, self.scores, strict=True) if own >= score)


def ratios_at(X: Any, rows: np.ndarray, W: np.ndarray, Ht: np.ndarray) -> Any:
    """X over W H at the counts of a sparse matrix by rows, ``rows`` those of its counts: in NumPy, part by part."""
    ratios = X.copy()
    for first in range(0, X.nnz, CHUNK):
        part = slice(first, first + CHUNK)
        ratios.data[part] /= np.einsum("ck,ck->c", W[rows[part]], Ht[X.indices[part]])
    return ratios


class Published:
    """Levitin et al. (2019), supplementary methods, as Gopalan et al. (2015), algorithm 1: W by word, H by paper."""

    def __init__(self, X: Any, seed: int, rank: int = RANK):
        rng, self.rank = np.random.default_rng(seed), rank
        self.lay_out(X)
        self.W, self.H = (self._start(rng, n) for n in X.shape)

    def lay_out(self, X: Any) -> None:
        self.X, self.rows = sp.csr_array(X), np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))

    def _start(self, rng: np.random.Generator, n: int) -> list[np.ndarray]:
        """[shape, rate] of q of the cells, [rate] of q of the rates, each about its prior."""
        shape, rate = SHAPE * rng.uniform(0.5, 1.5, (n, self.rank)), rng.uniform(0.5, 1.5, (n, self.rank))
        return [shape, rate, np.full(n, SHAPE + self.rank * SHAPE)]

    def __call__(self) -> None:
        """One iteration."""
        counts_W, counts_H = self.sources(*self.geometric)
        for own, counts, other in ((self.W, counts_W, self.H), (self.H, counts_H, self.W)):
            total = (other[0] / other[1]).sum(axis=0)
            own[0] = SHAPE + counts
            own[1] = ((SHAPE + self.rank * SHAPE) / own[2])[:, None] + total
            own[2] = SHAPE + (own[0] / own[1]).sum(axis=1)

    def sources(self, of_W: np.ndarray, of_H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected counts of W's cells and of H's."""
        ratios = ratios_at(self.X, self.rows, of_W, of_H)
        return of_W * (ratios @ of_H), of_H * (ratios.T @ of_W)

    def log_likelihood(self) -> float:
        """The sum of x log mean - mean, of the expected factors."""
        W, H = self.means
        total = -float(W.sum(axis=0) @ H.sum(axis=0))
        for first in range(0, self.X.nnz, CHUNK):
            part = slice(first, first + CHUNK)
            mean = np.einsum("ck,ck->c", W[self.rows[part]], H[self.X.indices[part]])
            total += float(self.X.data[part] @ np.log(mean))
        return total

    @property
    def geometric(self) -> tuple[np.ndarray, np.ndarray]:
        """exp(E[log .]): all that the next iteration asks of q."""
        W, H = (np.exp(psi(shape) - np.log(rate)) for shape, rate, _ in (self.W, self.H))
        return W, H

    @property
    def means(self) -> tuple[np.ndarray, np.ndarray]:
        return self.W[0] / self.W[1], self.H[0] / self.H[1]


def course_of(
    step: Callable[[], object],
    objective: Callable[[], float],
    score: Callable[[], float],
    set_up: float,
    most: int,
) -> Course:
    """Iterate until the end. Only iterations and ``set_up`` take time: what the end is told by may be free, or not."""
    found, spent, before = Course([], []), set_up, -np.inf
    for _ in range(most // EVERY):
        began = time.process_time()
        for _ in range(EVERY):
            step()
        spent += time.process_time() - began
        found.seconds.append(spent)
        found.scores.append(score())
        value = objective()
        if abs(value - before) < CHANGE * abs(value):
            break
        before = value
    return found


def run_published(train: Any, held: Any, seed: int, most: int) -> Course:
    """scHPF's updates."""
    began = time.process_time()
    peer = Published(train, seed)
    set_up = time.process_time() - began
    return course_of(peer, peer.log_likelihood, lambda: per_token(*peer.means, held), set_up, most)


def run_vb(train: Any, held: Any, seed: int, most: int) -> Course:
    """Ours from the same start, with reading and laying out."""
    W, H = Published(train, seed).geometric
    began = time.process_time()
    structure = nz.read(nz.gamma_nmf(train, RANK, prior=nz.HPF(shape=SHAPE)))
    stepper = Stepper(structure, "vb", start={"W": W, "H": H.T})
    set_up = time.process_time() - began

    def score() -> float:
        return per_token(stepper.state.W.mean, stepper.state.H.mean, held)

    return course_of(stepper, lambda: stepper.state.bound, score, set_up, most)


def run_hpfrec(train: Any, held: Any, iterations: int) -> tuple[float, float]:
    """(CPU seconds, held-out score) of so many iterations, one thread."""
    import hpfrec
    import pandas as pd

    cells = train.tocoo()
    rows, cols = cells.coords
    frame = pd.DataFrame({"UserId": cols.astype(np.int64), "ItemId": rows.astype(np.int64), "Count": cells.data})
    peer = hpfrec.HPF(
        k=RANK, ncores=1, random_seed=1, verbose=False, reindex=False, produce_dicts=False, use_float=False,
        stop_crit="maxiter", maxiter=iterations,
    )  # fmt: skip
    began = time.process_time()
    peer.fit(frame)
    seconds = time.process_time() - began
    W = np.zeros((train.shape[0], RANK))
    W[: len(peer.Beta)] = peer.Beta
    return seconds, per_token(W, np.asarray(peer.Theta), held)


def beside_hpfrec(quick: bool) -> Row:
    """Seconds to the score that hpfrec reaches, in runs that double until it is no worse than ours at its best."""
    work = f"VB of prior='hpf' to the same held-out score, NIPS counts less a tenth held out, K={RANK}, one split"
    if find_spec("hpfrec") is None:
        return note(work, "skipped", "hpfrec is not installed")
    train, held = thinned(0)
    ours = run_vb(train, held, 0, EVERY if quick else 3000)
    iterations = FIRST
    seconds, score = run_hpfrec(train, held, iterations)
    while not quick and score < ours.best - ENOUGH and 2 * iterations <= LAST:
        iterations *= 2
        seconds, score = run_hpfrec(train, held, iterations)
    own, best = ours.seconds_to(min(score, ours.best)), f"at its best {ours.best:.4f} nats a token"
    return compare(
        work,
        f"{own:.2f} s; {best}",
        f"{seconds:.1f} s, {iterations} iterations, {score:.4f} (hpfrec)",
        seconds / own,
        10.0,
    )


def rows(quick: bool) -> Iterator[Row]:
    """CPU to the score that both sides reach, and by how much ours is worse at its best, over splits."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        splits, most = range(1 if quick else SPLITS), EVERY if quick else 3000
        run_vb(*thinned(0), 0, EVERY)  # compile
        found = []
        for split in splits:
            parts = thinned(split)
            found.append((run_vb(*parts, split, most), run_published(*parts, split, most)))
        yield from beside_published(found)
        yield beside_hpfrec(quick)


def beside_published(found: list[tuple[Course, Course]]) -> Iterator[Row]:
    """The rows on scHPF's updates: ours and theirs of each split."""
    label = f"VB of prior='hpf', NIPS counts less a tenth held out, K={RANK}, {len(found)} splits"
    targets = [min(own.best, peer.best) for own, peer in found]
    ours, theirs = (
        [pair[side].seconds_to(target) for pair, target in zip(found, targets, strict=True)] for side in (0, 1)
    )
    yield compare(
        f"CPU to the same held-out score, {label}",
        spread(ours),
        f"{spread(theirs)} (scHPF's updates in NumPy)",
        float(np.median(np.divide(theirs, ours))),
        10.0,
    )
    bests = np.array([[course.best for course in pair] for pair in found])
    worse = float(np.max(bests[:, 1] - bests[:, 0]))
    said = f"{bests[:, 0].mean():.4f} nats a token, at worst {worse:+.4f} below"
    yield at_most(
        f"best held-out score, {label}", said, max(worse, 0.0), ENOUGH, f"{ENOUGH:g} below", f"{bests[:, 1].mean():.4f}"
    )

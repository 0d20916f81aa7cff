"""ARD by our EM beside the updates of SignatureAnalyzer, those of Tan and Fevotte (2013), written in NumPy and SciPy.

Both from the same starts, under the same prior, and both end when no relevance changes by more than a part of itself in
an iteration. What they reach is told by the same function, the log density of the model; which of several optima a
start leads to is luck. Of sparse counts it is the time to the density that both reach, and how many components are in
use at the ends.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import xarray as xr
from threadpoolctl import threadpool_limits

import nmf_zoo as nz
from benchmarks.convergence import spread
from benchmarks.datasets import brca21, nips
from benchmarks.hierarchies import Course, ratios_at
from benchmarks.iterations import Stepper
from benchmarks.rows import Row, compare, note
from benchmarks.shrinkage import simulated
from nmf_zoo import _compat
from nmf_zoo.structure import Cells

STARTS, MOST = 5, 200_000  # iterations, of either
CHANGE = 1e-7  # SignatureAnalyzer's tolerance
SHAPE = 10.0  # of the inverse-gamma prior, its a
SPARSE_SHAPE, SPARSE_RANK, SPARSE_GIVEN, SPARSE_MOST = (2000, 500), 8, 20, 3000
NIPS_GIVEN, NIPS_MOST = 20, 1500
EVERY = 10  # iterations between looks at the density of sparse counts
FORMS = {"exponential": "l1", "half-normal": "l2"}


class Published:
    """Tan and Fevotte (2013), algorithms 1 and 2 at beta = 1: l1-ARD of exponential, l2-ARD of half-normal cells."""

    def __init__(self, X: Any, W: np.ndarray, H: np.ndarray, prior: Any, scale: float):
        self.W, self.H, self.is_half_normal = W, H, prior.is_half_normal
        self.lay_out(X)
        cells = sum(X.shape) / (2 if self.is_half_normal else 1)
        self.scale, self.count = scale, cells + prior.shape + 1.0
        self.relevance = np.full(W.shape[1], scale / (prior.shape + 1.0))

    def lay_out(self, X: Any) -> None:
        self.X = X.astype(np.float64)

    def ratios(self) -> Any:
        """X / W H."""
        return self.X / (self.W @ self.H)

    def __call__(self) -> float:
        """One iteration: H, W, the relevances; returns the largest change of these, relative to themselves."""
        self.H = self._updated(self.H, self.W.T @ self.ratios(), self.W.sum(0)[:, None], (-1, 1))
        self.W = self._updated(self.W, self.ratios() @ self.H.T, self.H.sum(1), (1, -1))
        if self.is_half_normal:
            size = (np.square(self.W).sum(0) + np.square(self.H).sum(1)) / 2
        else:
            size = self.W.sum(0) + self.H.sum(1)
        new = (size + self.scale) / self.count
        change = float(np.max(np.abs(new / self.relevance - 1.0)))
        self.relevance = new
        return change

    @property
    def point(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.W, self.H, self.relevance

    def _updated(
        self, old: np.ndarray, numerator: np.ndarray, denominator: np.ndarray, shape: tuple[int, int]
    ) -> np.ndarray:
        relevance = self.relevance.reshape(shape)
        if self.is_half_normal:
            return np.maximum(old * np.sqrt(numerator / (denominator + old / relevance)), 1e-100)
        return np.maximum(old * numerator / (denominator + 1.0 / relevance), 1e-100)


class SparsePublished(Published):
    """The same where all but the non-zeros of X are left out of X / W H."""

    def lay_out(self, X: Any) -> None:
        self.X, self.rows = sp.csr_array(X, dtype=np.float64), np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))

    def ratios(self) -> Any:
        return ratios_at(self.X, self.rows, self.W, np.ascontiguousarray(self.H.T))


def starts(X: Any, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At the scale of the data."""
    rng, scale = np.random.default_rng(seed), np.sqrt(X.mean() / rank)
    return scale * rng.uniform(0.5, 1.5, (X.shape[0], rank)), scale * rng.uniform(0.5, 1.5, (rank, X.shape[1]))


class Ours:
    """Our EM, iteration by iteration, like `Published`."""

    def __init__(self, structure: Any, prior: Any, W: np.ndarray, H: np.ndarray):
        self.name, self.stepper = prior.name, Stepper(structure, "em", start={"W": W, "H": H})

    def __call__(self) -> float:
        """One iteration; returns the largest change of the relevances, relative to themselves."""
        before = self.stepper.state.values[self.name]
        self.stepper()
        return float(np.max(np.abs(self.stepper.state.values[self.name] / before - 1.0)))

    @property
    def point(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state = self.stepper.state
        return state.W, state.Ht.T, state.values[self.name]


def published(structure: Any, prior: Any, W: np.ndarray, H: np.ndarray) -> Published:
    """On the data of a structure, dense or sparse."""
    scale = float(np.ravel(structure.unknowns[prior.name].prior.args[1])[0])
    data = structure.data
    if isinstance(data, Cells):
        return SparsePublished(sp.csr_array((data.values, (data.rows, data.cols)), data.shape), W, H, prior, scale)
    return Published(data.values, W, H, prior, scale)


def log_density(structure: Any, prior: Any, side: Any) -> float:
    """Of the model, at the point of either side."""
    return structure.log_joint(dict(zip(("W", "H", prior.name), side.point, strict=True)))


def run(make: Callable[..., Any], structure: Any, prior: Any, start: Any, most: int) -> tuple[float, int, float]:
    """(CPU seconds with laying out the data, iterations until one changes the relevances by less than `CHANGE`, minus
    the log density at the end)"""
    began = time.process_time()
    side = make(structure, prior, *start)
    iterations = next((i for i in range(1, most + 1) if side() < CHANGE), most)
    return time.process_time() - began, iterations, -log_density(structure, prior, side)


def rows(quick: bool) -> Iterator[Row]:
    """CPU to the end and the log density there, for both forms."""
    tables = {"a simulated table, 60 x 100 of rank 6, K=12": (simulated(11)[0], 12)}
    counts = brca21()
    if counts is not None:
        tables["96 kinds of mutations in 21 breast cancers, K=10"] = (counts, 10)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (label, (X, rank)), cells in ((table, cells) for table in tables.items() for cells in FORMS):
            yield from of_table(X, rank, cells, f"{FORMS[cells]}-ARD, {label}", quick)
        for cells in FORMS:
            yield from of_sparse(
                *sparse_counts(), SPARSE_GIVEN, cells, 1 if quick else STARTS, 20 if quick else SPARSE_MOST
            )
        if not quick:
            yield from of_sparse(*nips(), NIPS_GIVEN, "exponential", 1, NIPS_MOST)


def of_table(X: np.ndarray, rank: int, cells: Any, label: str, quick: bool) -> Iterator[Row]:
    """Both from the same starts."""
    prior = nz.ARD(shape=SHAPE, cells=cells)
    structure = nz.read(nz.gamma_nmf(X, rank, prior=prior))
    run(Ours, structure, prior, starts(X, rank, 0), 2)  # compile
    found = []
    for seed in range(1 if quick else STARTS):
        start = starts(X, rank, seed)
        most = 50 if quick else MOST
        found.append([part for make in (Ours, published) for part in run(make, structure, prior, start, most)])
    ours, n_ours, at, theirs, n_theirs, at_theirs = (np.array(column) for column in zip(*found, strict=True))
    until = f"until no relevance changes by more than {CHANGE:g} of itself"
    yield compare(
        f"CPU {until}, {label}, {len(found)} starts",
        f"{spread(list(ours))}, {np.median(n_ours):.0f} iterations",
        f"{spread(list(theirs))}, {np.median(n_theirs):.0f} iterations (SignatureAnalyzer's updates in NumPy)",
        float(np.median(theirs / ours)),
    )
    said = f"mean {np.mean(at):.2f}, by start {np.min(at - at_theirs):+.2f} to {np.max(at - at_theirs):+.2f} beside it"
    yield note(f"minus log density at the end, {label}", said, f"mean {np.mean(at_theirs):.2f}")


# -- sparse counts ---------------------------------------------------------------------------------------------------


def sparse_counts() -> tuple[Any, str]:
    """Simulated, at the size of a corpus, and what to call them."""
    rng = np.random.default_rng(2013)
    (n_rows, n_cols), rank = SPARSE_SHAPE, SPARSE_RANK
    product = rng.gamma(0.05, size=(n_rows, rank)) @ rng.gamma(0.05, size=(rank, n_cols))
    X = sp.csr_array(rng.poisson(product * 0.15 / product.mean()))
    filled = X.nnz / (n_rows * n_cols)
    return X, f"simulated counts {n_rows:,} x {n_cols} of rank {rank}, {100 * filled:.1f} % non-zero"


def course_of(make: Callable[..., Any], structure: Any, prior: Any, start: Any, most: int) -> tuple[Course, Any]:
    """(log density after every so many iterations, the side at its end); looking at it takes no time."""
    began = time.process_time()
    side, found = make(structure, prior, *start), Course([], [])
    spent = time.process_time() - began
    for _ in range(most // EVERY):
        began = time.process_time()
        change = max(side() for _ in range(EVERY))
        spent += time.process_time() - began
        found.seconds.append(spent)
        found.scores.append(log_density(structure, prior, side))
        if change < CHANGE:
            break
    return found, side


def in_use(prior: Any, side: Any) -> int:
    """Components, by the package's rule for either side."""
    dims = {"W": ("feature", "component"), "H": ("component", "obs"), prior.name: ("component",)}
    arrays = zip(dims.items(), side.point, strict=True)
    point = {name: (("chain", "draw", *own), array[None, None]) for (name, own), array in arrays}
    return int(nz.components_in_use(_compat.inference_data({"posterior": xr.Dataset(point)}, {})).attrs["count"])


def of_sparse(X: Any, label: str, rank: int, cells: Any, n_starts: int, most: int) -> Iterator[Row]:
    """Both from the same starts, to the log density that both reach."""
    prior = nz.ARD(shape=SHAPE, cells=cells)
    structure = nz.read(nz.gamma_nmf(X, rank, prior=prior))
    course_of(Ours, structure, prior, starts(X, rank, 0), EVERY)  # compile
    begun = [starts(X, rank, seed) for seed in range(n_starts)]
    ours, theirs = ([course_of(make, structure, prior, start, most) for start in begun] for make in (Ours, published))
    targets = [min(own.best, peer.best) for (own, _), (peer, _) in zip(ours, theirs, strict=True)]
    own, other = (
        [course.seconds_to(target) for (course, _), target in zip(side, targets, strict=True)]
        for side in (ours, theirs)
    )
    what = f"{FORMS[cells]}-ARD, {label}, K={rank}, {n_starts} start{'s' * (n_starts > 1)}"
    yield compare(
        f"CPU to the log density that both reach, {what}",
        spread(own),
        f"{spread(other)} (SignatureAnalyzer's updates in SciPy)",
        float(np.median(np.divide(other, own))),
    )
    yield note(
        f"components in use and minus log density at the end, {what}", *(ends(prior, side) for side in (ours, theirs))
    )


def ends(prior: Any, runs: list[tuple[Course, Any]]) -> str:
    """Of every start."""
    said = (f"{in_use(prior, side)} at {-course.best:.1f} after {EVERY * len(course.scores)}" for course, side in runs)
    return f"{'; '.join(said)} iterations"

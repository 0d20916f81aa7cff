"""log p(x_n | W, alpha, beta) of every sample with H integrated out, exactly: arrays in, arrays out.

::

    samples = observe(structure)                                  once: the data, sample by sample
    shape, rate = activation_prior(structure, values)             alpha, beta (N, K), values of the unknowns by name
    values = log_likelihoods(samples, W, shape, rate, workers)    (N,), for as many W as you like

or, all at once, ``marginal_log_likelihoods(structure, W, values, workers)``. :func:`estimate` says what a call costs:
about n^K / K! updates for a sample of n counts. The mathematics is in :mod:`nmf_zoo.kernels.marginal.exact`.

Masked features drop out: with weight = mask * exposure, ||w_k|| is sum_f weight_fn w_fk, each sample's own. Samples are
independent, so that results do not depend on the number of threads.

**Enumeration** adds up log p(x_n | W) over all admissible components (Filstroff et al. 2018, eq. 28), one by one: the
slow and obvious way, for tiny problems: what the dynamic programme is checked against. prod_f binomial(x_f + K - 1, K -
1) terms for a sample (eq. 25 ff.)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, logsumexp, xlogy

from nmf_zoo.inference.shared.layout import Weights, background_of_samples, nonzero_cells, weigh
from nmf_zoo.kernels.marginal.exact import SampleCells, expect, log_sums, sizes
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Array, Factorisation, GammaPrior

MOST_TASKS = 512  # pieces of about equal cost that threads share, and steps of a progress bar
SHORTEST = 1e-4  # seconds of a piece: to call a kernel takes some 3e-6


class MarginalData(NamedTuple):
    """The data as the marginal likelihood sees them.

    Attributes
    ----------
    columns : the non-zero cells of each sample
    weights : mask * exposure
    constant : (N,) what does not depend on W: sum_f x log exposure - log x! - background
    """

    columns: SampleCells
    weights: Weights
    constant: Array

    @property
    def n_samples(self) -> int:
        return len(self.constant)


class Cost(NamedTuple):
    """What exact values take: seconds on one thread of a recent machine, and bytes for the largest sample."""

    seconds: float
    memory: float
    largest: tuple[int, int]  # counts and components of the dearest sample, as far as they are open


def marginal_log_likelihoods(
    structure: Factorisation, W: Array, values: Mapping[str, Array] | None = None, workers: Workers = SERIAL
) -> Array:
    """log p(x_n | W) of every sample, (N,); ``W`` (F, K), ``values`` of the unknown hyperparameters by name."""
    shape, rate = activation_prior(structure, values or {})
    return log_likelihoods(observe(structure), W, shape, rate, workers)


def observe(structure: Factorisation) -> MarginalData:
    """The data of a Poisson factorisation of counts, sample by sample."""
    rows, cols, x = nonzero_cells(structure)
    table = sp.csc_array((x, (rows, cols)), shape=structure.shape)
    table.sort_indices()
    rows, x = table.indices, table.data
    cols = np.repeat(np.arange(structure.shape[1]), np.diff(table.indptr))
    exposure = structure.exposure_at(rows, cols)
    offset = np.empty(0)
    if structure.likelihood.background is not None:
        offset = structure.background_at(rows, cols) / exposure
    constant = np.bincount(cols, xlogy(x, exposure) - gammaln(x + 1), structure.shape[1]) - background_of_samples(
        structure
    )
    columns = SampleCells(table.indptr.astype(np.int64), rows.astype(np.int32), x.astype(np.int64), offset)
    return MarginalData(columns, weigh(structure), constant)


def activation_prior(structure: Factorisation, values: Mapping[str, Array]) -> tuple[Array, Array]:
    """(alpha, beta) of H ~ Gamma(alpha, beta), each (N, K)."""
    assert isinstance(structure.H.prior, GammaPrior)
    shape, rate = structure.H.prior.shape_and_rate(values)
    return tuple(_full(array, structure.H.shape) for array in (shape, rate))  # type: ignore[return-value]


def _full(array: Array, shape: tuple[int, int]) -> Array:
    return np.ascontiguousarray(np.broadcast_to(array, shape).T, dtype=np.float64)


def log_likelihoods(
    samples: MarginalData,
    W: Array,
    shape: Array,
    rate: Array,
    workers: Workers = SERIAL,
    report: Callable[[int], None] = lambda done: None,
) -> Array:
    """log p(x_n | W) of every sample, (N,); ``W`` (F, K), ``shape`` and ``rate`` (N, K).

    ``report`` is told how many samples are done, from whichever thread did them.
    """
    W = np.ascontiguousarray(W, dtype=np.float64)
    total, out = rates(samples, W, rate), np.empty(samples.n_samples)

    def work(first: int, last: int) -> None:
        log_sums(samples.columns, W, total, shape, first, last, out)

    over_samples(work, _tasks(samples, W, total), workers, report)
    return out + penalties(samples, W, shape, rate) + samples.constant


def over_samples(
    work: Callable[[int, int], None],
    bounds: Array,
    workers: Workers,
    report: Callable[[int], None] = lambda done: None,
) -> None:
    """``work(first, last)`` for each run of samples; what interrupts one thread ends the others' work, too."""
    lock, done, is_over = Lock(), 0, False

    def one(first: int, last: int) -> None:
        nonlocal done, is_over
        if is_over:
            return
        try:
            work(first, last)
            with lock:
                done += last - first
                report(done)
        except BaseException:
            is_over = True
            raise

    workers.map(one, bounds[:-1], bounds[1:])


def rates(samples: MarginalData, W: Array, rate: Array) -> Array:
    """||w_k|| + beta_k, (N, K)"""
    return np.ascontiguousarray(samples.weights.over_features(W) + rate)


def penalties(samples: MarginalData, W: Array, shape: Array, rate: Array) -> Array:
    """sum_k alpha_k log(beta_k / (||w_k|| + beta_k)), (N,): what pulls columns to zero (Filstroff et al., eq. 34)."""
    return -np.sum(shape * np.log1p(samples.weights.over_features(W) / rate), axis=1)


def estimate(samples: MarginalData, W: Array, rate: Array) -> Cost:
    """What :func:`log_likelihoods` would cost."""
    W = np.ascontiguousarray(W, dtype=np.float64)
    open_sizes, seconds = _costs(samples, W, rates(samples, W, rate))
    n, rank = open_sizes[np.argmax(seconds)].tolist()
    return Cost(float(seconds.sum()), 8.0 * _cells(n, rank), (n, rank))


def _costs(samples: MarginalData, W: Array, total: Array) -> tuple[Array, Array]:
    """Open counts and components (N, 2), and seconds (N,), of each sample."""
    open_sizes = np.zeros((samples.n_samples, 2), np.int64)
    sizes(samples.columns, W, total, 0, samples.n_samples, open_sizes)
    found, of_each = np.unique(open_sizes, axis=0, return_inverse=True)
    return open_sizes, np.array([_seconds(*pair) for pair in found.tolist()])[of_each.ravel()]


def _seconds(n: int, rank: int) -> float:
    """Updates, visits to a row and counts, each with what it was measured to take."""
    if n == 0:
        return 5e-7
    updates, visits, rows = _choose(n + rank, rank), _choose(n + rank - 1, rank - 1), _choose(n + rank - 2, rank - 2)
    return 1e-9 * (0.25 * updates + 6.0 * (rank - 1) * visits + 5.0 * rank**2 * rows + 70.0 * n + 500.0)


def _cells(n: int, rank: int) -> float:
    """Cells of the state and its rows' table."""
    if rank < 2:
        return 0.0
    rows = _choose(n + rank - 2, rank - 2)
    return _choose(n + rank - 1, rank - 1) + rows * (15.0 + 2.0 + 2.0 * (rank - 2))


def _choose(n: int, k: int) -> float:
    try:
        return float(math.comb(n, k))
    except OverflowError:
        return math.inf


def _tasks(samples: MarginalData, W: Array, total: Array) -> Array:
    """Boundaries of runs of samples that cost about the same."""
    ends = np.concatenate([[0.0], np.cumsum(_costs(samples, W, total)[1])])
    tasks = int(np.clip(ends[-1] / SHORTEST, 1, MOST_TASKS))
    targets = np.linspace(0.0, ends[-1], tasks + 1)[1:-1]
    inside = np.searchsorted(ends, targets)
    return np.unique(np.concatenate([[0], inside, [samples.n_samples]]))


def expectations(
    samples: MarginalData,
    W: Array,
    shape: Array,
    rate: Array,
    workers: Workers = SERIAL,
    report: Callable[[int], None] = lambda done: None,
) -> tuple[Array, Array]:
    """(E[C | x], E[H | x]) given W: (non-zeros, K), a column for the background after them if there is one, and (N, K).

    The cells are in the order of ``samples.columns``.
    """
    W = np.ascontiguousarray(W, dtype=np.float64)
    total, columns = rates(samples, W, rate), samples.columns
    sources = np.empty((len(columns.counts), W.shape[1] + (columns.offset.size > 0)))
    activations, data = np.empty((samples.n_samples, W.shape[1])), (columns, W, total, shape)

    def work(first: int, last: int) -> None:
        expect(data, first, last, sources, activations)

    over_samples(work, _tasks(samples, W, total), workers, report)
    return sources, activations


# -- enumeration -----------------------------------------------------------------------------------------------------


def n_terms(samples: MarginalData, rank: int) -> list[int]:
    """The number of admissible components of each sample."""
    sources, indptr = rank + (samples.columns.offset.size > 0), samples.columns.indptr
    counts = [samples.columns.counts[first:last].tolist() for first, last in pairwise(indptr)]
    return [math.prod(math.comb(x + sources - 1, sources - 1) for x in sample) for sample in counts]


def enumerated_log_likelihoods(samples: MarginalData, W: Array, shape: Array, rate: Array) -> Array:
    """log p(x_n | W) of every sample, (N,); ``W`` (F, K), ``shape`` and ``rate`` (N, K)."""
    total, columns = rates(samples, W, rate), samples.columns
    out = penalties(samples, W, shape, rate) + samples.constant
    for n in range(samples.n_samples):
        cells = slice(columns.indptr[n], columns.indptr[n + 1])
        p = W[columns.features[cells]] / total[n]
        if columns.offset.size > 0:
            p = np.column_stack([p, columns.offset[cells]])
        out[n] += _log_sum(columns.counts[cells].tolist(), p, shape[n])
    return out


def _log_sum(counts: list[int], p: Array, shape: Array) -> float:
    """log sum_C prod_f (x_f! / prod_k c_fk!) p_fk^c_fk prod_k Gamma(alpha_k + L_k) / Gamma(alpha_k)."""
    totals, logs = np.zeros((1, p.shape[1])), np.zeros(1)
    for x, row in zip(counts, p, strict=True):
        ways = _compositions(x, p.shape[1])
        of_cell = gammaln(x + 1) + np.sum(xlogy(ways, row) - gammaln(ways + 1), axis=1)
        totals = (totals[:, None] + ways).reshape(-1, p.shape[1])
        logs = (logs[:, None] + of_cell).ravel()
    of_totals = totals[:, : len(shape)]
    return float(logsumexp(logs + np.sum(gammaln(shape + of_totals) - gammaln(shape), axis=1)))


@cache
def _compositions(x: int, sources: int) -> Array:
    """(ways, sources) all ways to write x as a sum of ``sources`` numbers."""
    if sources == 1:
        return np.array([[x]])
    parts = [np.insert(_compositions(x - first, sources - 1), 0, first, axis=1) for first in range(x + 1)]
    return np.concatenate(parts)

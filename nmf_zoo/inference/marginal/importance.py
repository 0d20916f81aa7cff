"""Monte-Carlo estimates of log p(x_n | W, alpha, beta), at any size: arrays in, arrays out.

::

    samples = marginal.observe(structure)                              once
    shape, rate = marginal.activation_prior(structure, values)         (N, K)
    found = estimate_log_likelihoods(samples, W, shape, rate, draws=64, key=seed_key(1), workers=workers)
    found.log_likelihood.sum(), found.total_error                      log p(X | W) and its standard error

Per sample, importance sampling of h with a proposal at its mode (:mod:`nmf_zoo.kernels.marginal.importance`). Each
sample draws from its own stream, so that estimates do not depend on threads, and the same key gives common random
numbers: two W compared with one key differ by less than their errors say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.inference.marginal.exact import MarginalData, over_samples, penalties, rates
from nmf_zoo.kernels.marginal.importance import estimate_log_sums
from nmf_zoo.runtime.workers import SERIAL, Workers
from nmf_zoo.structure import Array

TASK_NONZEROS = 1 << 13  # cells in a piece of work


class Estimates(NamedTuple):
    """What importance sampling found, sample by sample.

    Attributes
    ----------
    log_likelihood : (N,) log p(x_n | W)
    standard_error : (N,) its Monte-Carlo error; 0 where no draw is needed. Too small where ``effective`` is tiny
    effective : (N,) effective sample size / draws
    """

    log_likelihood: Array
    standard_error: Array
    effective: Array

    @property
    def total_error(self) -> float:
        """Standard error of the sum."""
        return float(np.sqrt(np.sum(self.standard_error**2)))


def estimate_log_likelihoods(
    samples: MarginalData,
    W: Array,
    shape: Array,
    rate: Array,
    *,
    draws: int,
    key: np.uint64,
    workers: Workers = SERIAL,
    report: Callable[[int], None] = lambda done: None,
) -> Estimates:
    """log p(x_n | W) of every sample; ``W`` (F, K), ``shape`` and ``rate`` (N, K), ``draws`` of h for each.

    ``report`` is told how many samples are done, from whichever thread did them.
    """
    if samples.columns.offset.size > 0:
        raise InputError("method", "'importance' with a background", "no background", "use method='exact'")
    W = np.ascontiguousarray(W, dtype=np.float64)
    out, data = np.empty((samples.n_samples, 3)), (samples.columns, W, rates(samples, W, rate), shape)

    def work(first: int, last: int) -> None:
        estimate_log_sums(data, draws, key, first, last, out)

    over_samples(work, _tasks(samples.columns.indptr), workers, report)
    fixed = penalties(samples, W, shape, rate) + samples.constant
    return Estimates(out[:, 0] + fixed, out[:, 1].copy(), out[:, 2].copy())


def _tasks(indptr: Array) -> Array:
    """Boundaries of runs of samples with about as many cells each."""
    n_tasks = max(1, int(indptr[-1]) // TASK_NONZEROS)
    inside = np.searchsorted(indptr, np.linspace(0, indptr[-1], n_tasks + 1)[1:-1])
    return np.unique(np.concatenate([[0], inside, [len(indptr) - 1]]))

"""How log p(x_n | W) is found: by which route, with what randomness, on how many threads, watched or not."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.errors import InputError, NmfZooWarning
from nmf_zoo.inference import admissible, importance, marginal
from nmf_zoo.inference.driver import available_cores
from nmf_zoo.inference.progress import Watch
from nmf_zoo.inference.workers import Workers
from nmf_zoo.kernels.streams import seed_key
from nmf_zoo.run_arguments import check_counts, entropy_of
from nmf_zoo.workbench.marginal_inputs import Given, require_affordable, require_few_terms, require_no_background

METHODS = ("exact", "enumeration", "importance")
BAR_SECONDS = 2.0  # from what estimate on a progress bar is worth its line
FEW = 0.05  # effective sample size / draws below which a standard error is too small


class How(NamedTuple):
    """Arguments of :func:`~nmf_zoo.marginal_log_likelihood`, checked; ``key`` of the draws."""

    method: str
    draws: int
    key: np.uint64
    threads: int
    max_seconds: float
    progressbar: bool


def check_how(method: Any, draws: Any, random_seed: Any, cores: int | None, max_seconds: Any, progressbar: bool) -> How:
    if method not in METHODS:
        raise InputError("method", repr(method), f"one of {list(METHODS)}")
    check_counts(draws=(draws, 2))
    require_max_seconds(max_seconds)
    return How(method, draws, seed_key(entropy_of(random_seed)), check_threads(cores), max_seconds, progressbar)


def require_max_seconds(most: Any) -> None:
    if isinstance(most, bool) or not isinstance(most, numbers.Real) or not float(most) > 0:
        raise InputError("max_seconds", repr(most), "a positive number")


def evaluate(given: Given, how: How) -> importance.Estimates:
    """log p(x_n | W) of every sample, with errors of 0 where they are exact."""
    if how.method == "importance":
        return _estimate(given, how)
    if how.method == "enumeration":
        require_few_terms(given)
        values = admissible.enumerated_log_likelihoods(*given.arguments)
    else:
        seconds = require_affordable(given, how.threads, how.max_seconds)
        with work(given, how.threads, how.progressbar and seconds > BAR_SECONDS) as (workers, report):
            values = marginal.log_likelihoods(*given.arguments, workers, report)
    return importance.Estimates(values, np.zeros(len(values)), np.ones(len(values)))


def _estimate(given: Given, how: How) -> importance.Estimates:
    require_no_background(given.structure)
    with work(given, how.threads, how.progressbar) as (workers, report):
        found = importance.estimate_log_likelihoods(
            *given.arguments, draws=how.draws, key=how.key, workers=workers, report=report
        )
    few = int(np.sum(found.effective < FEW))
    if few:
        message = (
            f"effective: below {FEW} for {few} of {len(found.effective)} samples, whose errors are larger than said"
        )
        warnings.warn(f"{message}; raise draws={how.draws}", NmfZooWarning, stacklevel=4)
    return found


def check_threads(cores: int | None) -> int:
    if cores is None:
        return available_cores()
    check_counts(cores=(cores, 1))
    return cores


@contextmanager
def work(given: Given, threads: int, with_bar: bool) -> Iterator[tuple[Workers, Any]]:
    """Threads, and what they report their progress to."""
    total = given.samples.n_samples
    with closing(Workers(threads)) as workers, Watch(with_bar, "samples, run", 1, total) as watch:
        yield workers, lambda done: watch.report(0, done)
        watch.report(0, total, last=True)

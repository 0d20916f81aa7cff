"""scikit-learn's multiplicative updates at their best: in a process of their own, whose allocator keeps freed memory.

As it is set up, glibc gives temporaries of some megabytes back to the system and maps them anew, and on NIPS counts the
page faults take as long as the updates. Two variables of the environment end that. They are read when a process begins.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
NAME = "scikit-learn, in a process that keeps freed memory"


class Updated(NamedTuple):
    """CPU seconds of some updates, and where they lead."""

    seconds: float
    divergence: float
    W: np.ndarray
    H: np.ndarray


class Peer:
    """The process, one call after the other."""

    def __enter__(self) -> Peer:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        with patch.dict(os.environ, KEEPS_MEMORY | ONE_THREAD):
            self._pool.submit(int).result()  # starts it
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def updates(self, X: Any, rank: int, iterations: int, **others: Any) -> Updated:
        """As `updates`, there."""
        return self._pool.submit(updates, X, rank, iterations, **others).result()

    def an_update(self, X: Any, rank: int, more: int, **others: Any) -> Callable[[], float]:
        """A work for `rows.medians`: one update. Set-up cancels between runs of two lengths."""

        def run() -> float:
            short, long = (self.updates(X, rank, iterations, **others).seconds for iterations in (1, 1 + more))
            return (long - short) / more

        return run


def updates(
    X: Any,
    rank: int,
    iterations: int,
    loss: str = "kullback-leibler",
    seed: int = 1,
    start: tuple[Any, Any] | None = None,
) -> Updated:
    """So many multiplicative updates of W and H, and their set-up; from a random start, or from (W, H)."""
    from sklearn.decomposition import NMF

    peer = NMF(rank, init="custom" if start else "random", solver="mu", beta_loss=loss, tol=0, max_iter=iterations)
    peer.set_params(random_state=seed)
    given = dict(zip("WH", (factor.copy() for factor in start), strict=True)) if start else {}
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tol is not reached
        W = peer.fit_transform(X, **given)
    return Updated(time.process_time() - began, peer.reconstruction_err_**2 / 2, W, peer.components_)

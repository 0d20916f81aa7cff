"""The data that benchmarks run on: real where ``$NMF_ZOO_DATA`` has them, else a simulated stand-in that says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

NIPS_SHAPE, NIPS_NONZEROS = (12419, 1500), 746316


def nips() -> tuple[sp.csc_array, str]:
    """The NIPS word counts (words x papers) and what to call them."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "nips_uci" / "nips_counts.npz"
    if "NMF_ZOO_DATA" in os.environ and path.exists():
        return sp.csc_array(sp.load_npz(path)), "NIPS counts 12,419 x 1,500, 746,316 non-zeros"
    return simulated_counts(
        *NIPS_SHAPE, NIPS_NONZEROS
    ), "simulated stand-in for NIPS (set NMF_ZOO_DATA for the real counts)"


def brca21() -> np.ndarray | None:
    """Counts of 96 kinds of mutations in 21 breast cancers; None without the data."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "brca21" / "brca21_sbs96.tsv"
    if not path.exists():
        return None
    return np.loadtxt(path, delimiter="\t", skiprows=1, usecols=range(1, 22), dtype=np.int64)


def kos() -> sp.csc_array | None:
    """Word counts of blog entries (words x entries); None without the data."""
    path = Path(os.environ.get("NMF_ZOO_DATA", "")) / "kos_uci" / "kos_counts.npz"
    return sp.csc_array(sp.load_npz(path)) if path.exists() else None


def used_words(X: Any) -> Any:
    """The rows of sparse counts that have any."""
    return X[np.asarray(X.sum(axis=1)).ravel() > 0]


def simulated_counts(n_rows: int, n_cols: int, n_nonzeros: int) -> sp.csc_array:
    """Sparse counts of about this many non-zeros with heavy-tailed row totals, as words have."""
    rng = np.random.default_rng(0)
    popularity = rng.pareto(1.1, n_rows) + 0.05
    rows = rng.choice(n_rows, size=2 * n_nonzeros, p=popularity / popularity.sum())
    cols = rng.integers(n_cols, size=2 * n_nonzeros)
    cells = np.unique(rows * n_cols + cols)
    cells = rng.permutation(cells)[:n_nonzeros]
    counts = rng.geometric(0.4, size=len(cells))
    return sp.csc_array((counts, (cells // n_cols, cells % n_cols)), shape=(n_rows, n_cols))


def gamma_counts(n_rows: int, n_cols: int, rank: int, mean: float) -> np.ndarray:
    """Dense counts drawn from the Gamma-prior model, with this mean."""
    rng = np.random.default_rng(1)
    product = rng.gamma(1.0, size=(n_rows, rank)) @ rng.gamma(1.0, size=(rank, n_cols))
    return rng.poisson(product * mean / product.mean())


def cemgil_counts(seed: int = 1) -> np.ndarray:
    """16 x 10 counts of mean 450 from five sources, gamma shapes 10 and 1, means 1 and 100 (Cemgil 2009, section 4)."""
    rng = np.random.default_rng(seed)
    W = rng.gamma(10.0, 1 / 10.0, size=(16, 5))
    H = rng.gamma(1.0, 100.0, size=(5, 10))
    return rng.poisson(W @ H)

"""The rows of statistics of exact online EM, and samples of a stream as its kernels take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.inference.stream_engine import Columns
from nmf_zoo.kernels.basis_online import Online
from nmf_zoo.kernels.basis_states import Counts, Tables, set_rates
from nmf_zoo.structure import Array


def nothing_seen(W: Array, law: tuple[Array, Array, Array], base: Array) -> Online:
    """The statistics of no sample, under these parameters: p, q and P(on) at the first time, () or (K, 1) each."""
    n_features, rank = W.shape
    n_states, n_columns = 1 << rank, 1 + (1 + n_features + 4) * rank
    tables = Tables(np.empty((n_features, n_states)), np.empty((n_features, n_states)))
    set_rates(tables, W, base)
    rooms = np.zeros(n_states), np.zeros(n_states), np.zeros(n_columns)
    p, q, initial = (np.broadcast_to(part, (rank, 1))[:, 0] for part in law)
    return Online(np.zeros((n_states, n_columns)), W, np.stack([p, q]), initial.copy(), tables, *rooms)


def copy(tree: Any) -> Any:
    """The same in arrays of its own: a block that fails half-way leaves the stream as it was."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    return type(tree)(*map(copy, tree)) if isinstance(tree, tuple) else tree


def weight_rows_of(online: Online) -> int:
    """R: whether activations are gathered once for all features, or for each."""
    n_features, rank = online.W.shape
    return (online.table.shape[1] - 1) // rank - n_features - 4


def with_room(online: Online, of_features: Array) -> Online:
    """With weighted activations of every feature, which differ by more than ``of_features`` once a cell is missing."""
    rank = online.W.shape[1]
    shared, rest = online.table[:, 1 : 1 + rank], online.table[:, 1 + rank :]
    table = np.concatenate([online.table[:, :1], np.kron(of_features, shared), rest], axis=1)
    return online._replace(table=table, sums=np.zeros(table.shape[1]))


def cut(columns: Columns, has_room: bool) -> list[Columns]:
    """The columns, cut where the first one with missing cells changes what is gathered: never at the end of a block."""
    first = int(np.argmin(columns.complete))
    if np.all(columns.complete) or first == 0 or has_room:
        return [columns]
    return [columns.part(0, first), columns.part(first, columns.n_columns)]


def weights_of(columns: Columns, weight_rows: int, n_features: int) -> Array:
    """The mask of the columns: (n, 1) where all are complete, else (n, F)."""
    if weight_rows == 1 < n_features:
        return np.ones((columns.n_columns, 1))
    weights = np.repeat(columns.complete[:, None], n_features, axis=1).astype(np.float64)
    weights[np.repeat(np.arange(columns.n_columns), np.diff(columns.indptr)), columns.rows] = 1.0
    return weights


def counts_of(columns: Columns, rank: int) -> Counts:
    """The cells with counts; ``drag`` is room."""
    positive = columns.values > 0
    before = np.concatenate([[0], np.cumsum(positive)])
    rows = columns.rows[positive].astype(np.int32)
    return Counts(before[columns.indptr], rows, columns.values[positive], np.empty(0), np.zeros((1, rank)))


def series_of(columns: Columns, W: Array, of_features: Array) -> Counts:
    """The columns as a series of its own, under this W."""
    weights = weights_of(columns, len(W), len(W)) * of_features
    return counts_of(columns, W.shape[1])._replace(drag=np.ascontiguousarray(weights @ W))

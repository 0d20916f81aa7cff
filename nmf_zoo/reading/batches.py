"""Multipliers of batches: a free variable that has one entry for each feature and batch, spread over the samples.

Spellings are not enumerated (``M[:, batch]``, ``pt.take(M, batch, axis=1)``, ``M @ one_hot``): numbers are put in the
place of the variable's entries, what stands at X is evaluated, and the batch of a sample is the one whose entries its
column holds. Columns of ones are samples of a reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytensor
from pytensor.graph.basic import Variable

from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import INTERPRETED, ModelGraph, name_of
from nmf_zoo.reading.hyperparameters import read_hyper_prior
from nmf_zoo.structure import Multipliers, UnknownOfBatches

Array = np.ndarray
PROBES = (1.0, 1.375)  # the entries are numbered from 2, times these: of both, what a sum or a power would make differs


@dataclass(frozen=True, eq=False)
class BatchFactor:
    """What multiplies a mean, and is no product of matrices.

    Attributes
    ----------
    variable : (F, N), or (N, F) if ``transposed``; (F, B) where there is ``batch``
    batch : (N,) its column that each sample has, or None where it has one for each
    """

    variable: Variable
    transposed: bool = False
    batch: Array | None = None

    @property
    def T(self) -> BatchFactor:
        return replace(self, transposed=not self.transposed)


def read_multipliers(
    graph: ModelGraph, whose: tuple[str, str], factor: BatchFactor, shape: tuple[int, int]
) -> Multipliers:
    """Those of X (F, N); ``whose`` : its name, and what it has in words."""
    sources = list(free_variables(graph, factor.variable))
    found = _as_multipliers(graph, sources[0], factor, shape) if len(sources) == 1 else None
    if found is None:
        expected = (
            "one free variable of shape (features, batches), of which every sample has a column, as M[:, batch]; or "
            "ones, for samples of a reference"
        )
        raise UnreadableModel(*whose, f"W @ H times {expected}", "write it so, or use pm.sample")
    return found


def free_variables(graph: ModelGraph, variable: Variable) -> Iterator[Variable]:
    """The free variables that enter an expression, not those that these depend on."""
    pending, seen = [variable], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if graph.is_free(current):
            yield current
        elif current.owner is not None:
            pending.extend(current.owner.inputs)


def _as_multipliers(
    graph: ModelGraph, source: Variable, factor: BatchFactor, shape: tuple[int, int]
) -> Multipliers | None:
    own = graph.shapes[name_of(source)]
    numbers = _entries(source, factor, own)
    if numbers is None or len(own) != 2 or len(numbers) != shape[0]:
        return None
    for transposed in (False, True):
        n_batches = own[0 if transposed else 1]
        of_column = _batches(numbers, n_batches, transposed) if own[1 if transposed else 0] == shape[0] else None
        if of_column is not None:
            batch = of_column if factor.batch is None else of_column[factor.batch]
            if len(batch) != shape[1]:
                return None
            unknown = UnknownOfBatches(
                name=name_of(source), variable_shape=own, shape=own, prior=read_hyper_prior(source)
            )
            return Multipliers(variable=unknown, batch=batch, transposed=transposed)
    return None


def _entries(source: Variable, factor: BatchFactor, own: tuple[int, ...]) -> Array | None:
    """(F, columns) which entry of the source stands in each place, -1 for ones; None where others do."""
    size = int(np.prod(own, dtype=int))
    evaluate = pytensor.function([source], factor.variable, mode=INTERPRETED, on_unused_input="ignore")
    entries = [np.asarray((2 + np.arange(size)) * probe, dtype=source.type.dtype) for probe in PROBES]
    first, second = (np.asarray(evaluate(values.reshape(own)), dtype=np.float64) for values in entries)
    if first.ndim != 2:
        return None
    is_one, at = (first == 1.0) & (second == 1.0), np.clip(first - 2.0, 0, size - 1).astype(np.int64)
    are_entries = (first == entries[0][at]) & (second == entries[1][at])
    if not np.all(is_one | are_entries):
        return None
    numbers = np.where(is_one, -1, at)
    return numbers.T if factor.transposed else numbers


def _batches(numbers: Array, n_batches: int, transposed: bool) -> Array | None:
    """(columns,) the batch of each, ``n_batches`` for a column of ones; None where a column holds anything else."""
    n_features = len(numbers)
    features = np.arange(n_features)[:, None]
    is_one = np.all(numbers == -1, axis=0)
    batch = numbers[0] // n_features if transposed else numbers[0] % n_batches
    expected = batch * n_features + features if transposed else features * n_batches + batch
    if not np.array_equal(np.where(is_one, -1, expected), numbers):
        return None
    return np.where(is_one, n_batches, batch).astype(np.int64)

"""What the engine of a stream is: the seam between :mod:`nmf_zoo.streaming.stream` and the algorithms.

As in :mod:`nmf_zoo.runtime.engine`, an engine is a file: its ``State`` (arrays, numbers and NamedTuples: it is saved
as it is), its ``Info``, its frozen options, and the functions gathered in a :class:`StreamEngine`::

    supports(structure, options) -> Verdict
    prepare(structure, options, workers) -> problem         read-only; of the structure without its data
    init(problem, columns, key, start) -> State             at the first columns, which are not consumed
    update(problem, state, columns, key) -> State, Info     one step: all columns of a mini-batch
    seen(state) -> int                                      columns so far
    track(problem, state) -> (n,) array                     what is followed along the stream, e.g. norms of components
    finish(problem, state) -> values, parameters            variables by name, and what goes to ``fit``
    activations(problem, state, columns, key) -> arrays     "mean" (K, n) of H given the columns and W of ``finish``;
                                                            "sd" (K, n), if it has that; of power spectrograms, with
                                                            True as a fifth argument, "share" (K, F, n) of the cells
    filtered(problem, state) -> arrays                      of chains: "mean" and "sd" (K, 1) of the last column's
                                                            activations given all columns so far
    widened(problem, state) -> State                        of engines whose state gets larger arrays with the first
                                                            missing cell: the state with these
    suits(structure) -> bool                                of engines with one name, who suits is asked first
    check(problem, state, columns) -> None                  of engines that can't take all columns: raises InputError
    takes_exposures(structure) -> Verdict                   whether columns may have exposures of their own

Columns come as the engine wants them: as :class:`Columns` of cells, or as
:class:`~nmf_zoo.kernels.powers.frame_gibbs.Frames`.

``update`` either finishes or leaves the state that it was given as it was: it may be interrupted anywhere. Draws are
keyed by ``key``, the stream's own, and ``columns.number``; the steps, by what is in the state. Nothing may depend on
how the stream was cut into blocks beyond the mini-batches themselves, nor on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from nmf_zoo.kernels.powers.frame_gibbs import Frames
from nmf_zoo.runtime.engine import CAN_RUN, Registration, Verdict
from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Factorisation

START, SWEEPS, ACTIVATIONS, ORDER = range(4)  # children of a stream's key


class Columns(NamedTuple):
    """Columns of X one after another, as lists of cells.

    Attributes
    ----------
    indptr : (n + 1,) int64
    rows : (cells,) int64, features, ascending within a column
    values : (cells,) float64
    complete : (n,) bool: the features not listed are zeros. Otherwise they are missing
    number : how many columns of the stream came before
    exposure : (n,) float64, what multiplies the means of each column beside what all columns share
    """

    indptr: Array
    rows: Array
    values: Array
    complete: Array
    number: int
    exposure: Array

    def part(self, first: int, last: int) -> Columns:
        """Columns first, ..., last - 1."""
        begin, end = self.indptr[first], self.indptr[last]
        inside = slice(begin, end)
        return Columns(
            self.indptr[first : last + 1] - begin,
            self.rows[inside],
            self.values[inside],
            self.complete[first:last],
            self.number + first,
            self.exposure[first:last],
        )

    @property
    def n_columns(self) -> int:
        return len(self.complete)


@dataclass(frozen=True, kw_only=True)
class StreamEngine(Registration):
    """An algorithm for streams; ``batch`` among its options is the number of columns of a step.

    Attributes
    ----------
    is_counts : values must be integers
    has_shares : ``activations`` also tells each component's share of every cell
    block : Columns or Frames
    prepare, init, update, seen, track, finish, activations, filtered, widened, suits, check, takes_exposures : see
        above
    """

    verb: Literal["stream"] = "stream"
    needs_data: ClassVar[bool] = False
    is_counts: bool
    block: type
    prepare: Callable[[Factorisation, Any, Workers], Any]
    init: Callable[..., Any]
    update: Callable[..., tuple[Any, Any]]
    seen: Callable[[Any], int]
    track: Callable[[Any, Any], Array]
    finish: Callable[[Any, Any], tuple[dict[str, Array], dict[str, Array]]]
    activations: Callable[..., dict[str, Array]]
    filtered: Callable[[Any, Any], dict[str, Array]] | None = None
    widened: Callable[[Any, Any], Any] = lambda problem, state: state
    suits: Callable[[Factorisation], bool] = lambda structure: True
    check: Callable[[Any, Any, Any], None] = lambda problem, state, columns: None
    takes_exposures: Callable[[Factorisation], Verdict]
    has_shares: bool = False


Block = Columns | Frames


def takes_exposures(structure: Factorisation) -> Verdict:
    """Whether an exposure of a column is all that it has of its own: not beside a background, which it divides."""
    if structure.likelihood.background is None:
        return CAN_RUN
    name = structure.likelihood.name
    return Verdict(f"{name} has a background, which a stream takes only where all columns have one exposure")


def columns_of(indptr: Any, rows: Any, values: Any, complete: Any, number: int, exposure: Any = 1.0) -> Columns:
    """Columns with the dtypes that kernels are compiled for; ``exposure`` (n,), or one for all."""
    return Columns(
        indptr=np.ascontiguousarray(indptr, np.int64),
        rows=np.ascontiguousarray(rows, np.int64),
        values=np.ascontiguousarray(values, np.float64),
        complete=np.ascontiguousarray(complete, np.bool_),
        number=number,
        exposure=np.array(np.broadcast_to(exposure, np.shape(complete)), np.float64),
    )

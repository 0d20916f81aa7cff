"""What every declaration is given: X, rank, mask, exposure, background, coords; checked before anything is declared."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import scipy.sparse

from nmf_zoo.errors import InputError, number_of, warn_caller
from nmf_zoo.labels import FORMER, hint_of, writable_labels
from nmf_zoo.memory import PER_LABEL, require_memory
from nmf_zoo.models.matrices import COLUMNS, ROWS, check_same_labels, read_labels
from nmf_zoo.models.observed import Observed, read_dense, read_listed
from nmf_zoo.models.offsets import Offset, check_offset, labels_of_offsets
from nmf_zoo.results.channels import MOST_CHANNELS, channels_of

Array = np.ndarray
Labels = dict[str, Array]
DIMS = (ROWS, "component", COLUMNS)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Checked arguments of a declaration.

    Attributes
    ----------
    shape : (F, N)
    rank : K
    observed : the observed cells, or None when nothing is observed
    exposure, background : as :mod:`nmf_zoo.models.offsets` has them, or None
    coords : labels of "feature", "component" and "obs"
    """

    shape: tuple[int, int]
    rank: int
    observed: Observed | None
    exposure: Offset | None
    background: Offset | None
    coords: Labels

    def model(self) -> pm.Model:
        """The model to add to: that of the enclosing ``with``, else a new one; with our coords."""
        model = current_model() or pm.Model()
        model.add_coords({dim: labels for dim, labels in self.coords.items() if dim not in model.coords})
        return model


def check_inputs(
    X: Any,
    rank: int,
    *,
    mask: Any = None,
    observed: str | None = None,
    exposure: Any = None,
    background: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    shape: tuple[int, int] | None = None,
    is_counts: bool = True,
    sparse: str = "all",
    is_low_rank: bool = False,
    in_time: bool = False,
) -> Inputs:
    """Check and normalise the arguments that all declarations share; see :func:`nmf_zoo.poisson_nmf` for them.

    ``is_counts``: the likelihood is Poisson's; otherwise X may hold integers of any size.
    ``sparse``: a sparse X is taken with "all" of its cells, with "stored" ones alone, or not at all ("none").
    ``is_low_rank``: more components than features are an error.
    ``in_time``: samples are times, of which any may be empty.
    """
    if observed not in (None, "stored"):
        raise InputError("observed", repr(observed), "None or 'stored'")
    if X is None:
        if mask is not None or observed is not None:
            raise InputError("X", "None with mask= or observed=", "data", "leave mask and observed out to simulate")
        cells, labels, found = None, labels_of_offsets(exposure, background), None
    elif scipy.sparse.issparse(X):
        cells, labels, found = *read_listed(X, mask, observed, is_counts), tuple(X.shape)
        check_sparse_accepted(sparse, cells)
    else:
        cells, labels, found = read_dense(X, mask, observed, is_counts)
    given = read_coords(coords)
    check_same_labels("mask", read_labels(mask)[1], {dim: given[dim] for dim in given.keys() - labels.keys()})
    labels = labels | given
    matrix_shape = check_shape(found, shape, labels)
    check_size(rank, matrix_shape)
    rank = check_rank(rank, matrix_shape, cells is not None, is_low_rank)
    inputs = Inputs(
        shape=matrix_shape,
        rank=rank,
        observed=cells,
        exposure=check_offset("exposure", exposure, matrix_shape, labels, cells, positive=True),
        background=check_offset("background", background, matrix_shape, labels, cells, positive=False),
        coords=check_labels(labels, (matrix_shape[0], rank, matrix_shape[1])),
    )
    note_repeats(labels)
    note_channels(labels)
    if in_time:
        note_times(labels)
    note_empty(cells, matrix_shape, in_time)
    return inputs


def check_sparse_accepted(accepted: str, cells: Observed) -> None:
    """A likelihood that sees the zeros takes a sparse X whose other cells are missing, if any."""
    if accepted == "none":
        raise InputError("X", "a sparse matrix", "a dense one: its likelihood sees every cell", "use X.toarray()")
    if accepted == "stored" and cells.is_complete:
        expected = "a dense one, or observed='stored' if only stored cells were observed: its likelihood sees zeros"
        raise InputError("X", "a sparse matrix", expected, "use X.toarray() if the others are zeros")


def note_channels(labels: Labels) -> None:
    """Channels of mutations in the columns are taken for samples, which nobody means."""
    columns = labels.get(COLUMNS, ())
    if len(columns) <= MOST_CHANNELS and channels_of(columns) is not None:
        note("X: the columns are channels of mutations, and features belong into the rows: transpose it")


def note_times(labels: Labels) -> None:
    """Chains go from column to column: dates in another order are times that jump to and fro."""
    times = labels.get(COLUMNS, np.empty(0))
    if times.dtype.kind in "mM" and np.any(np.diff(times.astype(np.int64)) < 0):
        note("X: the columns are times that are not in order, and a chain goes from column to column: sort them")


def note_empty(observed: Observed | None, shape: tuple[int, int], in_time: bool) -> None:
    """Rows and columns (not those in time) without a positive cell are accepted, and said once; a table of none is not.

    A series may be silent throughout, and new samples of known components have a table of their own.
    """
    if observed is None:
        return
    positive = np.nonzero(observed.values > 0)
    if not len(positive[0]) and not in_time and not _OF_NEW_SAMPLES.get():
        got = "no positive cell among those that were observed"
        raise InputError("X", got, "at least one: of zeros there is nothing to learn", "use X=None to simulate")
    n_unseen = [0, 0]
    if observed.cells is not None:
        positive = tuple(index[positive] for index in observed.cells)
    if observed.cells is not None and not (observed.is_sparse and observed.is_complete):
        n_unseen = [size - len(np.unique(index)) for size, index in zip(shape, observed.cells, strict=True)]
    counts = (np.bincount(index, minlength=size) for size, index in zip(shape, positive, strict=True))
    n_zero = [int(np.sum(count == 0)) - unseen for count, unseen in zip(counts, n_unseen, strict=True)]
    sides = 1 if in_time else 2
    for sizes, what in (
        (n_zero[:sides], "no positive observed cell; {} factors go towards 0"),
        (n_unseen[:sides], "no observed cell; the data say nothing of {} factors"),
    ):
        if any(sizes):
            note(f"X: {_sides_that_have(sizes, what)}")


def _sides_that_have(sizes: Sequence[int], what: str) -> str:
    """``1 feature and 2 samples have ...``"""
    found = [number_of(n, word) for n, word in zip(sizes, ("feature", "sample"), strict=False) if n]
    verb, their = ("has", "its") if sum(sizes) == 1 else ("have", "their")
    return f"{' and '.join(found)} {verb} {what.format(their)}"


def note(message: str) -> None:
    if not _OF_NEW_SAMPLES.get():
        warn_caller(message)


_OF_NEW_SAMPLES = ContextVar("_OF_NEW_SAMPLES", default=False)


@contextmanager
def new_samples() -> Iterator[None]:
    """What is declared here are a few new samples of known components: empty ones and a high rank are no matter."""
    token = _OF_NEW_SAMPLES.set(True)
    try:
        yield
    finally:
        _OF_NEW_SAMPLES.reset(token)


# -- sizes and labels --------------------------------------------------------------------------------------------


def check_shape(found: tuple[int, int] | None, shape: Any, labels: Labels) -> tuple[int, int]:
    """(F, N), from X, else from ``shape=``, else from the labels."""
    if shape is not None:
        is_pair = isinstance(shape, Sequence | np.ndarray) and len(shape) == 2
        if not is_pair or not all(is_count(size) for size in shape):
            raise InputError("shape", repr(shape), "two positive integers, (features, samples)")
        if found is not None and tuple(shape) != found:
            raise InputError("shape", repr(tuple(shape)), f"{found}, the shape of X", "leave it out")
        found = int(shape[0]), int(shape[1])
    if found is None and ROWS in labels and COLUMNS in labels:
        found = len(labels[ROWS]), len(labels[COLUMNS])
    if found is None:
        raise InputError("X", "None without a size", "shape=(F, N), or coords with 'feature' and 'obs'")
    return found


def is_count(size: Any) -> bool:
    return isinstance(size, numbers.Integral) and not isinstance(size, bool) and int(size) >= 1


def check_size(rank: Any, shape: tuple[int, int]) -> None:
    """The labels and one array of the weights fit into memory; activations of a stream never are there at once."""
    if not is_count(rank):
        return  # said below
    n_rows, n_columns, n_components = (float(min(int(size), 1 << 100)) for size in (*shape, rank))
    needed = PER_LABEL * (n_rows + n_columns + n_components) + 8.0 * n_rows * n_components
    if n_components > max(n_rows, n_columns):
        require_memory("rank", shown(rank), needed, "ask for fewer components")
    require_memory("shape", f"({shown(shape[0])}, {shown(shape[1])})", needed, "declare a smaller model")


def shown(count: int) -> str:
    """A positive integer; in words when it is too long to print."""
    return str(count) if int(count).bit_length() <= 64 else f"an integer of {int(count).bit_length()} bits"


def check_rank(rank: Any, shape: tuple[int, int], has_data: bool, is_low: bool) -> int:
    """K; with nothing observed the number of samples may mean nothing (a stream has no end), and is not compared."""
    if not is_count(rank):
        raise InputError("rank", repr(rank), "a positive integer")
    if is_low and rank > shape[0]:
        raise InputError("rank", repr(rank), f"at most {shape[0]}, the number of features of X", "lower rank")
    if has_data and rank > min(shape):
        note(f"rank: got {rank}, above min(features, samples) = {min(shape)}; allowed, but the factors are not unique")
    return int(rank)


def read_coords(coords: Any) -> Labels:
    """``coords=``: a dict of labels for some of our dims."""
    coords = {} if coords is None else coords
    if not isinstance(coords, Mapping) or not set(coords) <= set(DIMS):
        got = f"the keys {sorted(map(str, coords))}" if isinstance(coords, Mapping) else type(coords).__name__
        do = hint_of(FORMER) if isinstance(coords, Mapping) and FORMER in coords else ""
        raise InputError("coords", got, f"a dict with some of the keys {', '.join(DIMS)}", do)
    return {dim: np.asarray(labels) for dim, labels in coords.items() if labels is not None}


def check_labels(labels: Labels, sizes: tuple[int, int, int]) -> Labels:
    """All labels: those given, else those of the enclosing model, else 0, 1, 2, ..."""
    outer = getattr(current_model(), "coords", {})
    checked = {}
    if FORMER in outer and not {COLUMNS} & {*outer, *labels} and len(outer[FORMER] or ()) == sizes[2]:
        note(f"coords: the model's labels of {FORMER!r} are not taken for those of X; {hint_of(FORMER)}")
    for dim, size in zip(DIMS, sizes, strict=True):
        theirs = None if outer.get(dim) is None else np.asarray(outer[dim])
        ours = writable_labels(dim, labels[dim]) if dim in labels else np.arange(size) if theirs is None else theirs
        if ours.shape != (size,):
            raise InputError(
                "coords", f"{number_of(len(ours), 'label')} for {dim!r}", f"{size}, as many as X and rank have"
            )
        if theirs is not None and not np.array_equal(theirs, ours):
            do = "use the same labels, or declare the dim once"
            raise InputError("coords", f"labels for {dim!r} that differ from the model's", "the model's labels", do)
        checked[dim] = ours
    return checked


def note_repeats(labels: Labels) -> None:
    """What labels name is told apart by its place, so that one may be there twice; it is said once."""
    repeated = {dim: index[index.duplicated()] for dim, index in ((dim, pd.Index(own)) for dim, own in labels.items())}
    said = [
        f"{number_of(len(again), 'label')} of {dim!r} (the first is {str(again[0])!r})"
        for dim, again in repeated.items()
        if len(again)
    ]
    if said:
        note(
            f"coords: got repeated labels: {' and '.join(said)}; allowed, but tables and pictures can't tell them apart"
        )


def current_model() -> pm.Model | None:
    """The model of the enclosing ``with``, if there is one."""
    return pm.Model.get_context(error_if_none=False)

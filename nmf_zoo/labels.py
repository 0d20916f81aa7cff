"""Dims of X, and labels along them that come in: what every result can hold and every terminal can show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime
from numbers import Real
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError

OBS, FORMER = "obs", "sample"  # the dim of X's columns, and its name before: ArviZ has a dim of that name, of draws

# Control characters but tabs and line breaks: NUL ends a text in netCDF, others steer terminals. And halves of pairs,
# which UTF-8 doesn't have.
UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
WRITABLE = "text without control characters"
KINDS = (str, bytes, Real, datetime, np.datetime64)
INTEGERS = -(2**63), 2**64  # below the first and from the second on there is no integer that a file holds


def hint_of(word: object) -> str:
    """What to do about the former name of a dim; nothing about any other word."""
    return f"use {OBS!r}, as the dim of X's columns is called now" if word == FORMER else ""


def are_counted(labels: Any) -> bool:
    """Whether they are 0, 1, 2, ..., and say nothing."""
    return bool(np.array_equal(np.asarray(labels), np.arange(len(labels))))


def contradict(found: Any, expected: Any) -> bool:
    """Whether what goes by place has labels that say otherwise.

    0, 1, 2, ... say nothing; but the same numbers in another order do, beside them.
    """
    if np.array_equal(found, expected) or are_counted(found):
        return False
    return not are_counted(expected) or (len(found) == len(expected) and {*found} == {*expected})


def with_row_labels(table: Any) -> Any:
    """A DataFrame with rows named by its first column, where that is text and the rows are numbered alone.

    As catalogues are laid out: COSMIC's have a column "Type". This file knows no pandas; anything else is as it was.
    """
    index = getattr(table, "index", None)
    is_counted = type(index).__name__ == "RangeIndex" and hasattr(table, "set_index")
    if is_counted and table.shape[1] > 1 and table.dtypes.iloc[0].kind not in "biufc":
        return table.set_index(table.columns[0])
    return table


def find_unwritable(labels: Iterable[object]) -> int | None:
    """The place of the first label that has such characters."""
    for place, label in enumerate(labels):
        text = label.decode("latin-1") if isinstance(label, bytes) else label
        if isinstance(text, str) and UNWRITABLE.search(text):
            return place
    return None


def flat_labels(index: Any) -> np.ndarray:
    """Labels of a pandas index as a model has them; several levels become one text, since coords are flat."""
    if index.nlevels > 1:
        return np.asarray([" / ".join(map(str, label)) for label in index])
    return _of_one_kind(index.to_numpy())


def writable_labels(dim: str, labels: np.ndarray) -> np.ndarray:
    """Labels that a file can hold: objects that are no text, numbers or times, or of several kinds, become text."""
    labels = _of_one_kind(labels)
    if labels.dtype.kind in "biufmM":
        return labels
    bad = find_unwritable(labels)
    if bad is not None:
        got = f"the label {labels[bad]!r} of {dim!r} at place {bad}"
        raise InputError("coords", got, WRITABLE, "rename it: it could not be saved")
    return labels


def _of_one_kind(labels: np.ndarray) -> np.ndarray:
    """Text, numbers or times; xarray and files hold one kind along a dim."""
    if labels.dtype.kind != "O" or {*map(type, labels)} <= {str}:
        return labels
    labels = as_times(labels)
    is_text = labels.dtype.kind == "O" and (any(map(_is_odd, labels)) or len({*map(_kind_of, labels)}) > 1)
    return np.array([str(label) for label in labels]) if is_text else labels


def as_times(labels: np.ndarray) -> np.ndarray:
    """Dates, and pandas' periods by their beginnings, as NumPy's times, where all are such and none has a time zone."""
    if labels.dtype.kind != "O" or not len(labels) or any(_has_zone(label) for label in labels):
        return labels
    if all(isinstance(label, date) for label in labels):  # a datetime is a date
        return _in_nanoseconds(labels, labels)
    starts = [getattr(label, "start_time", None) for label in labels]  # this file knows no pandas
    is_period = all(hasattr(start, "to_datetime64") for start in starts)
    return _in_nanoseconds(labels, [start.to_datetime64() for start in starts]) if is_period else labels


def in_words(label: Any) -> str:
    """A label as text: times without the hours, minutes and fractions that are zero."""
    if isinstance(label, np.datetime64):
        return re.sub(r"\.0+$", "", str(label)).removesuffix("T00:00:00")
    return str(label)


def _in_nanoseconds(labels: np.ndarray, times: Iterable[object]) -> np.ndarray:
    """As files hold times; the labels as they are where these lie beyond 1678 to 2262."""
    try:
        found = np.array(list(times), dtype="datetime64[us]")
    except (TypeError, ValueError):
        return labels
    exact = found.astype("datetime64[ns]")
    return exact if np.array_equal(exact.astype("datetime64[us]"), found) else labels


def _has_zone(label: object) -> bool:
    return getattr(label, "tzinfo", None) is not None


def _is_odd(label: object) -> bool:
    """No text, number or time: dates, periods, times in a zone, tuples, None and integers of more than 64 bits."""
    if _has_zone(label):
        return True
    if isinstance(label, int):
        return not INTEGERS[0] <= label < INTEGERS[1]
    return not isinstance(label, KINDS)


def _kind_of(label: object) -> type | None:
    return next((kind for kind in KINDS if isinstance(label, kind)), None)

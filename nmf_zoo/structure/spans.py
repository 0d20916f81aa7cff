"""Cutting rows, cells, times or draws into pieces, in the one place that knows where pieces end.

Every number from ``first`` to ``stop - 1`` lies in exactly one piece, whatever the size: tests try lengths around it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nmf_zoo.structure.parameters import Array


def spans(stop: int, size: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """(begin, end) of consecutive pieces of ``size``; the last is what is left."""
    for begin in range(first, stop, size):
        yield begin, min(begin + size, stop)


def slices(stop: int, size: int, first: int = 0) -> Iterator[slice]:
    """The same as slices."""
    return (slice(*span) for span in spans(stop, size, first))


def even_bounds(length: int, n_pieces: int) -> Array:
    """(n_pieces + 1,) boundaries of pieces that are as long as each other, up to one; of few rows some are empty."""
    bounds = (np.arange(n_pieces + 1) * (length / n_pieces)).astype(int)  # np.linspace takes three times as long
    bounds[-1] = length
    return bounds

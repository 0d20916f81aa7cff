"""Lengths around a piece, for tests of whatever is cut into pieces: nothing may be left out or come twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pytest

EXACT = {"rtol": 1e-10, "atol": 1e-12}


class Place(NamedTuple):
    """size : of a piece; check : of a length."""

    size: int
    check: Callable[[int, pytest.MonkeyPatch], None]


def lengths_around(size: int) -> list[int]:
    """Where an end is forgotten or counted twice, if anywhere."""
    return sorted({1, max(size - 1, 1), size, size + 1, 2 * size + 1})


def of_places(places: Mapping[str, Place]) -> pytest.MarkDecorator:
    """Every place at all lengths around its pieces."""
    cases = [(place, n) for place in places for n in lengths_around(places[place].size)]
    return pytest.mark.parametrize(("place", "length"), cases)


def inputs(rows: int, columns: int, rank: int = 2):
    """Counts of at least 1 with factors (rows, K), (columns, K) beside the truth."""
    rng = np.random.default_rng(rows * 1000 + columns)
    W, Ht = rng.gamma(2.0, 1.0, (rows, rank)) + 0.1, rng.gamma(2.0, 1.0, (columns, rank)) + 0.1
    return rng.poisson(5.0 * W @ Ht.T) + 1.0, W * rng.uniform(0.5, 1.5, W.shape), Ht

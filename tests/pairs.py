"""Few cases in which each value of an option meets each of every other: what two of them do wrong together is seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Cases of one value of each axis: greedily those in which most pairs are new."""
    values = [list(axis) for axis in axes]
    cases = list(product(*(range(len(axis)) for axis in values)))
    missing = set().union(*map(met_in, cases))
    found = []
    while missing:
        best = max(cases, key=lambda case: len(met_in(case) & missing))
        missing -= met_in(best)
        found.append(tuple(axis[place] for axis, place in zip(values, best, strict=True)))
    return found


def met_in(case: Sequence[Any]) -> set[tuple[Any, ...]]:
    """The pairs of a case, each with the axes that its values are of."""
    return set(combinations(enumerate(case), 2))

"""Choices one after the other, from a source of numbers: random, replayed, or hypothesis's; simplest options first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any


class Picks:
    """``pick(options)`` is one of them. ``made`` : the numbers of what was chosen, which :func:`replayed` repeats."""

    def __init__(self, source: Callable[[int], int]):
        self.source = source
        self.made: list[int] = []

    def __call__(self, options: Sequence[Any]) -> Any:
        number = self.source(len(options))
        self.made.append(number)
        return options[number]

    def once_in(self, many: int) -> bool:
        return self(range(many)) == many - 1


def random_picks(*seed: int) -> Picks:
    """A case of its own for each seed, the same wherever it is made."""
    return Picks(Random(repr(seed)).randrange)


def replayed(made: Sequence[int]) -> Picks:
    """The same choices again; the first option where there are no more or not so many."""
    numbers = iter(made)
    return Picks(lambda size: min(next(numbers, 0), size - 1))


def simplest(made: Sequence[int], still_fails: Callable[[Picks], bool], tries: int = 400) -> list[int]:
    """Choices of which no single one can be made simpler, or left out, so that the case still fails."""
    made, at = list(made), 0
    while at < len(made) and tries > 0:
        shorter = [[*made[:at], *made[at + 1 :]]]
        lower = [
            [*made[:at], number, *made[at + 1 :]] for number in sorted({0, made[at] // 2, made[at] - 1}) if number >= 0
        ]
        for tried in [one for one in lower if one < made] + shorter:
            tries -= 1
            picks = replayed(tried)
            if still_fails(picks) and (len(picks.made), picks.made) < (len(made), made):
                made, at = picks.made, -1
                break
        at += 1
    return made

"""Checks of distributions say what they judged: how many draws, and whether they passed.

A test that passes although a check of its failed has planted an error, and the check has seen it. From this
``python -m tests.power`` makes the table of docs/statistical_tests.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple


class Judged(NamedTuple):
    """A check's name, the draws that it was given, and whether it passed."""

    check: str
    draws: int
    passed: bool


JUDGED: list[Judged] = []  # by the test that runs
TOO_FEW = ("gate 0", "gate 1, effective", "gate 1, independent", "gate 1, simulations", "gate 1: got a standard error")


def judges(draws: Callable[..., Any]) -> Callable[[Callable], Callable]:
    """A check of a distribution, which raises AssertionError; ``draws`` gives their number, from its arguments.

    Where the draws are too few to be judged, nothing was.
    """

    def decorate(check: Callable) -> Callable:
        @wraps(check)
        def judged(*args, **kwargs):
            said = None
            try:
                check(*args, **kwargs)
            except AssertionError as error:
                said = str(error)
                raise
            finally:
                if said is None or not said.startswith(TOO_FEW):
                    JUDGED.append(Judged(check.__name__, int(draws(*args, **kwargs)), said is None))

        return judged

    return decorate

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


def judges(draws: Callable[..., Any]) -> Callable[[Callable], Callable]:
    """A check of a distribution, which raises AssertionError; ``draws`` gives their number, from its arguments."""

    def decorate(check: Callable) -> Callable:
        @wraps(check)
        def judged(*args, **kwargs):
            passed = False
            try:
                check(*args, **kwargs)
                passed = True
            finally:
                JUDGED.append(Judged(check.__name__, int(draws(*args, **kwargs)), passed))

        return judged

    return decorate

"""The results of two trees, case by case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.golden.arrays import differences
from tests.golden.make import Outcome

SAME, DIFFERS, BOTH, NEW, GONE = "same bits", "differs", "refused by both", "new", "gone"
ONLY_BASE, ONLY_HEAD = "refused by the head", "refused by the base"
FAILED, BOTH_FAILED = "failed", "failed in both"
REFUSALS = ("UnsupportedModel", "InputError", "UnreadableModel", "RunFailed")


class Row(NamedTuple):
    """name : of the case; verdict, details : in words."""

    name: str
    verdict: str
    details: str = ""

    @property
    def is_bad(self) -> bool:
        return self.verdict in (DIFFERS, GONE, ONLY_BASE, FAILED)

    @property
    def is_dull(self) -> bool:
        return self.verdict in (SAME, BOTH)


def compare(base: Mapping[str, Outcome], head: Mapping[str, Outcome]) -> list[Row]:
    """One row for every case of either."""
    return [_row(name, base.get(name), head.get(name)) for name in dict.fromkeys((*base, *head))]


def _row(name: str, base: Outcome | None, head: Outcome | None) -> Row:
    if head is None:
        return Row(name, GONE)
    if isinstance(head, str) and not head.startswith(REFUSALS):
        return Row(name, BOTH_FAILED if base == head else FAILED, head)
    if base is None:
        return Row(name, NEW)
    if isinstance(base, str) or isinstance(head, str):
        return _refusal(name, base, head)
    found = differences(base, head)
    worst = max(found.values(), default=0.0)
    details = f"by {worst:.2g} at most in {', '.join(name or 'the values' for name in found)}" if found else ""
    return Row(name, DIFFERS if found else SAME, details)


def _refusal(name: str, base: Outcome, head: Outcome) -> Row:
    if isinstance(base, str) and isinstance(head, str):
        return Row(name, BOTH)
    if isinstance(head, str):
        return Row(name, ONLY_BASE, head)
    return Row(name, ONLY_HEAD, str(base))

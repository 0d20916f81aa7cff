"""The table of planted errors: ``python -m tests.power`` after a run of the statistical tests, at their reduced size.

Made from what the tests did (``tests/statistical/judged.py``). A check that failed in a test that passed has seen the
error that the test planted; the table says with how many draws, and how many the same check has in the tests of that
file that expect no error. Where none of these has as many, the tests would miss an error of that size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.durations import file_of, last

FOLDER = "tests/statistical/"


class Planted(NamedTuple):
    """A file's test of a planted error, the check that sees it, the draws it needed, those of the file's own tests."""

    file: str
    error: str
    check: str
    seen_at: int
    runs: list[int]

    @property
    def is_weaker(self) -> bool:
        """Whether the tests run this check with fewer draws than see the error."""
        return bool(self.runs) and max(self.runs) < self.seen_at


def planted() -> Iterator[Planted]:
    """Of every error that a test planted and a check has seen in the last runs."""
    found = {name: test["judged"] for name, test in sorted(last().items()) if test["judged"]}
    own: dict[tuple[str, str], list[int]] = {}
    for name, judged in found.items():
        for check, draws, passed in judged:
            if passed and all(one[2] for one in judged):
                own.setdefault((file_of(name), check), []).append(draws)
    for name, judged in found.items():
        seen: dict[str, int] = {}
        for check, draws, passed in judged:
            if not passed:
                seen[check] = max(draws, seen.get(check, 0))
        for check, draws in seen.items():
            file, _, error = name.partition("::")
            beside = [n for found, n, passed in judged if passed and found == check and n >= draws]  # of right draws
            yield Planted(file, error, check, draws, own.get((file, check), []) + beside)


def main() -> int:
    """Print the table, in Markdown; 1 if a test is weaker than the errors that it is held against."""
    rows = list(planted())
    print("| file | planted error | check | seen with | tests have |")
    print("|---|---|---|---:|---:|")
    for row in rows:
        runs = " to ".join(f"{n:,}" for n in sorted({min(row.runs), max(row.runs)})) if row.runs else ""
        error = row.error.removeprefix("test_").replace("_", " ").replace("|", "\\|")
        print(f"| {row.file.removeprefix(FOLDER)} | {error} | {row.check} | {row.seen_at:,} | {runs} |")
    weaker = [row for row in rows if row.is_weaker]
    for row in weaker:
        print(f"weaker: {row.file}::{row.error}", file=sys.stderr)
    return int(bool(weaker))


if __name__ == "__main__":
    sys.exit(main())

"""What tests cost in CPU seconds, kept by every run of them; ``python -m tests.durations`` lists the costliest.

CPU and not wall time: the same on a busy machine, and what the workers divide among them. Processes that a test starts
and waits for are its own. Beside it stands which checks of distributions a test made, for ``python -m tests.power``.

``tests/costs.json`` holds what counts of a whole run with kernels compiled before, written by
``python -m tests.durations --keep``: with it files begin in the order of their costs, so that workers end together,
`make test` leaves tests that are not quick to `make test-rest` and `make test-further`, and
tests/unit/test_durations.py asks of every test above ``LONG`` seconds why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from tests.statistical.judged import JUDGED

# What is known of each test from the last run that it was in here.
LAST = Path(os.environ.get("NMF_ZOO_TEST_COSTS", Path(__file__).parents[1] / "build" / "tests.json"))
COSTS = Path(__file__).with_name("costs.json")
QUICK, LONG = 0.5, 5.0  # CPU seconds: less is quick, and more has to say why
# Pages compile a minute of kernels that notebooks, and all files with Gibbs of counts, call as well. The other worker
# has files meanwhile that call none of them: both would compile what neither finds.
PAGES_AND_CHAINS = (
    "tests/unit/test_readme.py",
    "tests/statistical/test_smooth_gibbs.py",
    "tests/unit/test_smooth_activations.py",
    "tests/statistical/test_bgar_gibbs.py",
    "tests/statistical/test_particle_gibbs_posterior.py",
)
# The other line runs no pages. Two files have all engines on all models there, in other orders: one first those that
# draw, and compile for the longest, the other those that fit, and pictures of fits are before it. Side by side, each
# finds in the end what the other compiled.
ENGINES_IN_TWO_ORDERS = (
    "tests/contract/test_golden.py",
    "tests/unit/test_pictures.py",
    "tests/contract/test_engines.py",
)
AT_FIRST = PAGES_AND_CHAINS if sys.version_info < (3, 12) else ENGINES_IN_TWO_ORDERS  # lines as in .ci/run


def cpu_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    return sum(os.times()[:4])


class Recorder:
    """Adds to each report what its phase cost and judged, and keeps them where the reports of all workers arrive."""

    def __init__(self, keeps: bool):
        self.keeps = keeps
        self.found: dict[str, dict[str, Any]] = {}
        self.begin = 0.0

    def pytest_runtest_logstart(self):
        self.begin = cpu_seconds()

    def pytest_runtest_makereport(self, item):
        now = cpu_seconds()
        item.user_properties[:] = [("cpu", now - self.begin), ("judged", [tuple(one) for one in JUDGED])]
        JUDGED.clear()
        self.begin = now

    def pytest_runtest_logreport(self, report):
        phase = {"cpu": 0.0, "judged": [], **dict(report.user_properties)}
        found = self.found.setdefault(report.nodeid, {"cpu": 0.0, "judged": []})
        found["cpu"] = round(found["cpu"] + phase["cpu"], 3)
        found["judged"] = found["judged"] + phase["judged"]

    def pytest_sessionfinish(self):
        if self.keeps and self.found:
            LAST.parent.mkdir(parents=True, exist_ok=True)
            LAST.write_text(json.dumps(last() | self.found, indent=0), encoding="utf-8")


def last() -> dict[str, dict[str, Any]]:
    """Of each test its ``cpu`` and what it ``judged``; {} before the first run."""
    return json.loads(LAST.read_text(encoding="utf-8")) if LAST.exists() else {}


@cache
def kept() -> dict[str, dict[str, float]]:
    """What ``tests/costs.json`` holds: CPU seconds of ``files``, and of the ``tests`` that are not ``QUICK``."""
    return json.loads(COSTS.read_text(encoding="utf-8"))


def file_of(name: str) -> str:
    """Of a test's whole name."""
    return name.partition("::")[0]


def costliest_first(names: Iterable[str]) -> list[int]:
    """An order: files ``AT_FIRST``, then others by what they cost, unknown ones before; tests of a file as they are."""
    costs, files = kept()["files"], [file_of(name) for name in names]
    place = {file: number - len(AT_FIRST) for number, file in enumerate(AT_FIRST)}
    return sorted(range(len(files)), key=lambda i: (place.get(files[i], 0), -costs.get(files[i], inf), files[i], i))


def main() -> None:
    """List the costliest tests and files of the last runs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--most", type=int, default=30, help="how many tests and files (default 30)")
    parser.add_argument("--keep", action="store_true", help="write tests/costs.json; after a whole run from cache")
    given = parser.parse_args()
    tests = Counter({name: found["cpu"] for name, found in last().items()})
    files: Counter[str] = Counter()
    for name, cost in tests.items():
        files[file_of(name)] += cost
    for what, costs in (("tests", tests), ("files", files)):
        print(f"CPU seconds of the costliest of {len(costs):,} {what}, of {sum(costs.values()):,.0f} s in all")
        for name, cost in costs.most_common(given.most):
            print(f"{cost:8.2f}  {name}")
    if given.keep:
        found = {
            "files": {name: round(cost) for name, cost in sorted(files.items())},
            "tests": {name: round(cost, 1) for name, cost in sorted(tests.items()) if cost > QUICK},
        }
        COSTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

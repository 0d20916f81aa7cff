"""``python -m tests.property.files --cases 500 --seed 0``: a table, and the smallest failure of each reader."""

from __future__ import annotations

import argparse
import sys
import time

from tests.property.files.readers import PLANTED, READERS
from tests.property.files.run import run

OF_OTHERS = ("nc without seal",)  # of which one damaged file in some hundreds keeps HDF5 itself busy for ever


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.files", description=__doc__)
    parser.add_argument("--cases", type=int, default=500, help="of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", choices=[*READERS, *PLANTED], help=f"default: all but {OF_OTHERS}")
    parser.add_argument("--only", type=int, help="one case")
    arguments = parser.parse_args()
    first, cases = (0, arguments.cases) if arguments.only is None else (arguments.only, 1)
    print(f"{'reader':12}{'tried':>8}{'read':>8}{'refused':>9}{'failed':>8}{'seconds':>9}")
    failed = []
    for reader in arguments.reader or [name for name in READERS if name not in OF_OTHERS]:
        begin = time.monotonic()
        report = run(reader, cases, arguments.seed, first)
        counts = f"{report.tried:8}{report.read:8}{report.refused:9}{len(report.failures):8}"
        print(f"{reader:12}{counts}{time.monotonic() - begin:9.1f}", flush=True)
        failed += [report] if report.failures else []
    for report in failed:
        print(f"\n{report.smallest()}")
        for what, count in sorted(kinds(report).items(), key=lambda pair: -pair[1]):
            print(f"    {count} x {what}")
    return 1 if failed else 0


def kinds(report) -> dict[str, int]:
    found: dict[str, int] = {}
    for failure in report.failures:
        what = failure.what[:240]
        found[what] = found.get(what, 0) + 1
    return found


if __name__ == "__main__":
    sys.exit(main())

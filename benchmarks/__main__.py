"""Print the benchmark table: ``python -m benchmarks [--quick] [iterations] [mixing] [memory]``."""

from __future__ import annotations

import argparse
import os
import platform
import warnings
from importlib import import_module
from importlib.metadata import version

PARTS = ("iterations", "mixing", "memory")
PACKAGES = ("nmf_zoo", "numba", "numpy", "scipy", "pymc", "arviz", "scikit-learn", "nutpie")


def main() -> None:
    """Run the parts asked for and print one Markdown row for each measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"which parts, of {PARTS}; default all")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast it is")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # notes on empty rows and short runs would break into the table
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    print(f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores\n")
    print("| work | ours | peer | ratio |\n|---|---|---|---|", flush=True)
    for part in arguments.parts or PARTS:
        for row in import_module(f"benchmarks.{part}").rows(arguments.quick):
            print("| " + " | ".join(row[column] for column in ("work", "ours", "peer", "ratio")) + " |", flush=True)


if __name__ == "__main__":
    main()

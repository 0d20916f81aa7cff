"""Make golden results of the tree around, any commit's: ``python -m tests.golden.make FILE [NAME...]``."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Outcome = dict[str, np.ndarray] | str  # arrays by name, or what was said instead of a result


def outcome(call: Callable[[], Any]) -> Outcome:
    """Arrays by name, or the refusal or failure in one line."""
    from tests.golden.arrays import arrays_of

    try:
        return arrays_of(call())
    except Exception as error:  # a failure is an outcome to compare, like any other
        return f"{type(error).__name__}: {error}".replace("\n", " ")


def main(file: str, wanted: Iterable[str]) -> None:
    import nmf_zoo
    from tests.golden.recipes import cases

    if Path.cwd() not in Path(nmf_zoo.__file__).parents:
        raise SystemExit(f"nmf_zoo of {nmf_zoo.__file__} was imported, not that of {Path.cwd()}")
    chosen = [(name, call) for name, call in cases() if not wanted or any(part in name for part in wanted)]
    made: dict[str, Outcome] = {}
    for number, (name, call) in enumerate(chosen, 1):
        if sys.stderr.isatty():
            end = "\r" if number < len(chosen) else "\n"
            print(f"{number} of {len(chosen)}: {name:60.60}", end=end, file=sys.stderr, flush=True)
        made[name] = outcome(call)
    Path(file).write_bytes(pickle.dumps(made))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2:])

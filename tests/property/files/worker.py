"""The process that reads damaged files: it says before each case which it is, and after it what came of it."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np

from tests.property.files.readers import PLANTED, READERS, Reader

MEMORY = 3 << 30  # bytes beyond what the process has when it begins
OURS = str(Path(__file__).parents[3] / "nmf_zoo")
SLIPS = (TypeError, AttributeError, NameError, IndexError, AssertionError, ZeroDivisionError)


def main() -> None:
    name, seed, first, stop, folder = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
    reader = (READERS | PLANTED)[name]
    with tempfile.TemporaryDirectory() as scratch:
        reader.write(Path(scratch, f"warm{reader.suffix}"), np.random.default_rng(0))  # imports, before the limit
    limit_memory()
    for case in range(first, stop):
        random = np.random.default_rng([seed, list(READERS | PLANTED).index(name), case])
        path = folder / f"{case}{reader.suffix}"
        say(case=case, how=reader.write(path, random), size=size_of(path))
        say(case=case, failure=attempt(reader, path))


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def attempt(reader: Reader, path: Path) -> str | None:
    """ "" when it was read, None when it was refused as it should be, else what is wrong."""
    from nmf_zoo.errors import InputError, NmfZooWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", NmfZooWarning)
        try:
            reader.read(path)
        except InputError as error:
            return complaint(error)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})"
    return ""


def complaint(error: Exception) -> str | None:
    """What is wrong with a refusal: more than a line, or a slip of our own that was taken for damage."""
    if len(str(error).splitlines()) != 1:
        return f"a message of several lines: {str(error)!r}"
    cause = error.__cause__
    if isinstance(cause, SLIPS):
        where = traceback.extract_tb(cause.__traceback__)[-1]
        if where.filename.startswith(OURS):
            return f"a slip of ours, {type(cause).__name__}: {cause} ({where.filename}:{where.lineno}) as {error}"
    return None


if __name__ == "__main__":
    main()

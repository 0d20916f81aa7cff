"""Memory between the stages of a run: what one stage freed must not add to what the next one needs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from nmf_zoo.structure import Factorisation

WORTHWHILE = 1 << 18  # cells of data and factors together, 2 MiB


def _find_trim() -> Callable[[int], int] | None:
    """glibc's ``malloc_trim``; None with other C libraries."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


_trim = _find_trim()


def release(structure: Factorisation) -> None:
    """Give freed memory back to the system: glibc keeps it for the thread that had it, and the next stage has others.

    Small problems leave nothing behind that is worth the search, which takes some milliseconds in a large process.
    Does nothing where the C library has no such call.
    """
    cells = 0 if structure.data is None else structure.data.values.size
    if _trim is not None and cells + structure.rank * sum(structure.shape) >= WORTHWHILE:
        _trim(0)

"""What a run needs against what the machine has, asked before it starts."""

from __future__ import annotations

import os

from nmf_zoo.errors import InputError

PER_RUN = 10_000.0  # bytes of a chain or restart beside its numbers: threads, seeds, statistics
PER_LABEL = 100.0  # of a label of a feature, component or sample, which PyMC keeps in several lists
MOST_RANKS = 10_000  # of a search


def require_memory(name: str, got: str, needed: float, do: str) -> None:
    """Refuse what needs more bytes than this machine can give."""
    there = _physical_memory()
    if needed > 0.8 * there:
        size = f"{needed / 2**30:.1f} GiB" if needed < 2**80 else "more than any machine has"
        expected = f"less than 80% of the memory, {there / 2**30:.1f} GiB"
        raise InputError(name, f"{got}, {size}", expected, do)


def _physical_memory() -> float:
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not hasattr(os, "sysconf") or any(name not in os.sysconf_names for name in names):
        return float("inf")
    return float(os.sysconf(names[0])) * os.sysconf(names[1])

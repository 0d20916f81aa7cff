"""The 96 channels of single-base substitutions, in whichever of the usual spellings: ``A[C>A]A``, ``ACA>AAA``, ...

A channel is a pyrimidine that mutates, with the bases beside it (Alexandrov et al. 2013). The field orders channels by
the substitution, then by the base before, then by the one after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

import numpy as np

SUBSTITUTIONS = ("C>A", "C>G", "C>T", "T>A", "T>C", "T>G")
SPELLINGS = (
    re.compile(r"(?P<before>[ACGT])\[(?P<old>[CT])>(?P<new>[ACGT])\](?P<after>[ACGT])"),  # A[C>A]A
    re.compile(r"(?P<before>[ACGT])(?P<old>[CT])(?P<after>[ACGT])>(?P=before)(?P<new>[ACGT])(?P=after)"),  # ACA>AAA
    re.compile(r"(?P<before>[ACGT])(?P<old>[CT])(?P<after>[ACGT])>(?P<new>[ACGT])"),  # ACA>A
    re.compile(r"(?P<old>[CT])>(?P<new>[ACGT])[ :_,]*(?P<before>[ACGT])([CT.\-])(?P<after>[ACGT])"),  # C>A ACA, C>A_A.A
)
SBS96 = tuple(f"{a}[{change}]{b}" for change, a, b in product(SUBSTITUTIONS, "ACGT", "ACGT"))


def as_channel(label: object) -> str | None:
    """``A[C>A]A``, whatever its spelling; None for anything else."""
    for spelling in SPELLINGS:
        if found := spelling.fullmatch(str(label).strip().upper()):
            name = f"{found['before']}[{found['old']}>{found['new']}]{found['after']}"
            return name if name in SBS96 else None
    return None


def as_channels(labels: Iterable[object]) -> list[str] | None:
    """All labels as channels, each once; None where one is none."""
    found = [as_channel(label) for label in labels]
    names = [name for name in found if name is not None]
    return names if len(names) == len(found) == len(set(names)) else None


def order_of_channels(labels: Iterable[object]) -> np.ndarray | None:
    """Where the 96 channels stand among the labels; None unless these are all of them."""
    names = as_channels(labels)
    return None if names is None or len(names) != len(SBS96) else np.array([names.index(name) for name in SBS96])

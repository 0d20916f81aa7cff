"""The channels of mutational catalogues, SBS96, DBS78 and ID83, in whichever of the usual spellings.

A table is recognised by its labels. Each has one order and one set of colours in the field: single bases by the
substitution, then by the base before and after (Alexandrov et al. 2013); doublets by the pair that is lost, then by the
new one; insertions and deletions by their length, the base or the repeat, and how often it is there (Alexandrov et al.
2020, The repertoire of mutational signatures in human cancer).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np


@dataclass(frozen=True)
class ChannelGroup:
    """Neighbouring channels of one colour.

    Attributes
    ----------
    name : as it stands above them
    colour : hexadecimal
    channels, ticks : their names, and the few letters below an axis
    over : what several groups have in common, "" where nothing
    """

    name: str
    colour: str
    channels: tuple[str, ...]
    ticks: tuple[str, ...]
    over: str = ""


@dataclass(frozen=True)
class Channels:
    """A table of channels.

    Attributes
    ----------
    name : "sbs96"
    groups : in the field's order
    read : a label in capitals -> the channel that it spells, or anything else
    examples : two spellings
    """

    name: str
    groups: tuple[ChannelGroup, ...]
    read: Callable[[str], str | None]
    examples: tuple[str, str]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All channels in the field's order."""
        return tuple(name for group in self.groups for name in group.channels)

    @cached_property
    def ticks(self) -> tuple[str, ...]:
        return tuple(tick for group in self.groups for tick in group.ticks)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    def channel(self, label: object) -> str | None:
        """The channel that a label spells; None for anything else."""
        found = self.read(str(label).strip().upper())
        return found if found in self._known else None

    def channels(self, labels: Iterable[object]) -> list[str] | None:
        """Of all labels, each channel once; None where one is none."""
        found = [self.channel(label) for label in labels]
        names = [name for name in found if name is not None]
        return names if names and len(names) == len(found) == len(set(names)) else None

    def order(self, labels: Iterable[object]) -> np.ndarray | None:
        """Where the channels stand among the labels; None unless these are all of them."""
        names = self.channels(labels)
        if names is None or len(names) != len(self.names):
            return None
        at = {name: place for place, name in enumerate(names)}
        return np.array([at[name] for name in self.names])


def _patterns(*patterns: str) -> Callable[[str], re.Match[str] | None]:
    compiled = [re.compile(pattern) for pattern in patterns]
    return lambda label: next((found for each in compiled if (found := each.fullmatch(label))), None)


# -- single bases: A[C>A]A ---------------------------------------------------------------------------------------------

_SINGLE = _patterns(
    r"(?P<before>[ACGT])\[(?P<old>[CT])>(?P<new>[ACGT])\](?P<after>[ACGT])",  # A[C>A]A
    r"(?P<before>[ACGT])(?P<old>[CT])(?P<after>[ACGT])>(?P=before)(?P<new>[ACGT])(?P=after)",  # ACA>AAA
    r"(?P<before>[ACGT])(?P<old>[CT])(?P<after>[ACGT])>(?P<new>[ACGT])",  # ACA>A
    r"(?P<old>[CT])>(?P<new>[ACGT])[ :_,]*(?P<before>[ACGT])((?P=old)|[.\-])(?P<after>[ACGT])",  # C>A ACA, C>A_A.A
    r"(?P<old>[CT])(?P<new>[ACGT]) (?P<before>[ACGT])[.\-](?P<after>[ACGT])",  # CA A.A
)
_SUBSTITUTIONS = {
    "C>A": "#1ebff0",
    "C>G": "#050708",
    "C>T": "#e62725",
    "T>A": "#9b9a9a",
    "T>C": "#86b74a",
    "T>G": "#d68f8c",
}


def _read_single(label: str) -> str | None:
    found = _SINGLE(label)
    return None if found is None else f"{found['before']}[{found['old']}>{found['new']}]{found['after']}"


def _single(change: str, colour: str) -> ChannelGroup:
    sides = list(product("ACGT", "ACGT"))
    names, ticks = (f"{a}[{change}]{b}" for a, b in sides), (f"{a}{change[0]}{b}" for a, b in sides)
    return ChannelGroup(change, colour, tuple(names), tuple(ticks))


SBS96 = Channels(
    "sbs96",
    tuple(_single(change, colour) for change, colour in _SUBSTITUTIONS.items()),
    _read_single,
    ("A[C>A]A", "ACA>AAA"),
)

# -- doublets: AC>CA ---------------------------------------------------------------------------------------------------

_DOUBLET = _patterns(r"(?P<old>[ACGT]{2})[>:_\-]?(?P<new>[ACGT]{2})")  # AC>CA, ACCA
_DOUBLETS = {
    "AC": ("#03bdef", "CA CG CT GA GG GT TA TG TT"),
    "AT": ("#0366cc", "CA CC CG GA GC TA"),
    "CC": ("#a3cf63", "AA AG AT GA GG GT TA TG TT"),
    "CG": ("#026602", "AT GC GT TA TC TT"),
    "CT": ("#ff9999", "AA AC AG GA GC GG TA TC TG"),
    "GC": ("#e42926", "AA AG AT CA CG TA"),
    "TA": ("#ffb266", "AT CG CT GC GG GT"),
    "TC": ("#ff8001", "AA AG AT CA CG CT GA GG GT"),
    "TG": ("#cc99ff", "AA AC AT CA CC CT GA GC GT"),
    "TT": ("#4c0199", "AA AC AG CA CC CG GA GC GG"),
}


def _read_doublet(label: str) -> str | None:
    found = _DOUBLET(label)
    return None if found is None else f"{found['old']}>{found['new']}"


def _doublet(old: str, colour: str, new: tuple[str, ...]) -> ChannelGroup:
    return ChannelGroup(f"{old}>NN", colour, tuple(f"{old}>{pair}" for pair in new), new)


DBS78 = Channels(
    "dbs78",
    tuple(_doublet(old, colour, tuple(new.split())) for old, (colour, new) in _DOUBLETS.items()),
    _read_doublet,
    ("AC>CA", "ACCA"),
)

# -- insertions and deletions: 1:Del:C:0 -------------------------------------------------------------------------------

_INDEL = _patterns(
    r"(?P<size>[1-5])\+?[:_](?P<kind>DEL|INS)[:_](?P<unit>[CTRM])[:_](?P<times>[0-5])\+?",  # 1:Del:C:0
    r"(?P<kind>DEL|INS)[:_](?P<unit>C|T|REPEATS|MH)[:_](?P<size>[1-5])\+?[:_](?P<times>[0-5])\+?",  # DEL_C_1_0
)
_OF_UNITS = {"REPEATS": "R", "MH": "M"}
_TIMES, _LENGTHS = range(6), (2, 3, 4, 5)
_SINGLE_INDELS = {
    ("DEL", "C"): "#fdbe6f",
    ("DEL", "T"): "#ff8002",
    ("INS", "C"): "#b0dd8b",
    ("INS", "T"): "#36a12e",
}
_LONG_INDELS = {
    ("DEL", "R"): ("#fdcab5", "#fc8a6a", "#f14432", "#bc191a"),
    ("INS", "R"): ("#d0e1f2", "#94c4df", "#4a98c9", "#1764ab"),
    ("DEL", "M"): ("#e2e2ef", "#b6b6d8", "#8683bd", "#62409b"),
}
_WORDS = {"DEL": "deletion", "INS": "insertion"}


def _read_indel(label: str) -> str | None:
    found = _INDEL(label)
    if found is None:
        return None
    return f"{found['size']}:{found['kind'].title()}:{_OF_UNITS.get(found['unit'], found['unit'])}:{found['times']}"


def _indel(size: int, kind: str, unit: str, colour: str) -> ChannelGroup:
    """By how often the unit is there besides, or by the length of the homology, which is shorter than the deletion."""
    times, over = _TIMES, f"1 bp {_WORDS[kind]}" if size == 1 else f"{_WORDS[kind]} of repeats"
    if unit == "M":
        times, over = range(1, size if size < _LENGTHS[-1] else 6), "microhomology"
    name = unit if size == 1 else f"{size}+" if size == 5 else str(size)
    ticks = tuple("5+" if n == 5 else str(n) for n in times)
    return ChannelGroup(name, colour, tuple(f"{size}:{kind.title()}:{unit}:{n}" for n in times), ticks, over)


ID83 = Channels(
    "id83",
    (
        *(_indel(1, kind, unit, colour) for (kind, unit), colour in _SINGLE_INDELS.items()),
        *(
            _indel(size, kind, unit, colour)
            for (kind, unit), colours in _LONG_INDELS.items()
            for size, colour in zip(_LENGTHS, colours, strict=True)
        ),
    ),
    _read_indel,
    ("1:Del:C:0", "DEL_C_1_0"),
)

# ----------------------------------------------------------------------------------------------------------------------

CHANNELS = {table.name: table for table in (SBS96, DBS78, ID83)}
MOST_CHANNELS = max(len(table.names) for table in CHANNELS.values())


def channels_of(labels: Iterable[object]) -> Channels | None:
    """The table that all of the labels are channels of; None of others."""
    found = list(labels)
    return next((table for table in CHANNELS.values() if table.channels(found) is not None), None)


def same_words(ours: Iterable[object], theirs: Iterable[object]) -> tuple[list[str], list[str]] | None:
    """Both lists of labels as channels of one table; None where either holds something else."""
    own, others = list(ours), list(theirs)
    table = channels_of(own)
    names = None if table is None else table.channels(own)
    of_others = None if table is None else table.channels(others)
    return None if names is None or of_others is None else (names, of_others)

"""What can be set: the arguments of every model, engine, method and run, as the command line offers them.

PyMC and numba take seconds to import and ``--help`` must answer at once. So names, types and explanations are written
down once, from the registries (``python -m nmf_zoo.interfaces.cli.inventory``), into a file that is read here; a test
holds the two together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Argument:
    """A keyword argument: its name, annotation and default as written, and the first line of its explanation."""

    name: str
    annotation: str
    default: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Entry:
    """A model, engine or run function: its summary line and its arguments by name; ``verb`` is an engine's.

    ``is_whole`` : a sampler that makes its draws all at once, so that they can't go to disk while they are made
    """

    name: str
    summary: str
    arguments: dict[str, Argument]
    verb: str = ""
    is_whole: bool = False


def models() -> dict[str, Entry]:
    """The builders, by their name on the command line."""
    return _all()["models"]


def engines() -> dict[str, Entry]:
    """What samples or fits."""
    return _all()["engines"]


def methods() -> dict[str, Entry]:
    """What judges ranks."""
    return _all()["methods"]


def runs() -> dict[str, Entry]:
    """The verbs ``sample`` and ``fit``; ``fit`` leaves the arguments they share to the explanations of ``sample``."""
    return _all()["runs"]


@cache
def _all() -> dict[str, dict[str, Entry]]:
    return {
        kind: {key: _entry(**entry) for key, entry in entries.items()}
        for kind, entries in json.loads(FILE.read_text(encoding="utf-8")).items()
    }


def _entry(arguments: list[list[str]], **words: Any) -> Entry:
    return Entry(arguments={one[0]: Argument(*one) for one in arguments}, **words)

"""What decides the draws of a run, as flat facts: two runs with equal facts draw the same, bit for bit.

Short values are written out, so that a difference can be named; arrays stand as type, shape and a digest of the cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from importlib.metadata import version
from types import CodeType
from typing import Any

import numpy as np

from nmf_zoo import __version__
from nmf_zoo.runtime.engine import Engine
from nmf_zoo.structure import Array, Factorisation

DRAWS = 2  # raise it when draws change within a version of the package
DIGEST = re.compile(r"\w+ \([\d, ]*\) [0-9a-f]{16}")  # as _digest writes it
LABELS = ("dims", "coords")  # of a structure: draws don't depend on them


def run_facts(engine: Engine, options: Any, structure: Factorisation, **run: Any) -> dict[str, str]:
    """The facts of a run; ``run`` holds its other arguments: lengths, seed, starts."""
    versions = {name: version(name) for name in ("numpy", "scipy", "numba")}
    data = {name: getattr(structure, name) for name in ("data", "imputed", "cells")}
    model = {field.name: getattr(structure, field.name) for field in fields(structure) if field.name not in LABELS}
    known = {
        "engine": engine.name,
        "options": options,
        **run,
        "data": data.pop("data"),
        "model": {name: value for name, value in model.items() if name not in ("data", *data)} | data,
        "version": {"nmf_zoo": f"{__version__} ({DRAWS})"} | versions,
    }
    return dict(_flat("", known))


def function_fact(function: Any) -> str:
    """What a function of the user's does, as far as its own code tells; what it calls or looks up may change unseen."""
    code = getattr(function, "__code__", None)
    return "own" if code is None else f"own, of code {blake2b(_steps(code).encode(), digest_size=8).hexdigest()}"


def _steps(code: CodeType) -> str:
    """The instructions of a function and of those within it, wherever they stand; sets in an order that stays."""
    constants = [
        _steps(value)
        if isinstance(value, CodeType)
        else repr(sorted(map(repr, value)))
        if isinstance(value, frozenset)
        else repr(value)
        for value in code.co_consts
    ]
    return repr((code.co_code, code.co_names, constants))


def differences(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs, in words: ``tune was 500, now 1000``, or ``data.values has other cells``."""
    return [
        f"{name} {_change(stored.get(name, 'absent'), now.get(name, 'absent'))}"
        for name in {**stored, **now}
        if stored.get(name) != now.get(name)
    ]


def _change(before: str, after: str) -> str:
    same_array = DIGEST.fullmatch(before) and before.rpartition(" ")[0] == after.rpartition(" ")[0]
    return "has other cells" if same_array else f"was {before}, now {after}"


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inside)
    elif isinstance(value, tuple | list) and not all(isinstance(item, int | float | str) for item in value):
        for position, inside in enumerate(value):
            yield from _flat(f"{name}[{position}]", inside)
    else:
        yield name, _digest(value) if isinstance(value, np.ndarray) and value.size > 1 else _plain(value)


def _plain(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.ndarray | np.generic) and value.size == 1 else repr(value)


def _digest(array: Array) -> str:
    cells = np.ascontiguousarray(array)
    content = repr(cells.tolist()).encode() if cells.dtype.hasobject else cells.data.cast("B")
    return f"{array.dtype} {array.shape} {blake2b(content, digest_size=8).hexdigest()}"

"""Whatever a call gave as plain arrays by name, their digest, and how two of them differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr

DERIVED = ("divergence", "components")  # names of variables and groups that the rest decides
TIMES = ("seconds", "time", "perf_counter")  # parts of the names of what no seed decides


def arrays_of(result: Any, name: str = "") -> dict[str, np.ndarray]:
    """Every array of every group by its path; of the attributes of the whole the numbers. Without times and labels.

    Nor what follows from the rest: it may come to results that are otherwise as they were.
    """
    parts = dict(_parts(result))
    if not parts:
        return {name: _plain(result)}
    if not name:
        parts |= {key: value for key, value in getattr(result, "attrs", {}).items() if isinstance(value, Real)}
    found: dict[str, np.ndarray] = {}
    for part, value in parts.items():
        if part not in DERIVED and not any(word in part for word in TIMES):
            found |= arrays_of(value, f"{name}/{part}" if name else part)
    return found


def _parts(result: Any) -> Iterator[tuple[str, Any]]:
    """What a result is made of: groups, variables. An array has no parts."""
    if isinstance(result, xr.Dataset):
        yield from ((str(name), variable.to_numpy()) for name, variable in result.data_vars.items())
    elif isinstance(result, xr.DataTree):
        yield from _parts(result.to_dataset())
        yield from result.children.items()
    elif isinstance(result, Mapping):
        yield from result.items()
    elif hasattr(result, "groups"):  # ArviZ 0.x
        yield from ((name, result[name]) for name in result.groups())


def _plain(values: Any) -> np.ndarray:
    """An array whose bytes say everything: numbers as they are, all else as text."""
    array = np.asarray(values)
    return np.array(array if array.dtype.kind in "biufc" else array.astype("U"), order="C")


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of names, types, shapes and bits."""
    summed = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        summed.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        summed.update(array.tobytes())
    return summed.hexdigest()[:16]


def differences(base: Mapping[str, np.ndarray], head: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The arrays whose bits differ, with their largest relative difference: infinite where it isn't one of numbers."""
    names = sorted({*base, *head})
    return {name: _distance(base.get(name), head.get(name)) for name in names if not _same(base, head, name)}


def _same(base: Mapping[str, np.ndarray], head: Mapping[str, np.ndarray], name: str) -> bool:
    return name in base and name in head and digest({"": base[name]}) == digest({"": head[name]})


def _distance(one: np.ndarray | None, other: np.ndarray | None) -> float:
    if one is None or other is None or one.shape != other.shape or "U" in (one.dtype.kind, other.dtype.kind):
        return np.inf
    first, second = one.astype(np.float64), other.astype(np.float64)
    if not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return np.inf
    with np.errstate(all="ignore"):
        relative = np.abs(first - second) / np.maximum(np.abs(first), np.abs(second))
    return float(np.max(np.nan_to_num(relative, posinf=0.0), initial=0.0))

"""What a reader of a tree expects in it: types, keys, shapes, held against what a file gave.

A checksum tells that a file holds what was written, not that this may be used: it may be another version's, or made up,
and kernels trust the shapes that they are given. A pattern is

    a type, or a union            a value of it (True is no int)
    a dict                        a dict with these keys, their values by these patterns
    a list                        a list of this length, by these patterns
    Each(pattern)                 a dict with names, or a list, all of it by this pattern
    ArrayPattern("f", (None, 3))  an array of this kind of dtype and shape; None: of any length
    OneOf(pattern, pattern)       either; what the second finds wrong is said
    Like(state)                   the layout of this state: its classes, keys, dtypes and shapes

A fresh state is a pattern for those after it. Where it has nothing yet, None, an empty dict or an array of no rows, a
later one may have vectors, and arrays whose axes but one are as long as others of the fresh state, or short. An array
that is annotated ``Growing`` in its NamedTuple may have a first axis of any length; what is annotated as ``Any`` or
with ``None`` may be None.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import numpy as np

from nmf_zoo.runtime.state_io import Damaged

Growing = Annotated[np.ndarray, "growing"]
SHORT = 4  # an axis of a few rows may be of any array
NUMBERS: tuple[tuple[type, ...], ...] = ((bool, np.bool_), (int, np.integer), (float, np.floating))


class Each(NamedTuple):
    """All items, or all values by name."""

    pattern: Any


class ArrayPattern(NamedTuple):
    """An array: the kind of its dtype, and its shape; None for any length."""

    kind: str
    shape: tuple[int | None, ...]


class Like(NamedTuple):
    """The layout of a state."""

    state: Any


class OneOf(NamedTuple):
    """Either of two."""

    first: Any
    second: Any


def require(tree: Any, pattern: Any, name: str) -> None:
    """Refuse a tree that the pattern does not fit; ``name`` says in the message where."""
    if isinstance(pattern, Like):
        _require_like(tree, pattern.state, name, {n for array in _arrays(pattern.state) for n in array.shape})
    elif isinstance(pattern, OneOf):
        try:
            require(tree, pattern.first, name)
        except Damaged:
            require(tree, pattern.second, name)
    elif isinstance(pattern, Each):
        is_dict = isinstance(tree, dict) and all(isinstance(key, str) for key in tree)
        _refuse_unless(is_dict or type(tree) is list, tree, "a list, or a dict with names", name)
        for key, value in tree.items() if is_dict else enumerate(tree):
            require(value, pattern.pattern, f"{name}.{key}")
    elif isinstance(pattern, ArrayPattern):
        fits = isinstance(tree, np.ndarray) and tree.dtype.kind == pattern.kind and tree.dtype.isnative
        fits = fits and len(tree.shape) == len(pattern.shape)
        fits = fits and all(n in (m, None) for m, n in zip(tree.shape, pattern.shape, strict=True))
        _refuse_unless(fits, tree, f"an array ({pattern.kind}) of shape {pattern.shape}", name)
    elif isinstance(pattern, dict):
        _refuse_unless(isinstance(tree, dict) and tree.keys() == pattern.keys(), tree, f"{list(pattern)}", name)
        for key, inside in pattern.items():
            require(tree[key], inside, f"{name}.{key}")
    elif isinstance(pattern, list):
        _refuse_unless(type(tree) is list and len(tree) == len(pattern), tree, f"a list of {len(pattern)}", name)
        for place, inside in enumerate(pattern):
            require(tree[place], inside, f"{name}[{place}]")
    elif pattern is not Any:
        fits = isinstance(tree, pattern) and not (pattern in (int, float) and type(tree) is bool)
        _refuse_unless(fits, tree, getattr(pattern, "__name__", str(pattern)), name)


def _require_like(tree: Any, state: Any, name: str, known: set[int], grows: bool = False) -> None:
    if _is_empty(state) and not grows:
        for array in _arrays(tree):
            strange = [n for n in array.shape if n not in known and n > SHORT]
            _refuse_unless(len(strange) < 2 and array.dtype.kind in "biuf", array, "of this state's lengths", name)
    elif isinstance(state, np.ndarray):
        fits = isinstance(tree, np.ndarray) or (state.ndim == 0 and isinstance(tree, np.generic))
        fits = fits and tree.dtype == state.dtype and tree.ndim == state.ndim
        fits = fits and tree.shape[grows:] == state.shape[grows:]
        _refuse_unless(fits, tree, _said(state), name)
    elif isinstance(state, dict):
        _refuse_unless(isinstance(tree, dict) and tree.keys() == state.keys(), tree, _said(state), name)
        for key, inside in state.items():
            _require_like(tree[key], inside, f"{name}.{key}", known)
    elif isinstance(state, tuple | list):
        _refuse_unless(type(tree) is type(state) and len(tree) == len(state), tree, _said(state), name)
        hints = get_type_hints(type(state), include_extras=True) if hasattr(state, "_fields") else {}
        names = getattr(state, "_fields", range(len(state)))
        for key, found, inside in zip(names, tree, state, strict=True):
            hint = hints.get(key)
            if found is not None or not (hint is Any or type(None) in get_args(hint)):
                _require_like(found, inside, f"{name}.{key}", known, grows=hint is Growing)
    else:
        _refuse_unless(_number(tree) == _number(state), tree, _said(state), name)


def _is_empty(state: Any) -> bool:
    """Whether there is nothing yet."""
    return state is None or state == {} if not isinstance(state, np.ndarray) else state.shape[:1] == (0,)


def _number(value: Any) -> Any:
    """What a number or text may be exchanged with."""
    return next((kinds for kinds in NUMBERS if isinstance(value, kinds)), type(value))


def _arrays(tree: Any) -> Iterator[np.ndarray]:
    """All arrays of a tree."""
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, dict | tuple | list):
        for inside in tree.values() if isinstance(tree, dict) else tree:
            yield from _arrays(inside)


def _refuse_unless(fits: Any, tree: Any, expected: str, name: str) -> None:
    if not fits:
        raise Damaged(f"damaged: {name} is {_said(tree)}, not {expected}")


def _said(tree: Any) -> str:
    if isinstance(tree, np.ndarray):
        return f"{tree.dtype} {tree.shape}"
    return repr(list(tree))[:60] if isinstance(tree, dict) else f"{type(tree).__name__} {repr(tree)[:40]}"

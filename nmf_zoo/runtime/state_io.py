"""Nested states to a file and back, bit for bit and without pickle.

A tree is a number, text, None, an array, or a dict, list, tuple or NamedTuple of trees. On file it is JSON, in which
arrays are numbered, and the cells of the arrays, one after the other; both are check-summed. An array that a tree holds
twice is one array afterwards, too. NamedTuples come back as the class of that name, which must have been imported:
reading a file runs nothing.

A tree says whose it is: its ``owner``, a few words by name, is written with it, and who reads names the owner that he
expects. Of trees in one file, one after another, the checksum goes on from that of the one before (``previous``), so
that none can be left out, changed or taken from elsewhere. What a file claims is believed when it can be true: sizes
are held against the bytes that are there before memory is taken for them, and what is in a tree against what its reader
expects (:mod:`nmf_zoo.runtime.state_patterns`).
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import IO, Any

import numpy as np

from nmf_zoo.structure import Array

PLAIN = (bool, int, float, str, type(None))
MAGIC = b"nmf5"  # with the format's number
HEAD = struct.Struct(">4sII")  # magic, checksum and length of the JSON
DEEPEST = 50  # trees within trees; a state has five or so
DTYPE = re.compile(r"[<>|][biufcSUMm][1-9]\d*(\[\w+\])?")
NOBODY: Mapping[str, Any] = MappingProxyType({})


class Damaged(ValueError):
    """A file that does not hold what was written, or not what its reader may use; the message says in what way."""


def write_tree(file: IO[bytes], tree: Any, owner: Mapping[str, Any] = NOBODY, previous: int = 0) -> int:
    """Append a tree to a file. Returns its checksum, from which that of the next one goes on."""
    arrays: dict[int, tuple[int, Array]] = {}
    skeleton = _skeleton(tree, arrays)
    plain = [_contiguous(array) for _, array in arrays.values()]
    kinds, flat = [_kind_of(array) for array in plain], [_flat(array) for array in plain]
    sums = [[*kind, zlib.crc32(cells.data)] for kind, cells in zip(kinds, flat, strict=True)]
    text = json.dumps([dict(owner), skeleton, sums]).encode()
    checksum = zlib.crc32(text, previous)
    file.write(HEAD.pack(MAGIC, checksum, len(text)) + text)
    for cells in flat:
        file.write(cells.data)
    return checksum


def read_tree(file: IO[bytes], owner: Mapping[str, Any] = NOBODY, previous: int = 0) -> tuple[Any, int]:
    """The next tree of a file, and its checksum."""
    left = _bytes_left(file)
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        raise Damaged("damaged: cut short")
    magic, checksum, length = HEAD.unpack(head)
    if magic != MAGIC:
        raise Damaged(f"not of the format {MAGIC.decode()!r}, which this version writes")
    left -= HEAD.size + length
    if left < 0:
        raise Damaged("damaged: cut short")
    text = file.read(length)
    if zlib.crc32(text, previous) != checksum:
        raise Damaged("damaged: its checksum is another")
    found, skeleton, kinds = _parse(text)
    _require_owner(found, owner)
    arrays = []
    for kind in kinds:
        arrays.append(_read_array(file, kind, left))
        left -= arrays[-1].nbytes
    return _tree(skeleton, arrays), checksum


def _bytes_left(file: IO[bytes]) -> int:
    at = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(at)
    return end - at


def _parse(text: bytes) -> tuple[dict, Any, list]:
    """Owner, skeleton and arrays' kinds."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("damaged: no JSON that can be read") from None
    if not (isinstance(parts, list) and [type(part) for part in parts[::2]] == [dict, list] and len(parts) == 3):
        raise Damaged("damaged: no tree")
    return parts[0], parts[1], parts[2]


def _require_owner(found: Mapping[str, Any], owner: Mapping[str, Any]) -> None:
    for name in {**owner, **found}:
        if found.get(name) != owner.get(name):
            raise Damaged(f"another's: of {name} {_short(found.get(name))}, not {_short(owner.get(name))}")


def _short(value: Any) -> str:
    return repr(value)[:60]


def _contiguous(array: Array) -> Array:
    """The array without gaps, its axes in memory in the order they had: sums of floats follow that order."""
    array = array if array.flags.forc else array.copy(order="K")
    return array if array.flags.forc else np.ascontiguousarray(array)


def _flat(array: Array) -> Array:
    """The bytes of an array without gaps. No copy."""
    return array.ravel(order=_order(array)).view(np.uint8)


def _kind_of(array: Array) -> tuple[str, tuple[int, ...], str]:
    """dtype, shape and order of an array without gaps."""
    if array.dtype.hasobject or array.dtype.names:
        raise TypeError(f"a state can't hold an array of {array.dtype}: use numbers")
    return array.dtype.str, array.shape, _order(array)


def _order(array: Array) -> Any:
    return "C" if array.flags.c_contiguous else "F"


def _read_array(file: IO[bytes], kind: Any, left: int) -> Array:
    """An array of this kind, if there are as many bytes."""
    if not (isinstance(kind, list) and [type(part) for part in kind] == [str, list, str, int]):
        raise Damaged("damaged: an array of no kind")
    name, shape, order, checksum = kind
    dtype = _dtype(name)
    if order not in ("C", "F") or len(shape) > 32 or not all(type(n) is int and n >= 0 for n in shape):
        raise Damaged(f"damaged: an array of shape {_short(shape)}")
    cells = prod(shape) * dtype.itemsize
    if cells > left or prod(max(n, 1) for n in shape) * dtype.itemsize >= 2**62:
        raise Damaged(f"damaged: an array of shape {_short(shape)} in {left} bytes")
    array = np.empty(shape, dtype, order)
    flat = _flat(array)
    file.readinto(flat)  # type: ignore[attr-defined]
    if zlib.crc32(flat.data) != checksum:
        raise Damaged("damaged: an array's checksum is another")
    return array


def _dtype(name: str) -> np.dtype:
    try:
        if DTYPE.fullmatch(name):
            return np.dtype(name)
    except (TypeError, ValueError):
        pass
    raise Damaged(f"damaged: an array of dtype {_short(name)}")


def _skeleton(tree: Any, arrays: dict[int, tuple[int, Array]]) -> Any:
    """JSON of a tree; its arrays are numbered in ``arrays``, by identity."""
    if isinstance(tree, np.ndarray | np.generic):
        array = np.asarray(tree)
        number, _ = arrays.setdefault(id(array), (len(arrays), array))
        return {"array" if array is tree else "scalar": number}
    if isinstance(tree, dict):
        return {"dict": [[key, _skeleton(value, arrays)] for key, value in tree.items()]}
    if isinstance(tree, tuple | list):
        return {_kind(tree): [_skeleton(value, arrays) for value in tree]}
    if type(tree) in PLAIN:
        return tree
    raise TypeError(f"a state can't hold {type(tree).__name__}: use arrays, numbers, text, dicts and NamedTuples")


def _kind(items: tuple | list) -> str:
    """ "list", "tuple", or a NamedTuple's module and name."""
    kind = type(items)
    if kind in (list, tuple):
        return kind.__name__
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _named(name) is not kind:
        raise TypeError(f"a state can't hold {name}: define it at the top of its module, as a NamedTuple")
    return name


def _named(name: str) -> Any:
    """The NamedTuple ``module:name`` among what is imported, or None."""
    module, _, own = name.partition(":")
    found = vars(sys.modules[module]).get(own) if module in sys.modules else None
    return found if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_make") else None


def _tree(skeleton: Any, arrays: list[Array], depth: int = 0) -> Any:
    if type(skeleton) in PLAIN:
        return skeleton
    if depth > DEEPEST or not isinstance(skeleton, dict) or len(skeleton) != 1:
        raise Damaged("damaged: nested too deep" if depth > DEEPEST else "damaged: no tree")
    ((kind, inside),) = skeleton.items()
    if kind in ("array", "scalar"):
        return _numbered(inside, arrays, kind)
    if not isinstance(inside, list):
        raise Damaged(f"damaged: no items in {_short(kind)}")
    if kind == "dict":
        if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in PLAIN for pair in inside):
            raise Damaged("damaged: a dict without keys")
        return {key: _tree(value, arrays, depth + 1) for key, value in inside}
    items = [_tree(value, arrays, depth + 1) for value in inside]
    if kind in ("list", "tuple"):
        return items if kind == "list" else tuple(items)
    named = _named(kind)
    if named is None or not 0 <= len(named._fields) - len(items) <= len(named._field_defaults):
        raise Damaged(f"a state of class {_short(kind)}, which was not imported or has other fields")
    return named(*items)  # of a version before there may be fewer: fields added since have defaults


def _numbered(number: Any, arrays: list[Array], kind: str) -> Any:
    """An array of the file, or the number that it holds."""
    if type(number) is not int or not 0 <= number < len(arrays) or (kind == "scalar" and arrays[number].shape != ()):
        raise Damaged(f"damaged: no {kind} {_short(number)}")
    return arrays[number] if kind == "array" else arrays[number][()]

"""Nested states to a file and back, bit for bit and without pickle.

A tree is a number, text, None, an array, or a dict, list, tuple or NamedTuple of trees. On file it is JSON, in which
arrays are numbered, and the cells of the arrays, one after the other; both are check-summed. An array that a tree holds
twice is one array afterwards, too. NamedTuples come back as the class of that name, which must have been imported:
reading a file runs nothing.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from typing import IO, Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.structure import Array

PLAIN = (bool, int, float, str, type(None))
HEAD = struct.Struct(">II")  # checksum and length of the JSON


class Damaged(ValueError):
    """A file that does not hold what was written."""


def write_tree(file: IO[bytes], tree: Any) -> None:
    """Append a tree to a file."""
    arrays: dict[int, tuple[int, Array]] = {}
    skeleton = _skeleton(tree, arrays)
    plain = [_contiguous(array) for _, array in arrays.values()]
    kinds, flat = [_kind_of(array) for array in plain], [_flat(array) for array in plain]
    text = json.dumps([skeleton, [[*kind, _sum(cells)] for kind, cells in zip(kinds, flat, strict=True)]]).encode()
    file.write(HEAD.pack(zlib.crc32(text), len(text)) + text)
    for cells in flat:
        file.write(cells.data)


def read_tree(file: IO[bytes]) -> Any:
    """The next tree of a file."""
    head = file.read(HEAD.size)
    checksum, length = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0)
    text = file.read(length)
    if not length or len(text) < length or zlib.crc32(text) != checksum:
        raise Damaged
    skeleton, kinds = json.loads(text)
    return _tree(skeleton, [_read_array(file, *kind) for kind in kinds])


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


def _read_array(file: IO[bytes], dtype: str, shape: list[int], order: Any, checksum: int) -> Array:
    array = np.empty(shape, np.dtype(dtype), order)
    cells = _flat(array)
    if file.readinto(cells) != len(cells) or _sum(cells) != checksum:  # type: ignore[attr-defined]
        raise Damaged
    return array


def _sum(cells: Array) -> int:
    """A checksum that costs less than writing: of the 64-bit words, and of what is left."""
    whole = len(cells) // 8 * 8
    return int(np.add.reduce(cells[:whole].view(np.uint64))) ^ zlib.crc32(cells[whole:].data)


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


def _tree(skeleton: Any, arrays: list[Array]) -> Any:
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, inside),) = skeleton.items()
    if kind == "array":
        return arrays[inside]
    if kind == "scalar":
        return arrays[inside][()]
    if kind == "dict":
        return {key: _tree(value, arrays) for key, value in inside}
    items = [_tree(value, arrays) for value in inside]
    if kind in ("list", "tuple"):
        return items if kind == "list" else tuple(items)
    if _named(kind) is None:
        raise InputError("checkpoint", f"a state of class {kind}", "a class that was imported", "import its module")
    return _named(kind)._make(items)

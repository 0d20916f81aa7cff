"""The structure of a model as a tree that :mod:`nmf_zoo.runtime.state_io` can write, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

import nmf_zoo.structure as parts
from nmf_zoo.errors import InputError
from nmf_zoo.runtime.state_io import Damaged
from nmf_zoo.runtime.state_patterns import ArrayPattern, Each, require
from nmf_zoo.structure import Array, Factorisation, Unknown

TIMES = re.compile(r"[<>][Mm]8\[\w+\]")


def as_tree(value: Any) -> Any:
    """Dataclasses of :mod:`nmf_zoo.structure` as (name, fields); labels of any kind as text or numbers."""
    if is_dataclass(value):
        inside = {field.name: as_tree(getattr(value, field.name)) for field in fields(value)}
        return {"class": type(value).__name__, "fields": inside}
    if isinstance(value, Mapping):
        return {"map": {key: as_tree(inside) for key, inside in value.items()}}
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return {"labels": [_plain(label) for label in value.tolist()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "Mm":
        return {"times": value.view(np.int64), "dtype": value.dtype.str}
    return value


def structure_of(tree: Any) -> Factorisation:
    """The factorisation that :func:`as_tree` was given; Damaged when there is none that goes together."""
    structure = from_tree(tree)
    if not isinstance(structure, Factorisation):
        raise Damaged("damaged: no factorisation")
    (F, K), (rank, N) = structure.W.shape, structure.H.shape
    if min(F, K, N) < 1 or rank != K:
        raise Damaged(f"damaged: factors of shapes {structure.W.shape} and {structure.H.shape}")
    likelihood = structure.likelihood
    of_cells = {"exposure": likelihood.exposure, "background": likelihood.background, **likelihood.parameters}
    for name, value, shape in (
        *((f"prior of {factor.name}", factor.prior, factor.shape) for factor in (structure.W, structure.H)),
        *((name, value, (F, N)) for name, value in of_cells.items()),
    ):
        for own in _shapes(value):
            if len(own) > 2 or any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
                raise Damaged(f"damaged: {name} of shape {own}, in {shape}")
    for factor in (structure.W, structure.H):
        for dim, length in zip(structure.dims.get(factor.name, ()), factor.variable_shape, strict=False):
            if dim in structure.coords and len(structure.coords[dim]) != length:
                raise Damaged(f"damaged: {len(structure.coords[dim])} labels of {dim!r}, which has {length}")
    return structure


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of the parameters of a prior."""
    if isinstance(value, Unknown | np.ndarray):
        yield value.shape
    elif is_dataclass(value):
        for field in fields(value):
            yield from _shapes(getattr(value, field.name))


def from_tree(tree: Any) -> Any:
    """What :func:`as_tree` was given; Damaged when a class or a field of it is not one of ours."""
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {"class", "fields"}:
        return _dataclass(tree["class"], tree["fields"])
    if set(tree) == {"map"}:
        require(tree["map"], Each(Any), "a mapping")
        return {key: from_tree(inside) for key, inside in tree["map"].items()}
    if set(tree) == {"times", "dtype"}:
        if not isinstance(tree["dtype"], str) or not TIMES.fullmatch(tree["dtype"]):
            raise Damaged(f"damaged: labels of dtype {str(tree['dtype'])[:60]!r}")
        require(tree["times"], ArrayPattern("i", (None,)), "labels")
        return tree["times"].view(tree["dtype"])
    require(tree, {"labels": Each(str | int | float | None)}, "labels")
    labels: Array = np.empty(len(tree["labels"]), dtype=object)
    labels[:] = list(tree["labels"])
    return labels


def _dataclass(name: Any, own: Any) -> Any:
    kind: Any = vars(parts).get(name) if isinstance(name, str) else None
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise Damaged(f"damaged: a class {str(name)[:60]!r}")
    require(own, dict.fromkeys((field.name for field in fields(kind)), Any), name)
    values, hints = {key: from_tree(inside) for key, inside in own.items()}, get_type_hints(kind)
    for key, value in values.items():
        if not fits(value, hints[key]):
            raise Damaged(f"damaged: {name}.{key} is {type(value).__name__} {str(value)[:40]!r}")
    return kind(**values)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of this type; of arrays, mappings and tuples what is in them too."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inside
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inside)
    if origin is tuple:
        each = inside[:1] * len(value) if isinstance(value, tuple) and inside[-1] is ... else inside
        return isinstance(value, tuple) and len(value) == len(each) and all(map(fits, value, each))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(fits(k, inside[0]) and fits(v, inside[1]) for k, v in value.items())
    if hint is int:
        return type(value) is int
    return isinstance(value, hint)


def _plain(label: Any) -> Any:
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, bool | int | float | str) or label is None:
        return label
    raise InputError("coords", f"the label {label!r}", "text, numbers or dates", "convert the labels to text")

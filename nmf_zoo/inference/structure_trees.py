"""The structure of a model as a tree that :mod:`nmf_zoo.inference.trees` can write, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

import nmf_zoo.structure as parts
from nmf_zoo.errors import InputError
from nmf_zoo.structure import Array


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


def from_tree(tree: Any) -> Any:
    """What :func:`as_tree` was given."""
    if not isinstance(tree, dict):
        return tree
    if "class" in tree:
        kind = vars(parts)[tree["class"]]
        return kind(**{name: from_tree(inside) for name, inside in tree["fields"].items()})
    if "map" in tree:
        return {key: from_tree(inside) for key, inside in tree["map"].items()}
    if "times" in tree:
        return tree["times"].view(tree["dtype"])
    labels: Array = np.empty(len(tree["labels"]), dtype=object)
    labels[:] = tree["labels"]
    return labels


def _plain(label: Any) -> Any:
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, bool | int | float | str) or label is None:
        return label
    raise InputError("coords", f"the label {label!r}", "text, numbers or dates", "convert the labels to text")

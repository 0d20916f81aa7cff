"""Exposure and background: what the mean's arrays are together, of the whole matrix and of its listed cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, mul

import numpy as np

from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.products import CellIndex, Mean
from nmf_zoo.structure import Array, Listed, Offset, Outer, ends_of, offset_at

Offsets = dict[str, Offset | None]
NONE = {"exposure": 1.0, "background": 0.0}  # what stands for having none


def read_offsets(
    name: str, mean: Mean, index: CellIndex | None, shape: tuple[int, int], cells: tuple[Array, Array] | None
) -> Offsets:
    """Those of X, checked against the (F, N) shape; ``cells`` are the rows and columns of ``index``."""
    parts = {"exposure": mean.exposure, "background": mean.background}
    found: Offsets = {
        role: multiply([check_offset(name, role, part, shape) for part in own]) for role, own in parts.items()
    }
    if index is not None and cells is not None and (index.exposure is not None or index.background is not None):
        found = list_offsets(name, found, index, *cells, shape)
    least = {role: np.inf if own is None else ends_of(own)[0] for role, own in found.items()}
    if least["exposure"] <= 0:
        raise UnreadableModel(name, f"exposure {least['exposure']}", "exposure > 0", "list missing cells as such")
    if least["background"] < 0:
        raise UnreadableModel(name, f"background {least['background']}", "background >= 0", "check the added array")
    return found


def multiply(parts: Sequence[Array]) -> Array | Outer | None:
    """The product of arrays that broadcast to (F, N): one number per feature and one per sample stay apart."""
    is_wide = [np.atleast_2d(part).shape[1] > 1 for part in parts]
    is_tall = [np.atleast_2d(part).shape[0] > 1 for part in parts]
    if any(is_tall) and any(is_wide) and not any(map(and_, is_tall, is_wide)):
        of_samples = [part for part, tall in zip(parts, is_tall, strict=True) if not tall]
        of_features = [part for part, tall in zip(parts, is_tall, strict=True) if tall]
        return Outer(of_features=reduce(mul, of_features), of_samples=np.atleast_2d(reduce(mul, of_samples)))
    return reduce(mul, parts) if parts else None


def list_offsets(
    name: str, whole: Mapping[str, Offset | None], own: CellIndex, rows: Array, cols: Array, shape: tuple[int, int]
) -> Offsets:
    """Those of the whole matrix and of its listed cells in one, at these cells: e (E m + B) + b."""
    at = {role: offset_at(whole[role], rows, cols, shape, none) for role, none in NONE.items()}
    if own.exposure is not None:
        factor = of_cells(name, "exposure", own.exposure, len(rows))
        at = {role: factor * values for role, values in at.items()}
    if own.background is not None:
        at["background"] = at["background"] + of_cells(name, "background", own.background, len(rows))
    return {
        role: None
        if np.all(values == NONE[role])
        else Listed(rows=rows, cols=cols, values=values, shape=shape, elsewhere=NONE[role])
        for role, values in at.items()
    }


def of_cells(name: str, role: str, value: Array, n_cells: int) -> Array:
    """A finite number for each listed cell, or one for all."""
    if value.size not in (1, n_cells):
        raise UnreadableModel(name, f"{role} of {value.size} cells", f"{n_cells}, as many as are listed", "reshape it")
    require_finite(name, role, value)
    return np.ravel(value)


def check_offset(name: str, role: str, value: Array, shape: tuple[int, int]) -> Array:
    """A finite float64 array that broadcasts to (F, N)."""
    fits = value.ndim <= 2 and all(a in (1, b) for a, b in zip(value.shape[::-1], shape[::-1], strict=False))
    if not fits:
        raise UnreadableModel(
            name, f"{role} of shape {value.shape}", f"a shape that broadcasts to {shape}", "reshape it"
        )
    require_finite(name, role, value)
    return np.asarray(value, dtype=np.float64)


def require_finite(name: str, role: str, value: Array) -> None:
    if not np.all(np.isfinite(value)):
        raise UnreadableModel(name, f"infinite or NaN {role}", "finite numbers", "check the data you gave")

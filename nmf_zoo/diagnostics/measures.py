"""How near an estimate is to the truth, and how sparse a matrix is (Cemgil 2009, section 4.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.labels import contradict, flat_labels
from nmf_zoo.options import names_checked


@names_checked
def snr(truth: Any, estimate: Any) -> float:
    """Signal-to-noise ratio in decibels, 10 log10(sum truth^2 / sum (truth - estimate)^2).

    Parameters
    ----------
    truth, estimate : arrays of the same shape; cells that are NaN in either are left out. They go by place, and labels
        of both that say otherwise are refused

    Returns
    -------
    Decibels: infinite where they are equal, 0 where the error is as large as the signal

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> round(nz.snr([10.0, 0.0], [9.0, 0.0]), 6)
    20.0
    """
    if isinstance(truth, xr.DataArray) and isinstance(estimate, xr.DataArray) and {*truth.dims} == {*estimate.dims}:
        estimate = estimate.transpose(*truth.dims)
    x, y = (np.asarray(array, dtype=np.float64) for array in (truth, estimate))
    if x.shape != y.shape:
        raise InputError("estimate", f"shape {y.shape}", f"{x.shape}, that of the truth")
    for axis, (ours, theirs) in enumerate(zip(_labels_of(truth), _labels_of(estimate), strict=False)):
        if ours is not None and theirs is not None and contradict(theirs, ours):
            got = f"labels along axis {axis} that differ from the truth's"
            raise InputError("estimate", got, "the truth's, in its order", "reindex it like the truth")
    known = np.isfinite(x) & np.isfinite(y)
    signal, noise = np.sum(x[known] ** 2), np.sum((x - y)[known] ** 2)
    if not signal > 0:
        raise InputError("truth", "no cell other than 0 in common with the estimate", "some signal")
    return float(10 * np.log10(signal / noise)) if noise > 0 else float("inf")


def _labels_of(array: Any) -> list[np.ndarray | None]:
    """Along each axis; None where there are none."""
    if isinstance(array, pd.DataFrame | pd.Series):
        return [flat_labels(index) for index in array.axes]
    if not isinstance(array, xr.DataArray):
        return [None] * np.ndim(array)
    return [flat_labels(array.indexes[dim]) if dim in array.indexes else None for dim in array.dims]


@names_checked
def sparseness(matrix: Any) -> float:
    """Sparseness of Hoyer (2004), ``(sqrt(n) - sum |v| / sqrt(sum v^2)) / (sqrt(n) - 1)`` over the n entries.

    Parameters
    ----------
    matrix : array of two entries or more, not all of them 0

    Returns
    -------
    1 where one entry is not 0, 0 where all are equal

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> nz.sparseness([[0.0, 3.0], [0.0, 0.0]])
    1.0
    """
    try:
        entries = np.abs(np.asarray(matrix, dtype=np.float64)).ravel()
    except (TypeError, ValueError):
        raise InputError("matrix", type(matrix).__name__, "an array of numbers") from None
    if entries.size < 2 or not np.all(np.isfinite(entries)) or not np.any(entries):
        raise InputError("matrix", f"{entries.size} entries", "two finite ones or more, not all 0")
    root = np.sqrt(entries.size)
    scaled = entries / entries.max()
    return float((root - scaled.sum() / np.sqrt(np.sum(scaled**2))) / (root - 1))

"""Convergence of components: R-hat and effective draws of aligned factors beside those of the draws as they came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.diagnostics import ess, rhat
from nmf_zoo.errors import InputError
from nmf_zoo.run_arguments import check_counts
from nmf_zoo.workbench.align import RAW, REPORT, read_factors


def summarise_components(
    idata: Any, *, most_cells: int = 50, weights: str = "W", activations: str = "H"
) -> pd.DataFrame:
    """How well each component's column of W and row of H mixed, by its worst cell.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.align`
    most_cells : cells judged of each column of W and row of H: those with the largest means. What is left out is small
    weights, activations : names of the two factors

    Returns
    -------
    DataFrame with a row for each factor and component, and columns rhat (the largest over its cells), rhat_raw (of the
    draws before alignment, cells in the same places), ess_bulk and ess_tail (the least), and became (the worst
    of the chains: matched, merged, split or different). NaN stands for what the draws can't tell
    """
    check_counts(most_cells=(most_cells, 1))
    if REPORT not in _compat.group_names(idata):
        raise InputError("idata", "draws that are not aligned", "the result of nz.align", "call nz.align(idata) first")
    aligned, raw = (_compat.group(idata, name) for name in ("posterior", RAW))
    became = _worst(_compat.group(idata, REPORT)["became"])
    factors, before = (read_factors(group, weights, activations) for group in (aligned, raw))
    tables = []
    for name, now, then in zip((weights, activations), factors.draws, before.draws, strict=True):
        if now is None or then is None:
            continue
        cells = (np.swapaxes(now, -1, -2), np.swapaxes(then, -1, -2)) if name == weights else (now, then)
        tables.append(_of_factor(name, *cells, became, most_cells))
    return pd.concat(tables)


def _of_factor(name: str, draws: np.ndarray, raw: np.ndarray, became: xr.DataArray, most_cells: int) -> pd.DataFrame:
    """``draws`` and ``raw`` (chain, draw, K, cells)."""
    top = np.argsort(-draws.mean(axis=(0, 1)), axis=-1, kind="stable")[:, :most_cells]
    kept, kept_raw = (
        xr.Dataset({name: (("chain", "draw", "component", "cell"), _cells(array, top))}) for array in (draws, raw)
    )
    columns = {
        "rhat": rhat(kept)[name].max("cell").to_numpy(),
        "rhat_raw": rhat(kept_raw)[name].max("cell").to_numpy(),
        "ess_bulk": ess(kept, "bulk")[name].min("cell").to_numpy(),
        "ess_tail": ess(kept, "tail")[name].min("cell").to_numpy(),
        "became": became.to_numpy(),
    }
    (dim,) = became.dims
    labels = became[dim].to_numpy() if dim in became.coords else np.arange(became.size)
    return pd.DataFrame(columns, index=[f"{name}[{label}]" for label in labels])


def _cells(array: np.ndarray, top: np.ndarray) -> np.ndarray:
    return np.take_along_axis(array, top[None, None], axis=-1)


def _worst(became: xr.DataArray) -> xr.DataArray:
    """Of each component, the word that is furthest from "matched" in any chain."""
    words = ("matched", "merged", "split", "different")
    rank = xr.apply_ufunc(np.vectorize(words.index), became).max("chain")
    return xr.apply_ufunc(np.vectorize(words.__getitem__), rank)

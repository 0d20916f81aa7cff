"""Convergence from invariants: the log joint and fixed cells of W H, which do not care how components are labelled.

The draws of W and H swap components between chains, so that R-hat of a raw factor says nothing until the chains
are aligned. ``sample_stats`` of every sampler holds what is followed here: ``lp`` and ``mean``, the cells of W H.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import NmfZooWarning

RHAT_LIMIT = 1.01
ESS_LIMIT = 400
FEWEST_DRAWS = 4  # ArviZ has no R-hat and no effective sample size below


def invariants(idata: Any) -> xr.Dataset:
    """``lp`` and the followed cells of W H, as (chain, draw, ...) variables."""
    stats = _compat.group(idata, "sample_stats")
    return stats[[name for name in ("lp", "mean") if name in stats]]


def summarise(idata: Any) -> pd.DataFrame:
    """Mean, sd, R-hat and effective sample size of the invariants of a posterior, one row each.

    NaN stands for what the draws can't tell: R-hat of one chain, and both of fewer than four draws.

    Returns
    -------
    DataFrame with columns mean, sd, rhat, ess_bulk, ess_tail and rows ``lp``, ``mean[row, col]``, ...
    """
    import arviz as az  # with ArviZ 1 that takes a second, matplotlib included

    draws = invariants(idata)
    columns = {
        "mean": draws.mean(("chain", "draw")),
        "sd": draws.std(("chain", "draw"), ddof=1),
        "rhat": judge(draws, 2, az.rhat),
        "ess_bulk": judge(draws, 1, partial(az.ess, method="bulk")),
        "ess_tail": judge(draws, 1, partial(az.ess, method="tail")),
    }
    return pd.DataFrame({name: _flat(values, draws) for name, values in columns.items()}, index=_rows(draws))


def judge(draws: xr.Dataset, fewest_chains: int, diagnostic: Callable[[xr.Dataset], Any]) -> Any:
    """``diagnostic``, or NaN where ArviZ would say on standard error, once per variable, that it has none."""
    if draws.sizes["chain"] < fewest_chains or draws.sizes["draw"] < FEWEST_DRAWS:
        return xr.full_like(draws.isel(chain=0, draw=0, drop=True), np.nan, dtype=np.float64)
    return diagnostic(draws)


def _flat(values: Any, draws: xr.Dataset) -> np.ndarray:
    dataset = values.to_dataset() if isinstance(values, xr.DataTree) else values
    return np.concatenate([np.atleast_1d(dataset[name].values).ravel() for name in draws.data_vars])


def _rows(draws: xr.Dataset) -> list[str]:
    rows = ["lp"] if "lp" in draws else []
    if "mean" in draws:
        cells = zip(draws["checked_row"].values, draws["checked_col"].values, strict=True)
        rows += [f"mean[{row}, {col}]" for row, col in cells]
    return rows


def warn_unconverged(idata: Any) -> None:
    """One warning when the invariants of a posterior say that more draws or chains are needed."""
    n_draws = _compat.group(idata, "sample_stats").sizes["draw"]
    if n_draws < FEWEST_DRAWS:
        message = f"Only {n_draws} draws per chain: too few to judge convergence; raise draws=."
        warnings.warn(message, NmfZooWarning, stacklevel=3)
        return
    table = summarise(idata)
    worst_rhat, least_ess = table["rhat"].max(), table["ess_bulk"].min()
    if np.isfinite(worst_rhat) and worst_rhat > RHAT_LIMIT:
        warnings.warn(
            f"The chains disagree: R-hat of {table['rhat'].idxmax()} is {worst_rhat:.3f}, above {RHAT_LIMIT}. "
            "Draw longer (tune=, draws=), or look at the chains one by one: they may sit in different modes.",
            NmfZooWarning,
            stacklevel=3,
        )
    elif least_ess < ESS_LIMIT:
        warnings.warn(
            f"Few effective draws: {least_ess:.0f} for {table['ess_bulk'].idxmin()}, below {ESS_LIMIT}. "
            "Estimates of its mean and interval are rough; raise draws=.",
            NmfZooWarning,
            stacklevel=3,
        )

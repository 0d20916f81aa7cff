"""What a search over ranks found."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, make_figure


@names_checked
def plot_rank(table: xr.Dataset) -> Any:
    """Draw what :func:`~nmf_zoo.select_rank` found, rank by rank; returns the matplotlib Figure.

    Each restart is a point, the line is their combination with its error, all as nats above or below the best rank's,
    whose value the axis tells. Of corrected bounds the bound itself is drawn, too. Shaded ranks are not ruled out.
    """
    if "combined" not in table or "rank" not in table.dims:
        raise InputError("table", f"a Dataset of {list(table.data_vars)}", "the result of nz.select_rank")
    ranks, combined = table["rank"].to_numpy(), table["combined"].to_numpy()
    figure = make_figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for first, rank in enumerate(ranks[table["plausible"].to_numpy()]):
        label = "_" if first else "not ruled out"
        axes.axvspan(rank - 0.5, rank + 0.5, color=ACCENT, alpha=0.12, lw=0, label=label)
    method = table.attrs.get("method", "")
    is_bound, is_corrected = method == "bound", "shortfall" in table
    best = int(table.attrs["best"])
    top = float(combined[ranks == best][0])
    runs = table["estimate"].transpose("rank", "restart").to_numpy().ravel() - top
    axes.plot(np.repeat(ranks, table.sizes["restart"]), runs, ".", color=INK, ms=4, alpha=0.5, label="restarts")
    error = None if is_bound else np.nan_to_num(table["combined_error"].to_numpy())
    label = {"bound": "bound, corrected" if is_corrected else "bound", "holdout": "held out"}.get(method, method)
    axes.errorbar(ranks, combined - top, error, color=INK, lw=1.2, elinewidth=1.0, marker="o", ms=4, label=label)
    if is_corrected:
        bound = table["bound"].max("restart").to_numpy() - top
        axes.plot(ranks, bound, color=INK, lw=1.0, ls=":", label="bound as it is")
    axes.axhline(0.0, color=INK, lw=0.6, alpha=0.4)
    axes.axvline(best, color=ACCENT, lw=1.0, label=f"best: {best}")
    ticks_of_ranks(axes, ranks)
    what = "held-out log-likelihood" if method == "holdout" else "log evidence"
    axes.set(xlabel="components", ylabel=f"{what},\nnats from that of {best} ({top:,.1f})")
    axes.legend(frameon=False, fontsize=8)
    clear_frame(axes)
    return figure


def ticks_of_ranks(axes: Any, ranks: np.ndarray) -> None:
    """Every rank where there are few, else as many whole numbers as have room."""
    if len(ranks) <= 20:
        axes.set_xticks(ranks)
        return
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

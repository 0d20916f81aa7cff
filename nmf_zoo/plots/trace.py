"""A run's trace: the log joint density draw by draw, or an optimiser's objective by iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import COLOURS, INK, clear_frame, make_figure

PER_ROW = 4  # panels
FAINT = "#c9ced8"


@names_checked
def plot_trace(idata: Any) -> Any:
    """Draw the log joint density draw by draw, or an optimiser's objective by iteration.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`

    Returns
    -------
    matplotlib Figure. Up to six chains (or restarts) share a panel, each in a colour of its own, and beside the draws
    is their distribution: chains that agree cover each other. More have a panel each, in front of all others
    """
    lines, names, ylabel = _lines(idata)
    title = str(idata.attrs.get("engine", ""))
    if len(lines) > len(COLOURS):
        return _panels(lines, names, ylabel, title)
    return _shared(lines, names, ylabel, title, with_distribution=lines.dims[1] == "draw")


def _lines(idata: Any) -> tuple[xr.DataArray, list[str], str]:
    """Values (chain, draw or iteration), the names of their rows, and what they are."""
    groups = _compat.group_names(idata) if _compat.is_result(idata) else []
    for group, values, along, row, ylabel in (
        ("fit", "objective", "iteration", "restart", "objective"),
        ("sample_stats", "lp", "draw", "chain", "log joint density"),
    ):
        if group in groups and values in (found := _compat.group(idata, group)):
            lines = found[values].transpose("chain", along)
            return lines, [f"{row} {label}" for label in lines["chain"].to_numpy()], ylabel
    raise InputError("idata", "neither lp nor an objective", "the result of nz.sample or nz.fit")


def _shared(lines: xr.DataArray, names: list[str], ylabel: str, title: str, with_distribution: bool) -> Any:
    """All in one panel, their distributions on the right of it."""
    figure = make_figure(figsize=(9.0, 3.5), layout="constrained")
    axes, *beside = figure.subplots(
        1, 2 if with_distribution else 1, squeeze=False, sharey=True, width_ratios=[5, 1] if with_distribution else [1]
    )[0]
    values, at = lines.to_numpy(), lines[lines.dims[1]].to_numpy()
    for line, name, colour in zip(values, names, COLOURS, strict=False):
        axes.plot(at, line, lw=0.9, alpha=0.85, color=colour, label=name)
    for side in beside:
        edges = np.linspace(np.nanmin(values), np.nanmax(values), 31)
        for line, colour in zip(values, COLOURS, strict=False):
            side.stairs(np.histogram(line, edges)[0], edges, orientation="horizontal", color=colour, lw=1.2)
        side.set(xticks=[], xlabel="distribution")
        clear_frame(side)
        side.spines["bottom"].set_visible(False)
    axes.set(xlabel=lines.dims[1], ylabel=ylabel)
    if len(names) > 1:
        handles = figure.legend(frameon=False, fontsize=8, loc="outside upper right", ncols=len(names)).legend_handles
        for handle in handles:
            handle.set_linewidth(3)
    axes.set_title(title, fontsize=10, loc="left")
    clear_frame(axes)
    return figure


def _panels(lines: xr.DataArray, names: list[str], ylabel: str, title: str) -> Any:
    """A panel each, with all the others faint behind it."""
    rows = -(-len(names) // PER_ROW)
    figure = make_figure(figsize=(9.0, 1.5 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, PER_ROW, sharex=True, sharey=True).ravel()
    values, at = lines.to_numpy(), lines[lines.dims[1]].to_numpy()
    for axes, line, name in zip(grid, values, names, strict=False):
        axes.plot(at, values.T, lw=0.5, color=FAINT)
        axes.plot(at, line, lw=0.9, color=INK)
        axes.set_title(name, fontsize=8)
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    figure.supylabel(ylabel, fontsize=8)
    figure.supxlabel(lines.dims[1], fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure

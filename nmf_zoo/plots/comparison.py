"""Engines side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, make_figure

PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # behind words that a line crosses
UNTOLD = "#8a8f99"  # where draws do not suffice to tell


@names_checked
def plot_comparison(comparison: Any) -> Any:
    """Draw what :func:`~nmf_zoo.compare_engines` found; returns the matplotlib Figure.

    Left, effective draws per second of each sampler (the least of the invariants in bulk and tail, and of the aligned
    factors; without PyMC's compilation) on a log scale. In the middle, posterior means of cells of W H as they differ
    from the reference's, in its posterior standard deviations, with two Monte-Carlo standard errors. Right, posterior
    standard deviations of the same cells over the reference's. Engines that don't agree with the reference are in
    colour, those where that can't be told are grey.

    Parameters
    ----------
    comparison : result of :func:`~nmf_zoo.compare_engines`
    """
    if not hasattr(comparison, "table") or not hasattr(comparison, "cells"):
        raise InputError("comparison", type(comparison).__name__, "the result of nz.compare_engines")
    table = comparison.table
    figure = make_figure(figsize=(10.0, 0.55 * len(table) + 1.6), layout="constrained")
    rates, means, spreads = figure.subplots(1, 3, sharey=True, width_ratios=(3, 3, 2))
    places = np.arange(len(table))[::-1]
    _rates(rates, table, places)
    _means(means, comparison, places)
    _spreads(spreads, comparison, places)
    rates.set_yticks(places, list(table.index), fontsize=8)
    for axes in (rates, means, spreads):
        axes.tick_params(labelsize=8)
        clear_frame(axes)
    return figure


def _rates(axes: Any, table: Any, places: np.ndarray) -> None:
    """Effective draws per second; of optimisers how long they took."""
    aligned = None if "ess_aligned" not in table else table["ess_aligned"] / (table["seconds"] - table["compiling"])
    kinds = {
        "bulk": ("o", INK, table.get("ess_bulk_per_second")),
        "tail": ("s", INK, table.get("ess_tail_per_second")),
        "aligned factors": ("D", ACCENT, aligned),
    }
    for label, (marker, colour, values) in kinds.items():
        if values is not None:
            face = colour if marker != "s" else "white"
            axes.plot(values.to_numpy(dtype=float), places, marker, color=colour, mfc=face, ms=6, label=label)
    for place, (_, row) in zip(places, table.iterrows(), strict=True):
        if row["verb"] == "fit":
            axes.annotate(
                f"optimiser, {row['seconds']:.2g} s", (0.02, place), xycoords=("axes fraction", "data"), fontsize=8
            )
    if table["verb"].eq("sample").any():
        axes.set_xscale("log")
        _whole_decades(axes)
        axes.legend(frameon=False, fontsize=7, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    axes.set_xlabel("least effective draws per second", fontsize=8)
    axes.set_ylim(-0.6, len(table) - 0.4)


def _whole_decades(axes: Any) -> None:
    """Limits at powers of ten: within a decade matplotlib would label every tick, one over the other."""
    low, high = np.log10(axes.get_xlim())
    axes.set_xlim(10.0 ** np.floor(low), 10.0 ** np.ceil(high))


def _means(axes: Any, comparison: Any, places: np.ndarray) -> None:
    """Differences of means, cell by cell."""
    cells, own = comparison.cells, comparison.cells.sel(engine=comparison.reference)
    for place, engine in zip(places, comparison.table.index, strict=True):
        if engine == comparison.reference:
            axes.annotate("reference", (0.0, place), fontsize=8, ha="center", va="center", bbox=PLAIN)
            continue
        found = cells.sel(engine=engine)
        off = ((found["mean"] - own["mean"]) / own["sd"]).to_numpy()
        error = 2 * (np.sqrt(found["mcse"] ** 2 + own["mcse"] ** 2) / own["sd"]).fillna(0.0).to_numpy()
        errors = {"xerr": error, "fmt": "o", "ms": 2.5, "lw": 0.8}
        axes.errorbar(off, _around(place, len(off)), color=_colour(comparison, engine), **errors)
    axes.axvline(0.0, color=INK, lw=0.8, alpha=0.5)
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(f"mean of W H minus that of {comparison.reference}, in sd", fontsize=8)


def _spreads(axes: Any, comparison: Any, places: np.ndarray) -> None:
    """Ratios of standard deviations, cell by cell."""
    sd = comparison.cells["sd"]
    for place, engine in zip(places, comparison.table.index, strict=True):
        if engine != comparison.reference:
            ratio = (sd.sel(engine=engine) / sd.sel(engine=comparison.reference)).to_numpy()
            axes.plot(ratio, _around(place, len(ratio)), "o", ms=2.5, color=_colour(comparison, engine))
    axes.axvline(1.0, color=INK, lw=0.8, alpha=0.5)
    axes.set_xlim(left=min(0.5, axes.get_xlim()[0]), right=max(1.5, axes.get_xlim()[1]))
    axes.set_xlabel(f"sd of W H over that of {comparison.reference}", fontsize=8)


def _around(place: float, n_cells: int) -> np.ndarray:
    """Heights of an engine's cells."""
    return place + np.linspace(-0.3, 0.3, n_cells)


def _colour(comparison: Any, engine: str) -> str:
    """Whether the engine agrees with the reference."""
    agrees = comparison.table.loc[engine, "agrees"]
    return {None: UNTOLD, True: INK, False: ACCENT}[agrees]

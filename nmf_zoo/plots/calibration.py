"""Ranks of simulation-based calibration against uniform ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, make_figure

COLUMNS = 4
POINTS = 101  # at which distributions are compared
SIMULATED = 2000  # sets of uniform ranks that the band is made of
COVERED = 0.95


def plot_calibration(calibration: xr.Dataset) -> Any:
    """Draw what :func:`~nmf_zoo.calibrate` found; returns the matplotlib Figure.

    For each quantity the distribution of the ranks minus the uniform one, with a band that holds the whole curve with
    probability 95 % where the engine is exact. A posterior that is too narrow gives a curve that rises, falls and
    rises; one that is too high, a hill. Quantities that are off are in the accent colour.

    Parameters
    ----------
    calibration : result of :func:`~nmf_zoo.calibrate`
    """
    if "rank" not in calibration or "quantity" not in calibration.dims:
        raise InputError("calibration", f"a Dataset of {list(calibration.data_vars)}", "the result of nz.calibrate")
    draws, n = calibration.attrs["draws"], calibration.sizes["simulation"]
    quantities = calibration["quantity"].to_numpy()
    n_rows, n_columns = -(-len(quantities) // COLUMNS), min(COLUMNS, len(quantities))
    figure = make_figure(figsize=(2.6 * n_columns, 1.9 * n_rows + 0.7), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
    at = np.linspace(0.0, 1.0, POINTS)
    low, high = uniform_band(n, draws, at)
    for axes, quantity in zip(grid, quantities, strict=False):
        found = calibration.sel(quantity=quantity)
        verdict = found["verdict"].item()
        colour = INK if verdict == "calibrated" else ACCENT
        axes.fill_between(at, low, high, color=INK, alpha=0.12, lw=0)
        axes.plot(at, excess(found["rank"].to_numpy(), draws, at), color=colour, lw=1.2)
        axes.set_title(f"{quantity}: {verdict}", fontsize=8, color=colour)
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    for axes in grid[len(quantities) :]:
        axes.set_axis_off()
    figure.supxlabel("rank of the truth / draws", fontsize=8)
    figure.supylabel("share of ranks below, minus uniform", fontsize=8)
    figure.suptitle(f"{calibration.attrs.get('engine', '')}: {n} simulations", fontsize=10)
    return figure


def excess(ranks: np.ndarray, draws: int, at: np.ndarray) -> np.ndarray:
    """Share of (..., simulation) ranks at or below ``at`` * draws, minus what it is where ranks are uniform."""
    below = np.sort(ranks, axis=-1)
    edges = np.floor(at * draws)
    share = np.stack([np.searchsorted(row, edges, side="right") for row in np.atleast_2d(below)]) / ranks.shape[-1]
    return (share - (edges + 1) / (draws + 1)).reshape(*ranks.shape[:-1], len(at))


def uniform_band(n: int, draws: int, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The narrowest pair of pointwise quantiles between which whole curves of n uniform ranks lie (Saeilynoja 2022)."""
    curves = excess(np.random.default_rng(0).integers(0, draws + 1, (SIMULATED, n)), draws, at)
    ordered = np.sort(curves, axis=0)
    for tail in range(1, SIMULATED // 2):
        low, high = ordered[tail], ordered[-1 - tail]
        if np.mean(np.all((curves >= low) & (curves <= high), axis=1)) < COVERED:
            break
    return ordered[tail - 1], ordered[-tail]

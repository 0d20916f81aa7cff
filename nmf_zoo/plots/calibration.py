"""Ranks of simulation-based calibration against uniform ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, make_figure

COLUMNS = 4
POINTS = 101  # at which distributions are compared
SIMULATED = 2000  # sets of uniform ranks that bands are made of
COVERED = 0.95
BINS, LEAST_IN_BIN = 12, 10  # of a histogram at the most, and the ranks expected in a bin at the least


@names_checked
def plot_calibration(calibration: xr.Dataset) -> Any:
    """Draw what :func:`~nmf_zoo.calibrate` found; returns the matplotlib Figure.

    For each quantity the histogram of the ranks over the uniform one, and below it their distribution minus the uniform
    one; each with a band that holds all of it with probability 95 % where the engine is exact. A posterior that is too
    narrow gives a histogram like a U, and a curve that rises, falls and rises; one that is too high, a histogram that
    falls and a hill. Quantities that are off are in the accent colour.

    Parameters
    ----------
    calibration : result of :func:`~nmf_zoo.calibrate`
    """
    if "rank" not in calibration or "quantity" not in calibration.dims:
        raise InputError("calibration", f"a Dataset of {list(calibration.data_vars)}", "the result of nz.calibrate")
    draws, n = calibration.attrs["draws"], calibration.sizes["simulation"]
    quantities = calibration["quantity"].to_numpy()
    n_lines, n_columns = -(-len(quantities) // COLUMNS), min(COLUMNS, len(quantities))
    figure = make_figure(figsize=(2.6 * n_columns + 0.2, 2.9 * n_lines + 0.5), layout="constrained")
    grid = figure.subplots(2 * n_lines, n_columns, sharex=True, height_ratios=(2, 3) * n_lines, squeeze=False)
    histograms, curves = grid[::2].ravel(), grid[1::2].ravel()
    _histograms(histograms, calibration, draws)
    _curves(curves, calibration, draws)
    for above, below in zip(grid[::2, 0], grid[1::2, 0], strict=True):
        above.set_ylabel("ranks / expected", fontsize=7)
        below.set_ylabel("share below\nminus uniform", fontsize=7)
    for axes in curves[: len(quantities)][-n_columns:]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("rank of the truth / draws", fontsize=8)
    for axes in (*histograms[len(quantities) :], *curves[len(quantities) :]):
        axes.set_axis_off()
    figure.suptitle(f"{calibration.attrs.get('engine', '')}: {n} simulations", fontsize=10)
    return figure


def _histograms(grid: np.ndarray, calibration: xr.Dataset, draws: int) -> None:
    """Above, with the verdicts: counts of ranks in bins, in parts of what is expected."""
    n = calibration.sizes["simulation"]
    edges = bin_edges(n, draws)
    heights = [relative_counts(ranks, draws, edges) for ranks in calibration["rank"].transpose("quantity", ...).values]
    low, high = histogram_band(n, draws, edges)
    places, top = edges / (draws + 1), 1.08 * max(high.max(), np.max(heights))
    verdicts = calibration["verdict"].to_numpy()
    for axes, height, name, verdict in zip(grid, heights, calibration["quantity"].values, verdicts, strict=False):
        colour = _colour(verdict)
        axes.stairs(high, places, baseline=low, fill=True, color=INK, alpha=0.12, lw=0)
        axes.axhline(1.0, color=INK, lw=0.6, alpha=0.5)
        axes.stairs(height, places, color=colour, fill=True, alpha=0.25, lw=0)
        axes.stairs(height, places, color=colour, lw=1.2)
        axes.set_title(f"{name}: {verdict}", fontsize=8, color=colour)
        axes.set_ylim(0.0, top)
        _small(axes)


def _curves(grid: np.ndarray, calibration: xr.Dataset, draws: int) -> None:
    """Below: distributions of ranks minus the uniform one."""
    at = np.linspace(0.0, 1.0, POINTS)
    curves = excess(calibration["rank"].transpose("quantity", ...).to_numpy(), draws, at)
    low, high = uniform_band(calibration.sizes["simulation"], draws, at)
    far = 1.08 * max(high.max(), -low.min(), np.abs(curves).max())
    for axes, curve, verdict in zip(grid, curves, calibration["verdict"].to_numpy(), strict=False):
        axes.fill_between(at, low, high, color=INK, alpha=0.12, lw=0)
        axes.plot(at, curve, color=_colour(verdict), lw=1.2)
        axes.set_ylim(-far, far)
        _small(axes)


def _colour(verdict: str) -> str:
    return INK if verdict == "calibrated" else ACCENT


def _small(axes: Any) -> None:
    axes.tick_params(labelsize=7)
    clear_frame(axes)


def bin_edges(n: int, draws: int) -> np.ndarray:
    """Of the ranks 0, ..., draws: bins as even as whole ranks allow."""
    n_bins = max(2, min(draws + 1, n // LEAST_IN_BIN, BINS))
    return np.linspace(0, draws + 1, n_bins + 1).astype(int)


def relative_counts(ranks: np.ndarray, draws: int, edges: np.ndarray) -> np.ndarray:
    """Counts of (..., simulation) ranks in bins, over those expected of uniform ones."""
    rows = np.atleast_2d(ranks)
    counts = np.stack([np.histogram(row, edges - 0.5)[0] for row in rows])
    expected = ranks.shape[-1] * np.diff(edges) / (draws + 1)
    return (counts / expected).reshape(*ranks.shape[:-1], len(edges) - 1)


def excess(ranks: np.ndarray, draws: int, at: np.ndarray) -> np.ndarray:
    """Share of (..., simulation) ranks at or below ``at`` * draws, minus what it is where ranks are uniform."""
    below = np.sort(ranks, axis=-1)
    edges = np.floor(at * draws)
    share = np.stack([np.searchsorted(row, edges, side="right") for row in np.atleast_2d(below)]) / ranks.shape[-1]
    return (share - (edges + 1) / (draws + 1)).reshape(*ranks.shape[:-1], len(at))


def uniform_band(n: int, draws: int, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the band for :func:`excess` of n ranks."""
    return _band(excess(_uniform_ranks(n, draws), draws, at))


def histogram_band(n: int, draws: int, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the band for :func:`relative_counts` of n ranks."""
    return _band(relative_counts(_uniform_ranks(n, draws), draws, edges))


def _uniform_ranks(n: int, draws: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, draws + 1, (SIMULATED, n))


def _band(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The narrowest pair of pointwise quantiles between which whole curves lie (Saeilynoja 2022)."""
    ordered = np.sort(curves, axis=0)
    for tail in range(1, SIMULATED // 2):
        low, high = ordered[tail], ordered[-1 - tail]
        if np.mean(np.all((curves >= low) & (curves <= high), axis=1)) < COVERED:
            break
    return ordered[tail - 1], ordered[-tail]

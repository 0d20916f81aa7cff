"""The picture of a separation: the profile of each component over frequency, its activation over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from nmf_zoo.structure import Array

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # Okabe and Ito: told apart by all eyes
MOST_POINTS = 600  # along the time axis: more can't be seen
RANGE = 80.0  # dB below the highest that are shown
INTERVAL = 1.645  # standard deviations to either side of 90 %


def draw_components(found: xr.Dataset) -> Figure:
    """One row per component: its profile in dB over Hz, its power in dB of full scale over s with a 90 % interval."""
    rank = found.sizes["component"]
    figure = Figure(figsize=(10, 1.55 * rank + 1.0), layout="constrained")
    grid = figure.subplots(rank, 2, squeeze=False, sharex="col", sharey="col", width_ratios=(1, 1.7))
    profiles = decibel(found["W"].to_numpy())
    for k, (left, right) in enumerate(grid):
        colour = COLOURS[k % len(COLOURS)]
        left.plot(found["frequency"], profiles[:, k], color=colour, lw=1.0)
        times, mean, sd = thinned(found, k)
        _draw_activation(right, times, mean, sd, colour)
        share = float(found["share"][k])
        left.set_ylabel("dB", fontsize=8)
        right.set_ylabel("dB of full scale", fontsize=8)
        left.set_title(f"component {k + 1}: {share:.1%} of the energy", fontsize=9, loc="left")
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8)
            axes.grid(color="#dddddd", lw=0.5)
    _finish(grid, profiles, found)
    return figure


def decibel(power: Array) -> Array:
    """Of power; nothing is -300."""
    return 10.0 * np.log10(np.maximum(power, 1e-30))


def thinned(found: xr.Dataset, k: int) -> tuple[Array, Array, Array]:
    """(times, mean, sd) of the power of component k, averaged over neighbours to at most MOST_POINTS."""
    stride = -(-found.sizes["time"] // MOST_POINTS)
    groups = np.arange(0, found.sizes["time"], stride)
    counts = np.diff(np.append(groups, found.sizes["time"]))
    mean = np.add.reduceat(found["H"].to_numpy()[k], groups) / counts
    variance = np.add.reduceat(found["H_sd"].to_numpy()[k] ** 2, groups) / counts
    return found["time"].to_numpy()[groups + (counts - 1) // 2], mean, np.sqrt(variance)


def _draw_activation(axes: Any, times: Array, mean: Array, sd: Array, colour: str) -> None:
    """A line with the interval of a log-normal with this mean and standard deviation; a gap where it is silent."""
    sounds = mean > 0
    mean = np.where(sounds, mean, np.nan)
    spread = np.sqrt(np.log1p((sd / mean) ** 2))
    middle = np.log(mean) - spread**2 / 2
    low, centre, high = (10 / np.log(10) * (middle + sign * INTERVAL * spread) for sign in (-1, 0, 1))
    axes.fill_between(times, low, high, color=colour, alpha=0.3, lw=0)
    axes.plot(times, centre, color=colour, lw=0.8)


def _finish(grid: Any, profiles: Array, found: xr.Dataset) -> None:
    left, right = grid[-1]
    left.set_xscale("log")
    left.set_xlim(float(found["frequency"][0]), float(found["frequency"][-1]))
    left.xaxis.set_major_formatter(FuncFormatter(lambda hertz, _: f"{hertz:g}"))
    left.xaxis.set_minor_formatter(NullFormatter())
    left.set_ylim(max(profiles.min(), profiles.max() - RANGE) - 3, profiles.max() + 3)
    highest = max(line.get_ydata()[np.isfinite(line.get_ydata())].max() for _, axes in grid for line in axes.lines)
    lowest = min(line.get_ydata()[np.isfinite(line.get_ydata())].min() for _, axes in grid for line in axes.lines)
    right.set_ylim(max(lowest, highest - RANGE) - 3, highest + 3)
    right.set_xlim(float(found["time"][0]), float(found["time"][-1]))
    left.set_xlabel("frequency (Hz)")
    right.set_xlabel("time (s)")
    grid[0][1].set_title("power over time, with 90 % intervals", fontsize=9, loc="left")

"""Activations sample by sample, with their uncertainty."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, intervals, make_figure, what_is_drawn
from nmf_zoo.results.components import component_sizes

PLACES = "iufM"  # kinds of labels that are places on an axis: numbers, dates and times
MOST_POINTS = 4000  # of a line: more samples are drawn as means over equal stretches
MOST_BARS = 60  # samples that are drawn as points with intervals: more become a line with a band
MOST_NAMES = 40  # of samples without an order that stand below an axis


def plot_activations(idata: Any, *, chain: int | None = None, weights: str = "W", activations: str = "H") -> Any:
    """Draw what each component adds to each sample: sum_f w_fk h_kn, posterior mean and 90% interval.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample`, :func:`~nmf_zoo.fit` or :func:`~nmf_zoo.align`
    chain : whose draws; None for the chains that are in the mode of the best one, of a fit for the best restart
    weights, activations : names of the factors

    Returns
    -------
    matplotlib Figure, a row for each component. In units of the data: the scale of H alone is the prior's business
    """
    sizes = component_sizes(idata, chain, weights, activations)
    rank, n_samples = sizes.sizes["component"], sizes.sizes["obs"]
    figure = make_figure(figsize=(9.0, 1.05 * rank + 0.9), layout="constrained")
    grid = figure.subplots(rank, 1, sharex=True, squeeze=False)[:, 0]
    at, mean, low, high = _summary(sizes)
    has_order = sizes["obs"].dtype.kind in PLACES
    for component, axes in enumerate(grid):
        if n_samples <= MOST_BARS or not has_order:  # a line would join what has no order
            axes.vlines(at, low[component], high[component], color=ACCENT, lw=1.2 if n_samples <= MOST_BARS else 0.6)
            axes.plot(at, mean[component], "o", color=INK, ms=3 if n_samples <= MOST_BARS else 1.5)
        else:
            axes.fill_between(at, low[component], high[component], color=ACCENT, alpha=0.35, lw=0)
            axes.plot(at, mean[component], color=INK, lw=0.8)
        axes.set_ylabel(str(sizes["component"].to_numpy()[component]), rotation=0, labelpad=12)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    grid[-1].set_xlabel(str(sizes.attrs["obs"]), fontsize=8)
    _label_samples(grid[-1], sizes["obs"].to_numpy(), at)
    figure.suptitle(f"What each component adds to a sample: {what_is_drawn(sizes.sizes['draw'])}", fontsize=10)
    return figure


def _summary(sizes: xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places, means and interval ends (components, places), over stretches of samples where there are very many."""
    labels = sizes["obs"].to_numpy()
    at = labels if labels.dtype.kind in PLACES else np.arange(len(labels))
    stretch = -(-len(at) // MOST_POINTS)
    mean = sizes.transpose("draw", ...).to_numpy().mean(axis=0)  # xarray's looks for NaN, in a copy
    low, high = intervals(sizes)
    if stretch == 1:
        return at, mean, low, high
    starts = np.arange(0, len(at), stretch)
    lengths = np.diff([*starts, len(at)])
    mean, low, high = (np.add.reduceat(array, starts, axis=1) / lengths for array in (mean, low, high))
    return at[starts], mean, low, high


def _label_samples(axes: Any, labels: np.ndarray, at: np.ndarray) -> None:
    """Dates in few words; names where samples have some, every so-manieth where there is no room for all."""
    if labels.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    elif labels.dtype.kind not in PLACES and len(at) == len(labels):
        few = slice(None, None, 1 if len(labels) <= MOST_BARS else -(-len(labels) // MOST_NAMES))
        axes.set_xticks(at[few], [str(label) for label in labels[few]], rotation=90, fontsize=6)

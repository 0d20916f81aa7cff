"""Activations sample by sample, with their uncertainty."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, make_figure
from nmf_zoo.results.components import component_sizes
from nmf_zoo.results.posterior import INTERVAL

MOST_POINTS = 4000  # of a line: more samples are drawn as means over equal stretches
MOST_BARS = 60  # samples that are drawn as points with intervals: more become a line with a band


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
    for component, axes in enumerate(grid):
        if n_samples <= MOST_BARS:
            axes.vlines(at, low[component], high[component], color=ACCENT, lw=1.2)
            axes.plot(at, mean[component], "o", color=INK, ms=3)
        else:
            axes.fill_between(at, low[component], high[component], color=ACCENT, alpha=0.35, lw=0)
            axes.plot(at, mean[component], color=INK, lw=0.8)
        axes.set_ylabel(str(sizes["component"].to_numpy()[component]), rotation=0, labelpad=12)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    grid[-1].set_xlabel(str(sizes.attrs["obs"]), fontsize=8)
    _label_samples(grid[-1], sizes["obs"].to_numpy(), at)
    figure.suptitle("What each component adds to a sample: posterior mean and 90% interval", fontsize=10)
    return figure


def _summary(sizes: xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places, means and interval ends (components, places), over stretches of samples where there are very many."""
    labels = sizes["obs"].to_numpy()
    at = labels if labels.dtype.kind in "iuf" else np.arange(len(labels))
    stretch = -(-len(at) // MOST_POINTS)
    mean = sizes.mean("draw").to_numpy()
    low, high = sizes.quantile(INTERVAL, dim="draw").to_numpy()
    if stretch == 1:
        return at, mean, low, high
    starts = np.arange(0, len(at), stretch)
    lengths = np.diff([*starts, len(at)])
    mean, low, high = (np.add.reduceat(array, starts, axis=1) / lengths for array in (mean, low, high))
    return at[starts], mean, low, high


def _label_samples(axes: Any, labels: np.ndarray, at: np.ndarray) -> None:
    """Names where samples have some and there is room."""
    if labels.dtype.kind not in "iuf" and len(labels) <= MOST_BARS:
        axes.set_xticks(at, [str(label) for label in labels], rotation=90, fontsize=6)

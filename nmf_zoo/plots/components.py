"""Components with their uncertainty: as images, bars, spectra or top features.

Components have the order of the result, in every chain, and are those of the chains in the mode of the best one. Each
draw's columns of W are scaled to sum to one first: the data see only the product W H, and the scale of a column is the
prior's business.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.plots.figure import ACCENT, INK, check_image_shape, clear_frame, intervals, make_figure, what_is_drawn
from nmf_zoo.results.channels import SBS96, SUBSTITUTIONS, order_of_channels
from nmf_zoo.results.component_order import component_order, describe_shown
from nmf_zoo.results.components import component_shares
from nmf_zoo.results.posterior import INTERVAL

MOST_BARS = 120  # features that can be told apart as bars; above, the top ones are shown
MOST_IMAGES = 12  # in one line
TOP = 12
OF_SUBSTITUTIONS = dict(
    zip(SUBSTITUTIONS, ("#1ebff0", "#050708", "#e62725", "#9b9a9a", "#86b74a", "#d68f8c"), strict=True)
)
FAINTEST = 1e-8  # share that a spectrum still shows


def plot_components(
    idata: Any,
    *,
    chain: int | None = None,
    shape: tuple[int, int] | None = None,
    layout: Literal["sbs96"] | None = None,
    weights: str = "W",
    activations: str = "H",
) -> Any:
    """Draw the components in the result's order; returns the matplotlib Figure.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    chain : whose draws; None for the chains that are in the mode of the best one, of a fit for the best restart
    shape : (rows, columns) when the features are the pixels of an image, row by row
    layout : "sbs96" when the features are the 96 channels of single-base substitutions, in any order and any of the
        usual spellings (A[C>A]A, ACA>AAA, ...): they are drawn in the field's order and colours
    weights, activations : names of the two factors
    """
    if layout not in (None, "sbs96"):
        raise InputError("layout", repr(layout), "'sbs96' or None")
    shares = component_shares(idata, chain, weights, activations)
    if layout is not None:
        return _channels(shares)
    if shape is not None:
        return _images(shares, shape, _whose(idata, chain, weights, activations))
    if shares.sizes["feature"] <= MOST_BARS:
        return _bars(shares)
    scale = _scale(shares["feature"].to_numpy())
    return _top_bars(shares) if scale is None else _spectra(shares, scale)


def _whose(idata: Any, chain: int | None, weights: str, activations: str) -> str:
    order = component_order(idata, weights, activations)
    return f"chain {chain}" if chain is not None or order is None else describe_shown(order, idata)


def _images(shares: xr.DataArray, shape: tuple[int, int], title: str) -> Any:
    """Posterior means above, relative uncertainty below, one colour scale for each."""
    n_draws, rank, n_features = shares.shape
    check_image_shape(shape, n_features)
    mean, spread = shares.mean("draw").to_numpy(), shares.std("draw").to_numpy()
    relative = np.divide(spread, mean, out=np.full_like(mean, np.nan), where=mean > 0)
    rows = [(mean, "posterior mean" if n_draws > 1 else "estimate", "magma", _shades(mean))]
    rows += [(relative, "sd / mean", "viridis", _decades(relative))] if n_draws > 1 else []
    n_columns = min(rank, MOST_IMAGES)
    n_lines = -(-rank // n_columns)
    size = (1.05 * n_columns + 1.2, (1.25 * len(rows)) * n_lines + 0.55)
    figure = make_figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows) * n_lines, n_columns, squeeze=False).reshape(len(rows), -1)
    labels = [f"w[{label}]" for label in shares["component"].to_numpy()]
    for axes, (images, label, colours, norm) in zip(grid, rows, strict=True):
        for each in axes:
            each.set(xticks=[], yticks=[])
            each.spines[:].set_visible(False)
        for each, image in zip(axes, images, strict=False):
            shown = each.imshow(image.reshape(shape), cmap=colours, norm=norm, interpolation="nearest")
        axes[0].set_ylabel(label, fontsize=9)
        bar = figure.colorbar(shown, ax=list(axes), fraction=0.02, pad=0.01)
        bar.ax.tick_params(labelsize=7, length=2, which="both")
        bar.outline.set_visible(False)
    for axes in grid[:1] if n_lines == 1 else grid:
        for each, label in zip(axes, labels, strict=False):
            each.set_title(label, fontsize=8, pad=3)
    figure.suptitle(f"Columns of W, each scaled to sum one: {title}", fontsize=10)
    return figure


def _shades(mean: np.ndarray) -> Any:
    """Colours that keep faint templates visible beside concentrated ones."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.6, vmin=0.0, vmax=max(float(mean.max()), 1e-300))


def _decades(relative: np.ndarray) -> Any:
    """Relative uncertainty on a log scale: inked pixels are known to a few percent, empty ones hardly at all."""
    from matplotlib.colors import LogNorm

    positive = relative[relative > 0]
    low, high = (np.quantile(positive, (0.01, 0.99))) if positive.size else (0.1, 1.0)
    return LogNorm(vmin=low, vmax=max(high, 1.01 * low))


def _bars(shares: xr.DataArray) -> Any:
    """One row of bars per component, features in order, with 90% intervals."""
    rank, n_features = shares.shape[1:]
    figure = make_figure(figsize=(max(6.0, 0.11 * n_features + 1.5), 1.15 * rank + 0.9), layout="constrained")
    grid = figure.subplots(rank, 1, sharex=True, squeeze=False)[:, 0]
    mean = shares.mean("draw").to_numpy()
    low, high = intervals(shares)
    at = np.arange(n_features)
    for component, axes in enumerate(grid):
        axes.bar(at, mean[component], color=INK, width=0.75)
        axes.vlines(at, low[component], high[component], color=ACCENT, lw=1.1)
        axes.set_ylabel(str(shares["component"].to_numpy()[component]), rotation=0, labelpad=12)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    grid[-1].set_xticks(
        at, [str(label) for label in shares["feature"].to_numpy()], rotation=90, fontsize=5.5 if n_features > 40 else 8
    )
    grid[-1].set_xlim(-0.7, n_features - 0.3)
    figure.suptitle(f"Share of each feature in its component: {what_is_drawn(shares.sizes['draw'])}", fontsize=10)
    return figure


def _channels(shares: xr.DataArray) -> Any:
    """Bars in the order and the colours that catalogues of mutational signatures have."""
    order = order_of_channels(shares["feature"].to_numpy())
    if order is None:
        got = f"{shares.sizes['feature']} features, such as {str(shares['feature'].to_numpy()[0])!r}"
        raise InputError("layout", f"'sbs96' with {got}", "the 96 channels, such as 'A[C>A]A' or 'ACA>AAA', each once")
    figure = _bars(shares.isel(feature=order).assign_coords(feature=[f"{name[0]}{name[2]}{name[6]}" for name in SBS96]))
    for axes in figure.axes:
        for bar, name in zip(axes.patches, SBS96, strict=True):
            bar.set_facecolor(OF_SUBSTITUTIONS[name[2:5]])
    for place, (name, colour) in enumerate(OF_SUBSTITUTIONS.items()):
        figure.axes[0].text(
            (place + 0.5) / 6, 1.02, name, transform=figure.axes[0].transAxes, ha="center", color=colour
        )
    return figure


def _scale(labels: np.ndarray) -> np.ndarray | None:
    """Labels that are places on a scale, such as frequencies in Hz (as text, too); None for names and whole numbers."""
    try:
        places = labels.astype(np.float64)
    except (TypeError, ValueError):
        return None
    is_scale = labels.dtype.kind == "f" or np.any(places != np.round(places))
    return places if is_scale and np.all(np.diff(places) > 0) else None


def _spectra(shares: xr.DataArray, at: np.ndarray) -> Any:
    """One curve per component over the features' scale, in decades, with a band of 90% intervals."""
    rank = shares.sizes["component"]
    figure = make_figure(figsize=(8.0, 1.4 * rank + 0.9), layout="constrained")
    grid = figure.subplots(rank, 1, sharex=True, squeeze=False)[:, 0]
    mean = shares.mean("draw").to_numpy()
    low, high = (np.maximum(end, FAINTEST) for end in intervals(shares))
    for component, axes in enumerate(grid):
        axes.fill_between(at, low[component], high[component], color=ACCENT, alpha=0.35, lw=0)
        axes.plot(at, np.maximum(mean[component], FAINTEST), color=INK, lw=1.0)
        axes.set_ylabel(str(shares["component"].to_numpy()[component]), rotation=0, labelpad=12)
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(FAINTEST, 0.3 * float(low[component].min())))
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    grid[-1].set_xlim(at[0], at[-1])
    grid[-1].set_xlabel("feature", fontsize=8)
    figure.suptitle(f"Share of each feature in its component: {what_is_drawn(shares.sizes['draw'])}", fontsize=10)
    return figure


def _top_bars(shares: xr.DataArray) -> Any:
    """The top features of each component as horizontal bars, with 90% intervals."""
    rank = shares.sizes["component"]
    n_columns = min(rank, 5)
    n_rows = -(-rank // n_columns)
    figure = make_figure(figsize=(2.6 * n_columns, 2.5 * n_rows + 0.4), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    labels, mean = shares["feature"].to_numpy(), shares.mean("draw").to_numpy()
    for component, axes in enumerate(grid[:rank]):
        top = np.argsort(-mean[component], kind="stable")[:TOP][::-1]
        low, high = shares.isel(component=component, feature=top).quantile(INTERVAL, dim="draw").to_numpy()
        axes.barh(np.arange(len(top)), mean[component, top], color=INK, height=0.7)
        axes.hlines(np.arange(len(top)), low, high, color=ACCENT, lw=1.4)
        axes.set_yticks(np.arange(len(top)), [str(label) for label in labels[top]], fontsize=8)
        axes.set_title(str(shares["component"].to_numpy()[component]), fontsize=9)
        axes.tick_params(axis="x", labelsize=7)
        axes.locator_params(axis="x", nbins=4)
        clear_frame(axes)
    for axes in grid[rank:]:
        axes.set_axis_off()
    figure.suptitle(f"Top features of each component: share, {what_is_drawn(shares.sizes['draw'])}", fontsize=10)
    return figure

"""Components with their uncertainty: as images, bars, spectra or top features.

Components have the order of the result, in every chain, and are those of the chains in the mode of the best one. Each
draw's columns of W are scaled to sum to one first: the data see only the product W H, and the scale of a column is the
prior's business.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError, check_word, number_of
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import (
    ACCENT,
    INK,
    as_text,
    check_image_shape,
    clear_frame,
    intervals,
    make_figure,
    name_row,
    what_is_drawn,
)
from nmf_zoo.plots.groups import Band, Groups, draw_headings, name_groups, read_groups
from nmf_zoo.results.channels import CHANNELS, Channels
from nmf_zoo.results.component_order import component_order, describe_shown
from nmf_zoo.results.components import component_shares
from nmf_zoo.results.posterior import INTERVAL

MOST_BARS = 120  # features that can be told apart as bars; above, the top ones are shown
MOST_IMAGES = 12  # in one line
TOP = 12
RELATIVE = "sd / mean"
FAINTEST = 1e-8  # share that a spectrum still shows


@names_checked
def plot_components(
    idata: Any,
    *,
    chain: int | None = None,
    shape: tuple[int, int] | None = None,
    layout: Literal["auto", "sbs96", "dbs78", "id83"] | None = "auto",
    feature_groups: Any = None,
    weights: str = "W",
    activations: str = "H",
) -> Any:
    """Draw the components in the result's order; returns the matplotlib Figure.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    chain : whose draws; None for the chains that are in the mode of the best one, of a fit for the best restart
    shape : (rows, columns) when the features are the pixels of an image, row by row
    layout : "sbs96", "dbs78" or "id83" when the features are the channels of such a catalogue of mutations, in any
        order and any of the usual spellings (A[C>A]A, ACA>AAA, ...): they are drawn in the field's order and colours.
        "auto" does so where the features are all of the channels; None never
    feature_groups : mapping or Series from features to groups, or one group for each feature: features are drawn group
        by group, in the colours of the groups
    weights, activations : names of the two factors
    """
    check_word("layout", layout, ("auto", *CHANNELS, None))
    shares = component_shares(idata, chain, weights, activations)
    if shape is not None:
        if feature_groups is not None:
            raise InputError("feature_groups", "groups beside shape=", "one of them", "pixels have no groups")
        return _images(shares, shape, _whose(idata, chain, weights, activations))
    labels = shares["feature"].to_numpy()
    if feature_groups is not None:
        groups = read_groups("feature_groups", feature_groups, labels)
        return _grouped_bars(shares, groups) if len(labels) <= MOST_BARS else _top_bars(shares, groups)
    if (table := _table(labels, layout)) is not None:
        return _channels(shares, table)
    if len(labels) <= MOST_BARS:
        return _bars(shares)[0]
    scale = _scale(labels)
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
    rows += [(relative, RELATIVE, "viridis", _decades(relative))] if n_draws > 1 else []
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
        if label == RELATIVE:
            _few_ticks(bar.ax.yaxis)
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


def _few_ticks(axis: Any) -> None:
    """Of a log scale of about a decade: 1, 2 and 5, which leave each other room, as numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _bars(shares: xr.DataArray, colours: np.ndarray | None = None) -> tuple[Any, float]:
    """One row of bars per component, features in order, with 90% intervals; and inches between two bars."""
    rank, n_features = shares.shape[1:]
    width = max(6.0, 0.11 * n_features + 1.5)
    figure = make_figure(figsize=(width, 1.15 * rank + 0.9), layout="constrained")
    grid = figure.subplots(rank, 1, squeeze=False)[:, 0]
    mean = shares.mean("draw").to_numpy()
    low, high = intervals(shares)
    at, ends = np.arange(n_features), ACCENT if colours is None else INK
    for component, axes in enumerate(grid):
        axes.bar(at, mean[component], color=INK if colours is None else colours, width=0.75)
        axes.vlines(at, low[component], high[component], color=ends, lw=1.1)
        name_row(axes, shares["component"].to_numpy()[component])
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.set_xlim(-0.7, n_features - 0.3)
        axes.set_xticks([])  # one for each feature and row would take most of the time, and of the memory
        clear_frame(axes)
    labels = [as_text(label) for label in shares["feature"].to_numpy()]
    grid[-1].set_xticks(at, labels, rotation=90, fontsize=5.5 if n_features > 40 else 8)
    figure.suptitle(f"Share of each feature in its component: {what_is_drawn(shares.sizes['draw'])}", fontsize=10)
    return figure, (width - 1.2) / n_features


def _grouped_bars(shares: xr.DataArray, groups: Groups) -> Any:
    """Bars group by group."""
    order = groups.order
    figure, inches = _bars(shares.isel(feature=order), np.array(groups.colours)[groups.members[order]])
    draw_headings(figure, figure.axes[0], groups.bands, inches)
    return figure


def _table(labels: np.ndarray, layout: str | None) -> Channels | None:
    """The catalogue that the features are the channels of."""
    if layout == "auto":
        return next((table for table in CHANNELS.values() if table.order(labels) is not None), None)
    table = None if layout is None else CHANNELS[layout]
    if table is not None and table.order(labels) is None:
        got = f"{layout!r} with {number_of(len(labels), 'feature')}, such as {str(labels[0])!r}"
        spelt = " or ".join(map(repr, table.examples))
        raise InputError("layout", got, f"the {len(table.names)} channels, such as {spelt}, each once")
    return table


def _channels(shares: xr.DataArray, table: Channels) -> Any:
    """Bars in the order and the colours that catalogues of mutational signatures have."""
    order = table.order(shares["feature"].to_numpy())
    bands, stop = [], 0
    for group in table.groups:
        start, stop = stop, stop + len(group.channels)
        bands.append(Band(start, stop, group.name, group.colour, group.over))
    colours = np.array([band.colour for band in bands for _ in range(band.start, band.stop)])
    in_order = shares.isel(feature=order).assign_coords(feature=list(table.ticks))
    figure, inches = _bars(in_order, colours)
    draw_headings(figure, figure.axes[0], bands, inches)
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
        name_row(axes, shares["component"].to_numpy()[component])
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(FAINTEST, 0.3 * float(low[component].min())))
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    grid[-1].set_xlim(at[0], at[-1])
    grid[-1].set_xlabel("feature", fontsize=8)
    figure.suptitle(f"Share of each feature in its component: {what_is_drawn(shares.sizes['draw'])}", fontsize=10)
    return figure


def _top_bars(shares: xr.DataArray, groups: Groups | None = None) -> Any:
    """The top features of each component as horizontal bars, with 90% intervals; in the colours of groups."""
    rank = shares.sizes["component"]
    labels, mean = shares["feature"].to_numpy(), shares.mean("draw").to_numpy()
    tops = [np.argsort(-row, kind="stable")[:TOP][::-1] for row in mean]
    longest = max(len(as_text(labels[place])) for top in tops for place in top)
    width = 1.7 + 0.07 * longest  # of bars, and of names beside them
    n_columns = max(1, min(rank, int(13.0 / width)))
    n_rows = -(-rank // n_columns)
    figure = make_figure(figsize=(width * n_columns, 2.5 * n_rows + 0.4), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    colours = None if groups is None else np.array(groups.colours)[groups.members]
    for component, (axes, top) in enumerate(zip(grid, tops, strict=False)):
        low, high = shares.isel(component=component, feature=top).quantile(INTERVAL, dim="draw").to_numpy()
        axes.barh(np.arange(len(top)), mean[component, top], color=INK if colours is None else colours[top], height=0.7)
        axes.hlines(np.arange(len(top)), low, high, color=ACCENT if colours is None else INK, lw=1.4)
        axes.set_yticks(np.arange(len(top)), [as_text(label) for label in labels[top]], fontsize=8)
        axes.set_title(as_text(shares["component"].to_numpy()[component]), fontsize=9)
        axes.tick_params(axis="x", labelsize=7)
        axes.locator_params(axis="x", nbins=3)
        clear_frame(axes)
    for axes in grid[rank:]:
        axes.set_axis_off()
    figure.suptitle(f"Top features of each component: share, {what_is_drawn(shares.sizes['draw'])}", fontsize=10)
    if groups is not None:
        name_groups(figure, groups.names, groups.colours)
    return figure

"""Activations sample by sample, with their uncertainty: along time or another scale, by name, in groups, or sorted."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr

from nmf_zoo.errors import check_word
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import (
    ACCENT,
    INK,
    PLACES,
    as_text,
    clear_frame,
    make_figure,
    name_row,
    use_dates,
    what_is_drawn,
)
from nmf_zoo.plots.groups import Groups, draw_headings, read_groups
from nmf_zoo.results.components import activations_and_totals
from nmf_zoo.results.posterior import INTERVAL
from nmf_zoo.results.run_attributes import beside_factors, where_they_are_one

MOST_POINTS = 4000  # of a line: more samples are drawn as means over equal stretches
MOST_BARS = 60  # samples that are drawn as points with intervals: more become a line with a band, or are sorted
ORDERS = ("auto", "given", "size")
SCALES = ("auto", "linear", "log")
WIDE = 30.0  # times the median that the largest mean is where a linear scale shows little else
DECADES = 6  # of a log scale, below the largest
WIDTH = 9.0


@names_checked
def plot_activations(
    idata: Any,
    *,
    chain: int | None = None,
    order: Literal["auto", "given", "size"] = "auto",
    scale: Literal["auto", "linear", "log"] = "auto",
    sample_groups: Any = None,
    weights: str = "W",
    activations: str = "H",
) -> Any:
    """Draw what each component adds to each sample: sum_f w_fk h_kn, posterior mean and 90% interval.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample`, :func:`~nmf_zoo.fit` or :func:`~nmf_zoo.align`
    chain : whose draws; None for the chains that are in the mode of the best one, of a fit for the best restart
    order : "given" as samples come, by date or place where their labels are such; "size": in each row its own samples
        from the largest to the smallest, group by group; "auto": by size where more than 60 samples have names, which
        are no places and which there is no room for, else as given
    scale : "log", "linear", or "auto": log where some sample is beyond 30 times the median of its row
    sample_groups : mapping or Series from samples to groups, or one group for each sample: samples are drawn group by
        group, in the colours of the groups
    weights, activations : names of the factors

    Returns
    -------
    matplotlib Figure, a row for each component. In units of the data, since the scale of H alone is the prior's
    business; of a model with an exposure or multipliers of batches where these are 1, as the title then says
    """
    for name, value, allowed in (("order", order, ORDERS), ("scale", scale, SCALES)):
        check_word(name, value, allowed)
    H, totals = activations_and_totals(idata, chain, weights, activations)
    labels = H["obs"].to_numpy()
    groups = None if sample_groups is None else read_groups("sample_groups", sample_groups, labels)
    is_sorted = order == "size" or (order == "auto" and len(labels) > MOST_BARS and not _are_places(labels))
    drawn = _summary(H, totals)
    figure = make_figure(figsize=(WIDTH, 1.05 * len(drawn.mean) + 0.9), layout="constrained")
    grid = figure.subplots(len(drawn.mean), 1, sharex=True, squeeze=False)[:, 0]
    if is_sorted or groups is not None:
        _draw_places(grid, drawn, groups, is_sorted)
    else:
        _draw_along(grid, drawn, labels)
    for axes, row, label in zip(grid, drawn.mean, H["component"].to_numpy(), strict=True):
        _scale_of(axes, row, scale)
        name_row(axes, label)
        axes.tick_params(labelsize=7)
        clear_frame(axes)
    what = f"{H.attrs['obs']}, each row from its largest to its smallest" if is_sorted else str(H.attrs["obs"])
    grid[-1].set_xlabel(what, fontsize=8)
    if not is_sorted:
        _label_samples(grid[-1], labels, None if groups is None else groups.order)
    if groups is not None:
        draw_headings(figure, grid[0], groups.bands, (WIDTH - 1.0) / len(labels))
    unit = where_they_are_one(beside_factors(idata.attrs))
    what = f"What each component adds to a sample {unit}".strip()
    figure.suptitle(f"{what}: {what_is_drawn(H.sizes['draw'])}", fontsize=10)
    return figure


class _Drawn(NamedTuple):
    """Means and ends of intervals, (component, sample)."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def taken(self, order: np.ndarray) -> _Drawn:
        """Samples in another order, (sample,) or (component, sample)."""
        whole = np.broadcast_to(order, self.mean.shape)
        return _Drawn(*(np.take_along_axis(array, whole, axis=1) for array in self))


def _summary(H: xr.DataArray, totals: np.ndarray) -> _Drawn:
    """One component after the other: what all of them add would be a second copy of the draws."""
    rows = [_of_component(H[:, k].to_numpy() * totals[:, k, None]) for k in range(H.shape[1])]
    return _Drawn(*map(np.stack, zip(*rows, strict=True)))


def _of_component(sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of draws (draw, sample)."""
    return sizes.mean(axis=0), *np.quantile(sizes, INTERVAL, axis=0)


def _are_places(labels: np.ndarray) -> bool:
    return labels.dtype.kind in PLACES


def _draw_along(grid: np.ndarray, drawn: _Drawn, labels: np.ndarray) -> None:
    """Points with intervals; a line with a band where there are many and their labels are places."""
    at = labels if _are_places(labels) else np.arange(len(labels))
    if len(labels) <= MOST_BARS or not _are_places(labels):  # a line would join what has no order
        _points(grid, at, drawn, ACCENT)
        return
    at, drawn = _stretches(at, drawn)
    for axes, mean, low, high in zip(grid, *drawn, strict=True):
        axes.fill_between(at, low, high, color=ACCENT, alpha=0.35, lw=0)
        axes.plot(at, mean, color=INK, lw=0.8)


def _draw_places(grid: np.ndarray, drawn: _Drawn, groups: Groups | None, is_sorted: bool) -> None:
    """Side by side, group by group, from the largest where they are sorted."""
    n = drawn.mean.shape[1]
    members = np.zeros(n, dtype=int) if groups is None else groups.members
    by_size = -drawn.mean if is_sorted else np.zeros((1, n))
    order = np.stack([np.lexsort((row, members)) for row in by_size])
    colours: Any = ACCENT if groups is None else np.array(groups.colours)[np.sort(members, kind="stable")]
    _points(grid, np.arange(n), drawn.taken(order), colours)


def _points(grid: np.ndarray, at: np.ndarray, drawn: _Drawn, colours: Any) -> None:
    few = len(at) <= MOST_BARS
    for axes, mean, low, high in zip(grid, *drawn, strict=True):
        axes.vlines(at, low, high, color=colours, lw=1.2 if few else max(0.3, 0.6 * WIDTH * 60 / len(at)))
        axes.plot(at, mean, "o" if few else ".", color=INK, ms=3 if few else 1.5)


def _stretches(at: np.ndarray, drawn: _Drawn) -> tuple[np.ndarray, _Drawn]:
    """Means over stretches of samples where there are very many."""
    stretch = -(-len(at) // MOST_POINTS)
    if stretch == 1:
        return at, drawn
    starts = np.arange(0, len(at), stretch)
    lengths = np.diff([*starts, len(at)])
    return at[starts], _Drawn(*(np.add.reduceat(array, starts, axis=1) / lengths for array in drawn))


def _scale_of(axes: Any, mean: np.ndarray, scale: str) -> None:
    """A log scale over six decades at the most, or one from 0."""
    top, middle = float(mean.max()), float(np.median(mean))
    if scale == "linear" or top <= 0.0 or (scale == "auto" and top <= WIDE * middle):
        axes.set_ylim(bottom=0)
        return
    least = float(mean[mean > 0].min())
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(max(0.5 * least, top / 10**DECADES), 2.0 * top)


def _label_samples(axes: Any, labels: np.ndarray, order: np.ndarray | None) -> None:
    """Dates in few words; names where samples have some, every so-manieth where there is no room for all."""
    if order is None and labels.dtype.kind == "M":
        use_dates(axes.xaxis)
    elif order is not None or not _are_places(labels):
        shown = np.arange(len(labels)) if order is None else order
        few = np.arange(0, len(shown), -(-len(shown) // MOST_BARS))
        axes.set_xticks(few, [as_text(labels[place]) for place in shown[few]], rotation=90, fontsize=6)

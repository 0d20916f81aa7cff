"""Pictures of a result: components with their uncertainty, as images, bars, spectra or top features; a run's trace.

Components belong to one chain (or restart), since they swap places between chains. Each draw's columns of W are scaled
to sum to one first: the data see only the product W H, and the scale of a column alone is the prior's business.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo import _compat
from nmf_zoo.components import component_shares
from nmf_zoo.errors import InputError

MOST_BARS = 120  # features that can be told apart as bars; above, the top ones are shown
TOP = 12
FAINTEST = 1e-8  # share that a spectrum still shows
INTERVAL = (0.05, 0.95)
INK, ACCENT = "#22304a", "#c4552d"


def plot_components(
    idata: Any, *, chain: int = 0, image_shape: tuple[int, int] | None = None, weights: str = "W"
) -> Any:
    """Draw the components of one chain; returns the matplotlib Figure.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    chain : whose components
    image_shape : (rows, columns) when the features are the pixels of an image, row by row
    weights : name of W
    """
    shares = component_shares(idata, chain, weights)
    if image_shape is not None:
        return _images(shares, image_shape, f"chain {chain}")
    if shares.sizes["feature"] <= MOST_BARS:
        return _bars(shares)
    scale = _scale(shares["feature"].to_numpy())
    return _top_bars(shares) if scale is None else _spectra(shares, scale)


def plot_trace(idata: Any) -> Any:
    """Draw the log joint density draw by draw, or an optimiser's objective by iteration; returns the Figure."""
    is_fit = "fit" in _compat.group_names(idata)
    group = _compat.group(idata, "fit" if is_fit else "sample_stats")
    lines, along = (group["objective"], "iteration") if is_fit else (group["lp"], "draw")
    figure = _figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for label, line in zip(lines["chain"].to_numpy(), lines.transpose("chain", along).to_numpy(), strict=True):
        axes.plot(
            lines[along].to_numpy(), line, lw=0.9, alpha=0.85, label=f"{'restart' if is_fit else 'chain'} {label}"
        )
    axes.set(xlabel=along, ylabel="objective" if is_fit else "log joint density", title=idata.attrs.get("engine", ""))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_rank(table: xr.Dataset) -> Any:
    """Draw what :func:`~nmf_zoo.select_rank` found, rank by rank; returns the matplotlib Figure.

    Each restart is a point, the line is their combination with its error. Of corrected bounds the bound itself is
    drawn, too. Shaded ranks are not ruled out.
    """
    if "combined" not in table or "rank" not in table.dims:
        raise InputError("table", f"a Dataset of {list(table.data_vars)}", "the result of nz.select_rank")
    ranks, combined = table["rank"].to_numpy(), table["combined"].to_numpy()
    figure = _figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for first, rank in enumerate(ranks[table["plausible"].to_numpy()]):
        label = "_" if first else "not ruled out"
        axes.axvspan(rank - 0.5, rank + 0.5, color=ACCENT, alpha=0.12, lw=0, label=label)
    method = table.attrs.get("method", "")
    is_bound, is_corrected = method == "bound", "shortfall" in table
    runs = table["estimate"].transpose("rank", "restart").to_numpy().ravel()
    axes.plot(np.repeat(ranks, table.sizes["restart"]), runs, ".", color=INK, ms=4, alpha=0.5, label="restarts")
    error = None if is_bound else np.nan_to_num(table["combined_error"].to_numpy())
    label = {"bound": "bound, corrected" if is_corrected else "bound", "holdout": "held out"}.get(method, method)
    axes.errorbar(ranks, combined, error, color=INK, lw=1.2, elinewidth=1.0, marker="o", ms=4, label=label)
    if is_corrected:
        bound = table["bound"].max("restart").to_numpy()
        axes.plot(ranks, bound, color=INK, lw=1.0, ls=":", label="bound as it is")
    best = table.attrs["best"]
    axes.axvline(best, color=ACCENT, lw=1.0, label=f"best: {best}")
    _ticks_of_ranks(axes, ranks)
    ylabel = "held-out log-likelihood (nats)" if method == "holdout" else "log evidence (nats)"
    axes.set(xlabel="components", ylabel=ylabel)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _ticks_of_ranks(axes: Any, ranks: np.ndarray) -> None:
    """Every rank where there are few, else as many whole numbers as have room."""
    if len(ranks) <= 20:
        axes.set_xticks(ranks)
        return
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _figure(**how: Any) -> Any:
    """A figure without pyplot: nothing global, no window; notebooks show it, which need no pyplot either."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plot", "no matplotlib", "matplotlib installed", "pip install 'nmf_zoo[plots]'") from error

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Picture(**how)


def _images(shares: xr.DataArray, image_shape: tuple[int, int], title: str) -> Any:
    """Posterior means above, relative uncertainty below, one colour scale per row."""
    n_draws, rank, n_features = shares.shape
    if image_shape[0] * image_shape[1] != n_features:
        raise InputError("image_shape", "{}x{}".format(*image_shape), f"{n_features} pixels, as many as features")
    mean, spread = shares.mean("draw").to_numpy(), shares.std("draw").to_numpy()
    relative = np.divide(spread, mean, out=np.full_like(mean, np.nan), where=mean > 0)
    rows = [(mean, "posterior mean" if n_draws > 1 else "estimate", "magma", _shades(mean))]
    rows += [(relative, "sd / mean", "viridis", _decades(relative))] if n_draws > 1 else []
    figure = _figure(figsize=(1.05 * rank + 1.2, 1.25 * len(rows) + 0.55), layout="constrained")
    grid = figure.subplots(len(rows), rank, squeeze=False)
    for axes_row, (images, label, colours, norm) in zip(grid, rows, strict=True):
        for axes, image in zip(axes_row, images, strict=True):
            shown = axes.imshow(image.reshape(image_shape), cmap=colours, norm=norm, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        axes_row[0].set_ylabel(label, fontsize=9)
        bar = figure.colorbar(shown, ax=list(axes_row), fraction=0.02, pad=0.01)
        bar.ax.tick_params(labelsize=7, length=2, which="both")
        bar.outline.set_visible(False)
    for axes, label in zip(grid[0], shares["component"].to_numpy(), strict=True):
        axes.set_title(f"w[{label}]", fontsize=8, pad=3)
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
    figure = _figure(figsize=(max(6.0, 0.11 * n_features + 1.5), 1.15 * rank + 0.9), layout="constrained")
    grid = figure.subplots(rank, 1, sharex=True, squeeze=False)[:, 0]
    mean = shares.mean("draw").to_numpy()
    low, high = shares.quantile(INTERVAL, dim="draw").to_numpy()
    at = np.arange(n_features)
    for component, axes in enumerate(grid):
        axes.bar(at, mean[component], color=INK, width=0.75)
        axes.vlines(at, low[component], high[component], color=ACCENT, lw=1.1)
        axes.set_ylabel(str(shares["component"].to_numpy()[component]), rotation=0, labelpad=12)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1].set_xticks(
        at, [str(label) for label in shares["feature"].to_numpy()], rotation=90, fontsize=5.5 if n_features > 40 else 8
    )
    grid[-1].set_xlim(-0.7, n_features - 0.3)
    figure.suptitle("Share of each feature in its component: posterior mean and 90% interval", fontsize=10)
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
    figure = _figure(figsize=(8.0, 1.4 * rank + 0.9), layout="constrained")
    grid = figure.subplots(rank, 1, sharex=True, squeeze=False)[:, 0]
    mean = shares.mean("draw").to_numpy()
    low, high = np.maximum(shares.quantile(INTERVAL, dim="draw").to_numpy(), FAINTEST)
    for component, axes in enumerate(grid):
        axes.fill_between(at, low[component], high[component], color=ACCENT, alpha=0.35, lw=0)
        axes.plot(at, np.maximum(mean[component], FAINTEST), color=INK, lw=1.0)
        axes.set_ylabel(str(shares["component"].to_numpy()[component]), rotation=0, labelpad=12)
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(FAINTEST, 0.3 * float(low[component].min())))
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1].set_xlim(at[0], at[-1])
    grid[-1].set_xlabel("feature", fontsize=8)
    figure.suptitle("Share of each feature in its component: posterior mean and 90% interval", fontsize=10)
    return figure


def _top_bars(shares: xr.DataArray) -> Any:
    """The top features of each component as horizontal bars, with 90% intervals."""
    rank = shares.sizes["component"]
    n_columns = min(rank, 5)
    n_rows = -(-rank // n_columns)
    figure = _figure(figsize=(2.6 * n_columns, 2.5 * n_rows + 0.4), layout="constrained")
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
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[rank:]:
        axes.set_axis_off()
    figure.suptitle("Top features of each component: share, posterior mean and 90% interval", fontsize=10)
    return figure

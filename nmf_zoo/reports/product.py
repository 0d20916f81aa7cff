"""Data beside W H, where the model is not at hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.diagnostics.align import read_factors
from nmf_zoo.plots.figure import make_figure
from nmf_zoo.reports.source import Source
from nmf_zoo.results.posterior import spaced

MOST_ROWS, MOST_COLUMNS = 300, 600  # of the images: of larger tables some rows and columns are shown
MOST_DRAWS = 50  # of each chain that the mean is made of


def most_cells_shown(shape: tuple[int, int]) -> str:
    """Says so where not all cells are drawn."""
    rows, cols = min(shape[0], MOST_ROWS), min(shape[1], MOST_COLUMNS)
    return "" if (rows, cols) == shape else f"{rows} of {shape[0]:,} rows and {cols} of {shape[1]:,} columns are shown."


def plot_product(source: Source) -> Any:
    """Images of X, of the posterior mean of W H (mean W times mean H where only means were kept), and X - W H."""
    from matplotlib.colors import PowerNorm

    data = np.asarray(source.complete_data)
    rows, cols = (spaced(n, min(n, most)) for n, most in zip(data.shape, (MOST_ROWS, MOST_COLUMNS), strict=True))
    mean = _mean(source, rows, cols)
    X = data[np.ix_(rows, cols)]
    top, far = max(float(X.max()), float(mean.max()), 1e-300), max(float(np.quantile(np.abs(X - mean), 0.99)), 1e-300)
    same = {"cmap": "viridis", "norm": PowerNorm(0.5, vmin=0.0, vmax=top)}
    panels = [("data", X, same), ("posterior mean of W H", mean, same)]
    panels += [("data - W H", X - mean, {"cmap": "RdBu_r", "vmin": -far, "vmax": far})]
    figure = make_figure(figsize=(10.0, 3.6), layout="constrained")
    for axes, (title, image, how) in zip(figure.subplots(1, 3), panels, strict=True):
        shown = axes.imshow(image, aspect="auto", interpolation="nearest", **how)
        axes.set_title(title, fontsize=9)
        axes.set(xticks=[], yticks=[], xlabel="samples", ylabel="features")
        bar = figure.colorbar(shown, ax=axes, fraction=0.05, pad=0.02)
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_visible(False)
    return figure


def _mean(source: Source, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """The mean over draws of W H at rows x columns."""
    n_draws = source.posterior.sizes["draw"]
    group = source.posterior.isel(draw=spaced(n_draws, min(n_draws, MOST_DRAWS)))
    draws = read_factors(group, source.weights, source.activations).draws
    assert draws.H is not None
    pairs = zip(_flat(draws.W[..., rows, :]), _flat(draws.H[..., cols]), strict=True)
    return sum(W @ H for W, H in pairs) / np.prod(draws.W.shape[:2])


def _flat(draws: np.ndarray) -> np.ndarray:
    """(chain, draw, ...) as (chain * draw, ...)"""
    return draws.reshape(-1, *draws.shape[2:])

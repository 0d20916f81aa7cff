"""Data beside the mean of the model, what is left, and whether the data lie where the model expects them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, as_text, check_image_shape, clear_frame, make_figure
from nmf_zoo.prediction.predictive import predict
from nmf_zoo.reading import read
from nmf_zoo.results.posterior import INTERVAL, axes_of, mean_at, open_posterior
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.structure import Cells, Factorisation, KnownAtCells

MOST_ROWS, MOST_COLUMNS = 300, 600  # of the images: of larger tables every so-manieth row and column is shown
MOST_FEATURES = 40  # of a sample, the largest ones
MISSING = "#d9d9d9"
DECADES = 6  # of powers, which are drawn on a log scale, below the largest


@names_checked
def plot_reconstruction(
    idata: Any,
    model: pm.Model,
    *,
    samples: int = 3,
    n_draws: int = 50,
    shape: tuple[int, int] | None = None,
    random_seed: Any = 0,
) -> Any:
    """Draw X, its posterior mean, the residuals, and some samples with their predictive intervals.

    Parameters
    ----------
    idata : result of :func:`~nmf_zoo.sample` or :func:`~nmf_zoo.fit`
    model : the model it came from
    samples : how many samples are drawn with intervals, evenly spaced
    n_draws : draws of each chain that means and intervals are made of, at the most
    shape : (rows, columns) when the features are the pixels of an image, row by row: samples are drawn as images of
        the data, the mean, the residual and the posterior sd of the mean, in place of intervals
    random_seed : of the predictive draws

    Returns
    -------
    matplotlib Figure. Above images of the data, the mean and the residual (x - mean) / sd, sd that of the likelihood at
    the mean; missing cells are grey, and powers on a log scale. Below, samples with 90% predictive intervals; how many
    cells lie inside is said
    """
    check_counts(samples=(samples, 1), n_draws=(n_draws, 1))
    structure = read(model)
    if shape is not None:
        check_image_shape(shape, structure.shape[0])
    posterior = open_posterior(idata, structure)
    used = min(n_draws, posterior.lead[1])
    rows, cols = (_spread(n, most) for n, most in zip(structure.shape, (MOST_ROWS, MOST_COLUMNS), strict=True))
    shown = _spread(structure.shape[1], samples)
    heights = (3.4, 2.8 if shape is None else 0.3 + 1.7 * len(shown))
    figure = make_figure(figsize=(10.0, sum(heights)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=heights)
    _images(above, structure, _table(structure, rows, cols), _mean(idata, structure, rows, cols, used))
    if shape is None:
        _samples(below, idata, model, structure, shown, used, random_seed)
    else:
        _pictures(below, idata, structure, shown, used, shape)
    return figure


def _spread(n: int, most: int) -> np.ndarray:
    """Positions, evenly spaced."""
    return np.unique(np.round(np.linspace(0, n - 1, min(n, most))).astype(np.int64))


def _table(structure: Factorisation, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """The data at rows x columns, NaN where missing."""
    data = structure.data
    if not isinstance(data, Cells):
        values = data.values[np.ix_(rows, cols)].astype(np.float64)
        return values if data.mask is None else np.where(data.mask[np.ix_(rows, cols)], values, np.nan)
    places = (np.full(n, -1) for n in structure.shape)
    of_row, of_col = places
    of_row[rows], of_col[cols] = np.arange(len(rows)), np.arange(len(cols))
    out = np.full((len(rows), len(cols)), 0.0 if data.is_complete else np.nan)
    inside = (of_row[data.rows] >= 0) & (of_col[data.cols] >= 0)
    out[of_row[data.rows[inside]], of_col[data.cols[inside]]] = data.values[inside]
    return out


class Means(NamedTuple):
    """Of the mean of X at rows x columns: posterior mean and sd; and sd of a cell about it."""

    mean: np.ndarray
    spread: np.ndarray
    sd: np.ndarray


def _mean(idata: Any, structure: Factorisation, rows: np.ndarray, cols: np.ndarray, n_draws: int) -> Means:
    posterior = open_posterior(idata, structure, n_draws)
    grid = np.repeat(rows, len(cols)), np.tile(cols, len(rows))
    total, base, squares = np.zeros((3, len(grid[0])))
    has_law = _have_law(structure, *np.ix_(rows, cols)).ravel()
    law = structure.likelihood_at(*(own[has_law] for own in grid))
    values = {unknown.name: np.zeros(unknown.variable_shape) for unknown in structure.likelihood.unknowns}
    n_used, shape = np.prod(posterior.lead), (len(rows), len(cols))
    for draw in posterior:
        drawn = mean_at(structure, draw, *grid)
        base += drawn
        drawn[has_law] = law.expected(drawn[has_law], draw.values)
        total += drawn
        squares += drawn**2
        values = {name: value + draw.values[name] / n_used for name, value in values.items()}
    mean, base = total / n_used, base / n_used
    spread = np.sqrt(np.maximum(squares / n_used - mean**2, 0.0))
    sd = np.full(len(mean), np.nan)
    sd[has_law] = law.sd(base[has_law], values)
    return Means(*(part.reshape(shape) for part in (mean, spread, sd)))


def _have_law(structure: Factorisation, rows: Any, cols: Any) -> np.ndarray:
    """Which cells have all parameters of X's law: errors of measurement may be known at the observed ones alone."""
    found = np.ones(structure.shape, dtype=bool)[rows, cols]
    for parameter in structure.likelihood.parameters.values():
        if isinstance(parameter, KnownAtCells):
            found &= np.isfinite(parameter.resolve({})[rows, cols])
    return found


Panel = tuple[str, np.ndarray, dict[str, Any]]  # title, values, and how they are drawn


def _panels(structure: Factorisation, data: np.ndarray, means: Means) -> list[Panel]:
    """Data and mean on one scale of colours, residuals on their own."""
    mean = means.mean
    residual = (data - mean) / np.maximum(means.sd, 1e-300)
    far = max(3.0, float(np.nanquantile(np.abs(residual), 0.99))) if np.isfinite(residual).any() else 3.0
    low, norm = _scale(structure, data, mean)
    same = {"cmap": _grey_where_missing("viridis"), "norm": norm}
    of_residual = {"cmap": _grey_where_missing("RdBu_r"), "vmin": -far, "vmax": far}
    panels = [("data", np.maximum(data, low), same), ("posterior mean", np.maximum(mean, low), same)]
    return [*panels, ("residual / sd", residual, of_residual)]


def _scale(structure: Factorisation, data: np.ndarray, mean: np.ndarray) -> tuple[float, Any]:
    """The least value that is told apart, and the colours: powers in decades, other data by their square roots."""
    from matplotlib.colors import LogNorm, PowerNorm

    top = max(float(np.nanmax(data, initial=0.0)), float(mean.max()), 1e-300)
    if not structure.likelihood.is_spectral:
        return -np.inf, PowerNorm(0.5, vmin=0.0, vmax=top)
    positive = data[data > 0]
    faint = min(float(mean.min()), float(np.quantile(positive, 0.01)) if positive.size else top)
    low = max(faint, top / 10**DECADES)
    return low, LogNorm(vmin=low, vmax=top)


def _images(figure: Any, structure: Factorisation, data: np.ndarray, means: Means) -> None:
    """The table; spectra with low frequencies below."""
    feature, obs = (axis.dim for axis in axes_of(structure))
    origin = "lower" if structure.likelihood.is_spectral else "upper"
    grid = figure.subplots(1, 3)
    for axes, (title, image, how) in zip(grid, _panels(structure, data, means), strict=True):
        drawn = axes.imshow(image, aspect="auto", interpolation="nearest", origin=origin, **how)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(obs, fontsize=8)
        axes.set(xticks=[], yticks=[])
        _colour_bar(figure, drawn, axes)
    grid[0].set_ylabel(feature, fontsize=8)


def _pictures(
    figure: Any, idata: Any, structure: Factorisation, shown: np.ndarray, n_draws: int, shape: tuple[int, int]
) -> None:
    """Some samples as images, one in a row."""
    obs, rows = axes_of(structure)[1], np.arange(structure.shape[0])
    means = _mean(idata, structure, rows, shown, n_draws)
    panels = _panels(structure, _table(structure, rows, shown), means)
    top = max(float(means.spread.max()), 1e-300)
    panels.append(("sd of the mean", means.spread, {"cmap": "viridis", "vmin": 0.0, "vmax": top}))
    grid = figure.subplots(len(shown), len(panels), squeeze=False)
    for column, (title, images, how) in zip(grid.T, panels, strict=True):
        for axes, image in zip(column, images.T, strict=True):
            drawn = axes.imshow(image.reshape(shape), interpolation="nearest", **how)
            axes.set(xticks=[], yticks=[])
        column[0].set_title(title, fontsize=9)
        _colour_bar(figure, drawn, list(column))
    for axes, label in zip(grid[:, 0], obs.labels[shown], strict=True):
        axes.set_ylabel(f"{obs.dim} {as_text(label)}", fontsize=8)


def _colour_bar(figure: Any, drawn: Any, axes: Any) -> None:
    bar = figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)


def _grey_where_missing(name: str) -> Any:
    from matplotlib import colormaps

    return colormaps[name].with_extremes(bad=MISSING)


def _intervals(
    idata: Any, model: pm.Model, structure: Factorisation, shown: np.ndarray, n_draws: int, seed: Any
) -> np.ndarray:
    """(3, F, samples): ends and means of predictive draws, NaN at cells whose errors of measurement are not known."""
    out = np.full((3, structure.shape[0], len(shown)), np.nan)
    rows, cols = np.nonzero(_have_law(structure, slice(None), shown))
    drawn = predict(idata, model, cells=(rows, shown[cols]), n_draws=n_draws, random_seed=seed)
    out[:2, rows, cols] = drawn.quantile(INTERVAL, dim=("chain", "draw")).to_numpy()
    out[2, rows, cols] = drawn.mean(("chain", "draw")).to_numpy()
    return out


def _samples(
    figure: Any, idata: Any, model: pm.Model, structure: Factorisation, shown: np.ndarray, n_draws: int, seed: Any
) -> None:
    """Predictive intervals of some samples, the largest features, and the data as points."""
    obs = axes_of(structure)[1]
    low, high, mean = _intervals(idata, model, structure, shown, n_draws, seed)
    data = _table(structure, np.arange(structure.shape[0]), shown)
    grid = figure.subplots(1, len(shown), squeeze=False)[0]
    for number, axes in enumerate(grid):
        has_law = np.isfinite(mean[:, number])
        top = np.sort(np.argsort(-mean[:, number], kind="stable")[: min(MOST_FEATURES, has_law.sum())])
        at, observed = np.arange(len(top)), data[top, number]
        if structure.likelihood.is_spectral:
            axes.set_yscale("log", nonpositive="clip")
        outside = (observed < low[top, number]) | (observed > high[top, number])
        axes.vlines(at, low[top, number], high[top, number], color=INK, alpha=0.35, lw=3)
        axes.plot(at, observed, "o", ms=3, color=INK)
        axes.plot(at[outside], observed[outside], "o", ms=3.5, color=ACCENT)
        known = np.isfinite(data[:, number]) & has_law
        inside = (data[:, number] >= low[:, number]) & (data[:, number] <= high[:, number])
        share = inside[known].mean() if known.any() else np.nan
        axes.set_title(f"{obs.dim} {as_text(obs.labels[shown[number]])}: {share:.0%} inside 90%", fontsize=8)
        axes.set_xlabel("feature" if len(top) == len(mean) else f"{len(top)} largest features", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_xticks([])
        clear_frame(axes)

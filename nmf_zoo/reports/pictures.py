"""The sections with pictures: components, activations, reconstruction and the course of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, number_of
from nmf_zoo.plots import plot_activations, plot_components, plot_objective, plot_reconstruction, plot_trace
from nmf_zoo.plots.figure import INK, clear_frame, make_figure
from nmf_zoo.reports.page import paragraph, picture, table
from nmf_zoo.reports.source import MOST_COMPONENTS, Source
from nmf_zoo.results.component_order import as_shown, component_order, describe_shown
from nmf_zoo.results.components import top_features
from nmf_zoo.results.components_in_use import components_in_use
from nmf_zoo.results.factor_draws import read_factors, relevances_in
from nmf_zoo.results.posterior import spaced

TOP = 8  # features of a component in the table


def drawn(draw: Callable[[], Any], alt: str, caption: str = "") -> str:
    """The picture, or why there is none."""
    try:
        return picture(draw(), alt, caption)
    except InputError as error:
        return paragraph(f"Not drawn: {error}.")


def component_parts(source: Source) -> list[str]:
    """Which components, their picture, and their top features."""
    group = _compat.group(source.shown, "posterior")
    if source.weights not in group:
        return [paragraph(f"The result holds no {source.weights}: it was not kept.")]
    features = number_of(int(source.shape[0] or 0), "feature")
    how: dict[str, Any] = {**source.names, "shape": source.image_shape}
    figure = drawn(
        lambda: plot_components(source.drawable(source.shown_weights), **how),
        f"Share of each of {features} in each component, with 90% intervals where there are draws; "
        "the largest shares are in the table below",
    )
    return [paragraph(_which(source)), *_in_use(source), figure, _top_table(source)]


def _which(source: Source) -> str:
    rank = source.shape[2] or 0
    order = component_order(source.idata, **source.names) if source.shown_chain is None else None
    chains = f"chain {source.chain}" if order is None else describe_shown(order, source.idata)
    one = "the stream" if source.is_stream else chains
    of = f"{source.weights} {source.activations}" if source.activations in source.posterior else source.weights
    aligned = "" if source.aligned is None else ", aligned"
    is_largest_first = order is None or bool(np.all(np.diff(order["share"].to_numpy()) <= 0))
    falls = f"in falling order of what they add to {of}" if is_largest_first else "in the order of their labels"
    few = f"The {MOST_COMPONENTS} largest of {rank} components" if rank > MOST_COMPONENTS else "The components"
    return f"{few} of {one}{aligned}, {falls}. Each column of {source.weights} is scaled to sum to one."


def _in_use(source: Source) -> list[str]:
    """How many components are in use, where a relevance shrinks those that are not."""
    names = set(source.posterior.data_vars)
    if not relevances_in(names) or source.activations not in names:
        return []
    return [paragraph(components_in_use(source.whole, **source.names).attrs["answer"])]


def _top_table(source: Source) -> str:
    found = top_features(source.shown_weights, TOP, **source.names)
    parts = _parts_of_total(source)
    rows = []
    for component, top in found.groupby("component", sort=False):
        features = ", ".join(f"{name} {share:.3f}" for name, share in zip(top["feature"], top["share"], strict=True))
        part = (parts[component],) if parts else ()
        rows.append((str(component), *part, features))
    head = ("component", *(("part of W H",) if parts else ()), "top features and their shares")
    return table("Top features of each component", head, rows, texts=head[-1:])


def _parts_of_total(source: Source) -> dict[Any, str]:
    """How much of the sum of W H each component makes up, of all components of the chain."""
    if source.activations not in source.posterior:
        return {}
    order = component_order(source.whole, **source.names)
    assert order is not None  # W is there
    labels = order[order["share"].dims[0]].to_numpy()
    return {label: f"{share:.1%}" for label, share in zip(labels, order["share"].to_numpy(), strict=True)}


def activation_parts(source: Source) -> list[str]:
    if source.activations not in source.posterior:
        why = "a stream keeps none" if source.is_stream else "they were known, or not kept"
        return [paragraph(f"The result holds no {source.activations}: {why}.")]
    if source.weights not in source.posterior:
        return [paragraph(f"Without draws of {source.weights} the scale of {source.activations} says nothing.")]
    samples = number_of(int(source.shape[1] or 0), "sample")
    alt = f"What each component adds to each of {samples}, with 90% intervals where there are draws"
    return [drawn(lambda: plot_activations(source.drawable(source.shown), **source.names), alt)]


def reconstruction_parts(source: Source) -> list[str]:
    """With the model its mean and predictive intervals; without it W H beside complete data."""
    if source.structure is not None and source.has("posterior") and source.has("observed_data"):
        samples = "samples with 90% predictive intervals" if source.image_shape is None else "the same of some samples"
        alt = f"Images of the data, their posterior mean and residuals, and {samples}"
        return [drawn(lambda: plot_reconstruction(source.idata, source.model, shape=source.image_shape), alt)]
    if not {source.weights, source.activations} <= set(source.posterior.data_vars):
        return [paragraph("W and H are needed, and the result does not hold both.")]
    data = source.complete_data
    if data is None:
        needed = "the result holds no complete matrix of data; give the model as well (in the shell: --data FILE)"
        if source.came_in_blocks:
            needed = "the data came in blocks, and the result holds none of them"
        return [paragraph(f"Not drawn: {needed}.")]
    caption = (
        "W H alone: a known exposure or background is in the model, not in the result, nor is the spread of the data."
    )
    alt = "Images of the data, of the posterior mean of W H, and of their difference"
    return [drawn(lambda: plot_product(source), alt, f"{caption} {most_cells_shown(data.shape)}".strip())]


def course_parts(source: Source) -> list[str]:
    """lp draw by draw, an objective by iteration, or a stream's columns of W."""
    if source.is_stream:
        return [drawn(lambda: _plot_norms(source), "Sums of the columns of W by columns of data seen")]
    if source.is_fit:
        alt = "Objective by iteration, and its distance from the best value on a log scale, a line for each restart"
        return [drawn(lambda: plot_objective(source.idata), alt)]
    if not source.has("sample_stats") or "lp" not in source.group("sample_stats"):
        return [paragraph("The result holds no lp.")]
    return [drawn(lambda: plot_trace(source.idata), "Log joint density draw by draw, a line for each chain")]


def _plot_norms(source: Source) -> Any:
    """How a stream's components grew."""
    fit = as_shown(source.idata, source.group("fit").isel(chain=0), source.weights, source.activations)
    norms = fit["column_norm"].transpose("record", ...)
    figure = make_figure(figsize=(8.0, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for label, line in zip(norms[norms.dims[1]].to_numpy(), norms.to_numpy().T, strict=True):
        axes.plot(norms["record"].to_numpy(), line, color=INK, lw=1.0, alpha=0.8)
        axes.annotate(f" {label}", (float(norms["record"][-1]), float(line[-1])), fontsize=7)
    axes.set(xlabel="columns seen", ylabel="sum of the column of W", ylim=(0, 1.05 * float(np.nanmax(norms)) or 1.0))
    clear_frame(axes)
    return figure


# -- data beside W H, where the model is not at hand -----------------------------------------------------------------


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

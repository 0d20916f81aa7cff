"""Evidence, held-out score, stability and error over ranks, in one picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, clear_frame, make_figure
from nmf_zoo.plots.rank import ticks_of_ranks


@names_checked
def plot_stability(table: xr.Dataset, *, evidence: xr.Dataset | None = None) -> Any:
    """Draw what :func:`~nmf_zoo.stability` found, panels one below the other; returns the matplotlib Figure.

    Parameters
    ----------
    table : of :func:`~nmf_zoo.stability`
    evidence : of :func:`~nmf_zoo.select_rank` on the same model, drawn in a panel of its own
    """
    if "reproducibility" not in table:
        raise InputError("table", f"a Dataset of {list(table.data_vars)}", "the result of nz.stability")
    if evidence is not None and "combined" not in evidence:
        raise InputError("evidence", f"a Dataset of {list(evidence.data_vars)}", "the result of nz.select_rank")
    panels = [_draw_components, _draw_runs("error", "error\n(nats a cell)")]
    if "heldout" in table:
        panels.insert(0, _draw_runs("heldout", "held out\n(nats)"))
    n_panels = len(panels) + (evidence is not None)
    figure = make_figure(figsize=(7, 0.8 + 1.7 * n_panels), layout="constrained")
    axes = figure.subplots(n_panels, 1, sharex=True, squeeze=False)[:, 0]
    if evidence is not None:
        _draw_evidence(axes[0], evidence)
    for own, draw in zip(axes[n_panels - len(panels) :], panels, strict=True):
        draw(own, table)
    for own in axes:
        clear_frame(own)
    ranks = table["rank"].to_numpy()
    axes[-1].set_xlabel("components")
    ticks_of_ranks(axes[-1], ranks)
    figure.align_ylabels(axes)
    return figure


def _draw_evidence(axes: Any, evidence: xr.Dataset) -> None:
    """Difference from the best rank, of a logarithm that nobody reads as it is."""
    ranks, difference = evidence["rank"].to_numpy(), evidence["difference"].to_numpy()
    axes.plot(ranks, difference, color=INK, lw=1.2, marker="o", ms=4)
    axes.axvline(evidence.attrs["best"], color=ACCENT, lw=1.0, label=f"best: {evidence.attrs['best']}")
    word = "held out" if evidence.attrs.get("method") == "holdout" else "log evidence"
    axes.set_ylabel(f"{word}\nless the best")
    axes.legend(frameon=False, fontsize=8)


def _draw_runs(name: str, label: str) -> Any:
    """A panel of one number for each fit, and its mean."""

    def draw(axes: Any, table: xr.Dataset) -> None:
        ranks, values = table["rank"].to_numpy(), table[name].transpose("rank", "restart")
        axes.plot(np.repeat(ranks, values.sizes["restart"]), values.to_numpy().ravel(), ".", color=INK, ms=4, alpha=0.4)
        axes.plot(ranks, values.mean("restart"), color=INK, lw=1.2)
        axes.set_ylabel(label)

    return draw


def _draw_components(axes: Any, table: xr.Dataset) -> None:
    """The share of the fits that each component came again in, and the mean silhouette."""
    ranks = table["rank"].to_numpy()
    shares = table["reproducibility"].transpose("rank", "component")
    largest = table.attrs.get("largest_stable", 0)
    if largest:
        axes.axvline(largest, color=ACCENT, lw=1.0, label=f"all came again: {largest}")
    places = np.repeat(ranks, shares.sizes["component"])
    axes.plot(places, shares.to_numpy().ravel(), ".", color=INK, ms=5, alpha=0.5, label="came again, by component")
    silhouette = table["silhouette"].mean("component")
    axes.plot(ranks, silhouette, color=INK, lw=1.2, ls="--", label="silhouette, mean")
    axes.set(ylabel="stability", ylim=(min(-0.03, float(np.nanmin([silhouette.min(), 0.0]))) - 0.02, 1.05))
    axes.legend(frameon=False, fontsize=8, loc="lower left")

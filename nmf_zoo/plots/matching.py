"""Components beside the entries of a catalogue."""

from __future__ import annotations

from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.options import names_checked
from nmf_zoo.plots.figure import ACCENT, INK, as_text, make_figure

MOST_ENTRIES = 40  # beyond, only those that some component resembles most
SHADES = "Blues"


@names_checked
def plot_match(found: Any) -> Any:
    """Draw what :func:`~nmf_zoo.match` found; returns the matplotlib Figure.

    One row for each component, one column for each entry of the catalogue, shaded by the posterior mean of their
    cosine. The assignment is framed, its cosine written in it with the 5 % to 95 % interval beside the row; components
    that no entry and no mixture resembles are in colour. Of a catalogue with more than forty entries those are shown
    that the components resemble most.

    Parameters
    ----------
    found : result of :func:`~nmf_zoo.match`
    """
    if not hasattr(found, "table") or not hasattr(found, "cosines"):
        raise InputError("found", type(found).__name__, "the result of nz.match")
    cosines, table = found.cosines, found.table
    entries = [as_text(entry) for entry in cosines["entry"].to_numpy()]
    values = cosines.to_numpy()
    shown = np.sort(np.argsort(-values.max(axis=0), kind="stable")[:MOST_ENTRIES])
    assigned = [entries.index(as_text(entry)) for entry in table["entry"] if as_text(entry) in entries]
    shown = np.union1d(shown, np.array(assigned, dtype=np.intp))
    width, height = 0.34 * len(shown) + 3.2, 0.34 * len(table) + 1.6
    figure = make_figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values[:, shown], cmap=SHADES, vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(shown)), [entries[place] for place in shown], rotation=90, fontsize=8)
    axes.set_yticks(range(len(table)), [as_text(label) for label in table.index], fontsize=8)
    places = {int(entry): column for column, entry in enumerate(shown)}
    for row, (_, each) in enumerate(table.iterrows()):
        if each["is_new"]:
            axes.get_yticklabels()[row].set_color(ACCENT)
        if as_text(each["entry"]) in entries:
            column = places[entries.index(as_text(each["entry"]))]
            _frame(axes, row, column)
            colour = "white" if each["cosine"] > 0.6 else INK
            axes.text(column, row, f"{each['cosine']:.2f}", ha="center", va="center", fontsize=6.5, color=colour)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(
        range(len(table)), [f"{low:.2f} to {high:.2f}" for low, high in table[["low", "high"]].to_numpy()]
    )
    beside.tick_params(labelsize=7, length=0)
    beside.spines["right"].set_visible(False)
    axes.set_xlabel("entry of the catalogue", fontsize=8)
    axes.set_ylabel("component", fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.7, label="cosine").ax.tick_params(labelsize=7)
    return figure


def _frame(axes: Any, row: int, column: int) -> None:
    """A line around a cell."""
    x, y = np.array([-0.5, 0.5, 0.5, -0.5, -0.5]), np.array([-0.5, -0.5, 0.5, 0.5, -0.5])
    axes.plot(column + x, row + y, color=ACCENT, linewidth=1.2)

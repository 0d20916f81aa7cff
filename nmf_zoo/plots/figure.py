"""What all pictures share: ink and accent, intervals, and a figure that needs no window."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError
from nmf_zoo.labels import in_words
from nmf_zoo.results.posterior import INTERVAL

PLACES = "iufM"  # kinds of labels that are places on an axis: numbers, dates and times
INK, ACCENT = "#22304a", "#c4552d"
# Okabe and Ito's, told apart by all eyes: for lines that are of equal standing, such as chains.
COLOURS: tuple[str, ...] = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def make_figure(**how: Any) -> Any:
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


def intervals(draws: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the 90 % intervals of draws (draw, component, place), (component, place) each."""
    array = draws.transpose("draw", ...).to_numpy()
    low, high = np.empty((2, *array.shape[1:]))
    for k in range(array.shape[1]):  # quantiles take a copy
        low[k], high[k] = np.quantile(array[:, k], INTERVAL, axis=0)
    return low, high


def what_is_drawn(n_draws: int) -> str:
    """What a mark and its line are: a point estimate has no interval."""
    return "posterior mean and 90% interval" if n_draws > 1 else "point estimate"


def use_dates(axis: Any) -> None:
    """Dates in few words."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))


def clear_frame(axes: Any) -> None:
    """Without the lines at the top and on the right."""
    axes.spines[["top", "right"]].set_visible(False)


def name_row(axes: Any, label: Any) -> None:
    """What a panel in a column of panels is of, beside it: upright and clear of the numbers."""
    axes.set_ylabel(as_text(label), rotation=0, ha="right", va="center", labelpad=6)


def as_text(label: Any) -> str:
    """A label as it is drawn: places on a scale, such as seconds, to four digits; times without their zeros."""
    return f"{label:.4g}" if isinstance(label, float | np.floating) else in_words(label)


def check_image_shape(shape: tuple[int, int], n_features: int) -> None:
    """Refuse a shape of another number of pixels."""
    if shape[0] * shape[1] != n_features:
        raise InputError("shape", "{}x{}".format(*shape), f"{n_features} pixels, as many as features")

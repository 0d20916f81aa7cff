"""What all pictures share: ink and accent, intervals, and a figure that needs no window."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from nmf_zoo.errors import InputError

INK, ACCENT = "#22304a", "#c4552d"
# Okabe and Ito's, told apart by all eyes: for lines that are of equal standing, such as chains.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


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


def clear_frame(axes: Any) -> None:
    """Without the lines at the top and on the right."""
    axes.spines[["top", "right"]].set_visible(False)


def as_text(label: Any) -> str:
    """A label as it is drawn: places on a scale, such as seconds, to four digits."""
    return f"{label:.4g}" if isinstance(label, float | np.floating) else str(label)


def check_image_shape(shape: tuple[int, int], n_features: int) -> None:
    """Refuse a shape of another number of pixels."""
    if shape[0] * shape[1] != n_features:
        raise InputError("shape", "{}x{}".format(*shape), f"{n_features} pixels, as many as features")

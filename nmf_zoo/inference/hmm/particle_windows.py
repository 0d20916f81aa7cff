"""Whether EM with noisy steps still moves, and where to: means over windows of iterations.

The residual compares the mean of the parameters over a window of iterations (10, or a quarter of those before it) with
that of the window before, per iteration from middle to middle. The noise of single iterations goes to and fro and
averages out of it; what it falls to is the larger of the drift and of the noise of two means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.structure import Array

WINDOW = 10  # iterations that the residual looks back on at first


class Window(NamedTuple):
    """Parameters summed over the iterations of this window, and their mean over the last whole one.

    start, end : the iterations before this window, and its last one; last_middle : the last one's mean iteration
    """

    total: Any = None
    start: int = 0
    end: int = WINDOW
    last_mean: Any = None
    last_middle: float = 0.0
    residual: float = np.inf


def look_back(window: Window, iteration: int, W: Array, others: Array) -> Window:
    """The parameters after an iteration (from 1) added to its window; at its end the move becomes the residual.

    It is sum |move| / sum W of the weights, and the largest |move| of the others.
    """
    now = np.concatenate([W.ravel(), others])
    total = now if window.total is None else window.total + now
    if iteration < window.end:
        return window._replace(total=total)
    mean, middle = total / (window.end - window.start), 0.5 * (window.start + window.end + 1)
    residual = np.inf
    if window.last_mean is not None:
        moves = np.abs(mean - window.last_mean) / (middle - window.last_middle)
        of_w = moves[: W.size].sum() / max(mean[: W.size].sum(), np.finfo(np.float64).tiny)
        residual = float(max(of_w, moves[W.size :].max(initial=0.0)))
    return Window(None, iteration, iteration + max(WINDOW, iteration // 4), mean, middle, residual)

"""Moments of draws: running means and sums of squared deviations of those that are not kept (Welford 1962), and
deviations of heavy tails."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.compile import kernel

LARGE = 1e150  # the square of what is beyond may be no number


@kernel
def add_draws(mean, squares, draws, before):
    """Update mean and squares (cells,), the sum of squared deviations from the mean, by draws (n, cells).

    ``before`` draws are in them already. Draw by draw, so that the result does not depend on how many come at a time.
    """
    for i in range(draws.shape[0]):
        share = 1.0 / (before + i + 1)
        for c in range(mean.size):
            step = draws[i, c] - mean[c]
            mean[c] += step * share
            squares[c] += step * (draws[i, c] - mean[c])


def standard_deviation(values: np.ndarray, ddof: int = 0) -> np.ndarray:
    """Of values (n, ...) over their first axis, also where squares of deviations are beyond all numbers."""
    unit = max(1.0, float(np.max(np.abs(values), initial=0.0)) / LARGE)
    return np.std(values, axis=0, ddof=ddof) if unit == 1.0 else unit * np.std(values / unit, axis=0, ddof=ddof)

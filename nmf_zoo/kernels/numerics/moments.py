"""Running means and sums of squared deviations of draws that are not kept (Welford 1962)."""

from __future__ import annotations

from nmf_zoo.kernels.compile import kernel


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

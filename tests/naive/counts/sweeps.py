"""Slow, obvious twins of what blocks of sweeps add to the Gibbs kernels."""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import xlogy

from nmf_zoo.kernels.random.counts import draw_poisson
from tests.naive.random.draws import fold


def log_joint(x, weight, offset, W, H, priors):
    """log p(X, W, H) without what does not depend on W, H; priors are (shape, rate) of W and H, full arrays."""
    total = np.sum(xlogy(x, W @ H + offset)) - np.sum(weight * (W @ H))
    for factor, (shape, rate) in zip((W, H), priors, strict=True):
        total += stats.gamma.logpdf(factor, shape, scale=1 / rate).sum()
        total -= stats.gamma.logpdf(1.0, shape, scale=1 / rate).sum() + rate.sum()
    return total


def draw_cells(W, H, rows, cols, exposure, background, key):
    """Poisson draws, each from the key of its own cell."""
    means = exposure * (W @ H)[rows, cols] + background
    return np.array([draw_poisson(mean, np.uint64(fold(key, c))) for c, mean in enumerate(means)])

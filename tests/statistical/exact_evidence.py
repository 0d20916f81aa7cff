"""log p(X) of tiny problems: all allocations of the counts listed, H integrated out, log W by the trapezoid rule."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from tests.statistical.enumeration import Problem, log_weights


def exact_log_evidence(case):
    """The exact log p(X) of an enumeration case with known hyperparameters."""
    problem = Problem(case)
    W, log_volume = problem.grid()
    shape_w, rate_w, shape_h, rate_h = problem.priors({})
    total = -np.inf
    for part in np.array_split(np.arange(len(W)), max(1, len(W) * len(problem.C) // 2_000_000)):
        log_p, _, _ = log_weights(problem, W[part], shape_h, rate_h)
        log_p = log_p + log_volume[part]
        if problem.fixed is None:
            log_p = log_p + problem.log_prior(W[part], shape_w, rate_w)
        total = np.logaddexp(total, logsumexp(log_p))
    if problem.fixed is None:
        total += W[0][:, problem.free].size * np.log(case.w_grid[1] - case.w_grid[0])
    return float(total) - _total_background(case.structure)


def _total_background(structure):
    """Over the observed cells."""
    if structure.likelihood.background is None:
        return 0.0
    background = np.broadcast_to(structure.likelihood.background, structure.shape)
    mask = structure.data.mask
    return float(background.sum() if mask is None else background[mask].sum())

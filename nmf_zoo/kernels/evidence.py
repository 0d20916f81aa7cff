"""Densities at a stack of draws, for estimates of the evidence: what a loop over draws in Python is too slow for."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.joint import _log_means, log_joint
from nmf_zoo.kernels.streams import kernel


@kernel
def log_joints(out, layout, weights, priors, Ws, Hts):
    """Overwrite out (draws,): :func:`nmf_zoo.kernels.joint.log_joint` at Ws (draws, F, K), Hts (draws, N, K)."""
    means, rates = np.empty(layout.values.size), np.empty(Ws.shape[1:])
    for draw in range(out.size):
        out[draw] = log_joint(layout, weights, priors, Ws[draw], Hts[draw], (means, rates))


@kernel
def sum_log_means(out, layout, Ws, Hts):
    """Overwrite out (draws,): sum x log(W H + offset) over the non-zero cells."""
    means = np.empty(layout.values.size)
    for draw in range(out.size):
        out[draw] = _log_means(layout, Ws[draw], Hts[draw], means)

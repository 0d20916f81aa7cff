"""The log joint density of counts and factors, in O(non-zeros * K)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from nmf_zoo.kernels.denominators import weigh_samples
from nmf_zoo.kernels.sources import SMALLEST, SUMS
from nmf_zoo.kernels.special import fast_log
from nmf_zoo.kernels.streams import kernel


@kernel
def log_joint(layout, weights, priors, W, Ht, scratch):
    """log p(X, W, H) up to a constant: sum x log(W H + offset) - sum weight W H + log p(W) + log p(H).

    ``scratch`` is a pair of arrays, (non-zeros,) and (F, K).
    """
    means, rates = scratch
    total = _log_means(layout, W, Ht, means)
    weigh_samples(rates, weights, Ht)
    total -= dot(W.ravel(), rates.ravel())
    total += _log_prior(W.ravel(), priors.shape_w.ravel(), priors.rate_w.ravel())
    return total + _log_prior(Ht.ravel(), priors.shape_h.ravel(), priors.rate_h.ravel())


@kernel
def _log_means(layout, W, Ht, means):
    """sum x log(W H + offset) over the non-zero cells."""
    major, minor = (W, Ht) if layout.by_features else (Ht, W)
    has_offset, rescued = layout.offset.size > 0, 0.0
    for i in range(major.shape[0]):
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            j, mean = layout.indices[cell], 0.0
            for k in range(major.shape[1]):
                mean += major[i, k] * minor[j, k]
            offset = layout.offset[cell] if has_offset else 0.0
            means[cell] = mean + offset
            if not means[cell] >= SMALLEST:
                rescued += layout.values[cell] * _log_of_small_mean(major[i], minor[j], offset)
                means[cell] = 1.0
    return rescued + dot_log(layout.values, means)


@kernel
def _log_of_small_mean(u, v, offset):
    """log(u . v + offset) where the products underflow."""
    peak = math.log(offset)
    for k in range(u.size):
        peak = max(peak, math.log(u[k]) + math.log(v[k]))
    if not peak > -np.inf:
        return peak
    total = math.exp(math.log(offset) - peak)
    for k in range(u.size):
        total += math.exp(math.log(u[k]) + math.log(v[k]) - peak)
    return peak + math.log(total)


@njit(cache=True, nogil=True, fastmath=SUMS)
def dot(x, y):
    """sum of x y"""
    total = 0.0
    for i in range(x.size):
        total += x[i] * y[i]
    return total


@njit(cache=True, nogil=True, fastmath=SUMS)
def dot_log(x, y):
    """sum of x log y, of normal y"""
    total = 0.0
    for i in range(x.size):
        total += x[i] * fast_log(y[i])
    return total


@njit(cache=True, nogil=True, fastmath=SUMS)
def _log_prior(v, shape, rate):
    """Sum of (shape - 1) log v - rate v; what it lacks depends on shapes and rates alone."""
    total = 0.0
    for i in range(v.size):
        total += (shape[i] - 1.0) * fast_log(v[i]) - rate[i] * v[i]
    return total

"""Systematic resampling: which particles a population goes on from.

With c_i the cumulative normalised weights and u uniform on (0, 1), the j-th of m ancestors is the first i with
c_i >= (j + u) / m: particle i gets floor or ceiling of m times its weight, and that weight on average.

Kitagawa (1996); Douc, Cappe, Moulines (2005), Comparison of resampling schemes for particle filtering.
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.streams import kernel, uniform


@kernel
def resample(ancestors, log_weights, key):
    """Overwrite ancestors (m,) int64, in rising order, with draws of the particles by their log weights (n,)."""
    peak, total = -np.inf, 0.0
    for i in range(log_weights.size):
        peak = max(peak, log_weights[i])
    for i in range(log_weights.size):
        total += math.exp(log_weights[i] - peak)
    shift, i, last = uniform(key, 0), 0, log_weights.size - 1
    reached = math.exp(log_weights[0] - peak) / total
    for j in range(ancestors.size):
        level = (j + shift) / ancestors.size
        while reached < level and i < last:
            i += 1
            reached += math.exp(log_weights[i] - peak) / total
        ancestors[j] = i

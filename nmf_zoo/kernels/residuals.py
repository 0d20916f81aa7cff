"""How far one update moved a factor: what convergence is judged by. Both factors are (rows, K), of at least one row."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.streams import kernel


@kernel
def largest_change(old, new, smallest):
    """max |new - old| / max(the column's largest new, smallest)"""
    change, top = np.zeros(new.shape[1]), np.full(new.shape[1], smallest)
    for i in range(new.shape[0]):
        for k in range(new.shape[1]):
            step = abs(new[i, k] - old[i, k])
            change[k] = step if step > change[k] else change[k]
            top[k] = new[i, k] if new[i, k] > top[k] else top[k]
    return np.max(change / top)


@kernel
def largest_slope(old, new):
    """max |min(old / the column's largest old, 1 - new / old)|, for positive old"""
    top, largest = old[0].copy(), np.zeros(old.shape[1])
    for i in range(1, old.shape[0]):
        for k in range(old.shape[1]):
            top[k] = old[i, k] if old[i, k] > top[k] else top[k]
    inverse = 1.0 / top
    for i in range(old.shape[0]):
        for k in range(old.shape[1]):
            height, slope = old[i, k] * inverse[k], 1.0 - new[i, k] / old[i, k]
            departure = abs(height if height < slope else slope)
            largest[k] = departure if departure > largest[k] else largest[k]
    return np.max(largest)

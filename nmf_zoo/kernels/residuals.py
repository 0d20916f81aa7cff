"""How far one update moved a factor: what convergence is judged by. Both factors are (rows, K), of at least one row."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.streams import kernel


@kernel
def column_changes(old, new, start, stop):
    """(2, K): the largest |new - old| and the largest new of each column, of some rows"""
    largest = np.zeros((2, new.shape[1]))
    for i in range(start, stop):
        for k in range(new.shape[1]):
            step = abs(new[i, k] - old[i, k])
            largest[0, k] = step if step > largest[0, k] else largest[0, k]
            largest[1, k] = new[i, k] if new[i, k] > largest[1, k] else largest[1, k]
    return largest


@kernel
def largest_change(old, new, smallest):
    """max |new - old| / max(the column's largest new, smallest)"""
    largest = column_changes(old, new, 0, new.shape[0])
    return np.max(largest[0] / np.maximum(largest[1], smallest))


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

"""A factor's multiplicative update and how far from stationary it found the factor, in one pass over its cells.

And how far any other update moved a factor: what convergence is judged by.
"""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.numerics.arrays import place_of_largest

FLOOR = 1e-100  # an exact zero could never be left again and would forbid its counts; two floors still multiply safely


@kernel
def largest_of_columns(factor):
    """(K,), of at least one row"""
    top = factor[0].copy()
    for i in range(1, factor.shape[0]):
        for k in range(factor.shape[1]):
            top[k] = factor[i, k] if factor[i, k] > top[k] else top[k]
    return top


@kernel
def update_rows(new, old, numerator, denominator, power, top, start, stop):
    """Overwrite rows of new (rows, K) with (numerator + power) / denominator, never below FLOOR.

    Where the denominator is 0 a cell stays. ``denominator`` and ``power`` are (rows, K), or (1, K) when they are the
    same for all rows; ``top`` (K,) holds the old one's largest. Returns max |min(old / top, 1 - new / old)| over these
    rows: the KKT residual.
    """
    worst = np.zeros(old.shape[1])
    for i in range(start, stop):
        at_denominator, at_power = i if denominator.shape[0] > 1 else 0, i if power.shape[0] > 1 else 0
        for k in range(old.shape[1]):
            held = denominator[at_denominator, k] > 0.0
            value = (numerator[i, k] + power[at_power, k]) / denominator[at_denominator, k]
            value = value if held else old[i, k]
            value = FLOOR if value < FLOOR else value
            new[i, k] = value
            height, slope = old[i, k] / top[k], 1.0 - value / old[i, k]
            departure = abs(height if height < slope else slope)
            worst[k] = departure if departure > worst[k] else worst[k]
    return worst[place_of_largest(worst)]


# -- how far an update moved a factor --------------------------------------------------------------------------------


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
    return largest[place_of_largest(largest)]

"""The slow, obvious twin of running moments: two passes over all draws, in long double."""

import numpy as np


def naive_moments(draws):
    """Mean and sum of squared deviations (cells,) of draws (n, cells)."""
    exact = np.asarray(draws, dtype=np.longdouble)
    mean = sum(exact) / len(exact)
    return mean.astype(float), sum((row - mean) ** 2 for row in exact).astype(float)

"""Sums of multipliers and sources of one factor's rows, by dense tables and the same keyed draws."""

from __future__ import annotations

import numpy as np

from nmf_zoo.kernels.random.counts import allocate
from nmf_zoo.kernels.random.draws import draw_gamma
from nmf_zoo.kernels.random.keyed_rng import child


def draw_sums(x, seen, exposure, background, own, other, alpha, key):
    """(counts, weight), (rows, K) each, of tables (rows, columns)."""
    rank = own.shape[1]
    counts, weight = np.zeros_like(own), np.zeros_like(own)
    mean = exposure * (own @ other.T) + background
    for i, j in zip(*np.nonzero(seen), strict=True):
        key_of_cell = child(key, int(i), int(j))
        multiplier = draw_gamma(alpha[i, j] + x[i, j], child(key_of_cell, 0)) / (alpha[i, j] + mean[i, j])
        weight[i] += multiplier * exposure[i, j] * other[j]
        shares = np.zeros(rank + 1, dtype=np.int64)
        sources = np.append(own[i] * other[j], background[i, j] / exposure[i, j])
        allocate(int(x[i, j]), sources, np.empty(rank + 1), shares, child(key_of_cell, 1))
        counts[i] += shares[:rank]
    return counts, weight

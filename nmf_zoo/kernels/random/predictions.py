"""Predictive draws of X at cells, each from its own cell's stream, whichever other cells are asked for."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.random.counts import draw_poisson
from nmf_zoo.kernels.random.draws import draw_exponential, draw_log_gamma, draw_normal
from nmf_zoo.kernels.random.keyed_rng import fold, uniform


@kernel
def draw_counts_at(out, mean, rows, cols, key):
    """Overwrite out (cells,), int64: Poisson(mean) at the cells (rows, cols)."""
    for c in range(out.size):
        out[c] = draw_poisson(mean[c], fold(fold(key, rows[c]), cols[c]))


@kernel
def draw_overdispersed_at(out, mean, alpha, rows, cols, key):
    """Overwrite out (cells,), int64: Poisson(g mean), g ~ Gamma(alpha, alpha), alpha (cells,), at the cells."""
    for c in range(out.size):
        cell_key = fold(fold(key, rows[c]), cols[c])
        multiplier = math.exp(draw_log_gamma(alpha[c], fold(cell_key, 0))) / alpha[c]
        out[c] = draw_poisson(multiplier * mean[c], fold(cell_key, 1))


@kernel
def draw_normals_at(out, mean, sigma, rows, cols, key):
    """Overwrite out (cells,): Normal(mean, sigma), both (cells,), at the cells (rows, cols)."""
    for c in range(out.size):
        out[c] = mean[c] + sigma[c] * draw_normal(fold(fold(key, rows[c]), cols[c]))


@kernel
def draw_powers_at(out, mean, rows, cols, key):
    """Overwrite out (cells,): Exponential with this mean at the cells (rows, cols)."""
    for c in range(out.size):
        out[c] = mean[c] * draw_exponential(fold(fold(key, rows[c]), cols[c]))


@kernel
def draw_uniforms_at(out, rows, cols, key):
    """Overwrite out (cells,): uniform on (0, 1) at the cells (rows, cols)."""
    for c in range(out.size):
        out[c] = uniform(fold(fold(key, rows[c]), cols[c]), 0)


class DrawnCells(NamedTuple):
    """Cells of X that the model draws itself; (cells,) each. Their mean is exposure * (W H) + background."""

    rows: np.ndarray
    cols: np.ndarray
    exposure: np.ndarray
    background: np.ndarray


@kernel
def draw_cells(out, W, Ht, cells, key):
    """Overwrite out (cells,): Poisson draws of cells that the model draws itself; -1 where the mean is no number."""
    for c in range(out.size):
        mean = 0.0
        for k in range(W.shape[1]):
            mean += W[cells.rows[c], k] * Ht[cells.cols[c], k]
        out[c] = draw_poisson(cells.exposure[c] * mean + cells.background[c], fold(key, c))

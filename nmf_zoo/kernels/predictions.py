"""Predictive draws of X at cells, each from its own cell's stream, whichever other cells are asked for."""

from __future__ import annotations

from nmf_zoo.kernels.counts import draw_poisson
from nmf_zoo.kernels.draws import draw_exponential, draw_normal
from nmf_zoo.kernels.streams import fold, kernel, uniform


@kernel
def draw_counts_at(out, mean, rows, cols, key):
    """Overwrite out (cells,), int64: Poisson(mean) at the cells (rows, cols)."""
    for c in range(out.size):
        out[c] = draw_poisson(mean[c], fold(fold(key, rows[c]), cols[c]))


@kernel
def draw_normals_at(out, mean, sigma, rows, cols, key):
    """Overwrite out (cells,): Normal(mean, sigma) at the cells (rows, cols)."""
    for c in range(out.size):
        out[c] = mean[c] + sigma * draw_normal(fold(fold(key, rows[c]), cols[c]))


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

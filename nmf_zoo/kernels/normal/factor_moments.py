"""Variational updates of a factor's cells under a normal likelihood: independent normals, truncated to [0, inf).

q(v) is proportional to exp(shift v - precision v^2 / 2) with precision q = E[G_kk] + curve and
shift l = E[b_k] - sum_{j != k} E[G_kj] E[w_j] - rate, and each update takes the bound to its peak over that cell. With
a = -l / sqrt(q) and the inverse Mills ratio m = phi(a) / P(Z > a),

    E[v] = (m - a) / sqrt(q),      var(v) = (1 + a m - m^2) / q
"""

from __future__ import annotations

import math

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.hmm.particles.truncated import mills
from nmf_zoo.kernels.normal.factor_draws import draw_on
from nmf_zoo.kernels.random.keyed_rng import fold

SQRT_2_PI = math.sqrt(2.0 * math.pi)
SERIES = 30.0  # of a: beyond it the moments are those of a series in 1 / a, which the formulas would cancel


@kernel
def truncated_moments(precision, shift):
    """(mean, variance, log of the integral of exp(shift v - precision v^2 / 2) over [0, inf)).

    With precision 0, where nothing was observed, exponential.
    """
    if precision == 0.0:
        return -1.0 / shift, 1.0 / (shift * shift), -math.log(-shift)
    scale = 1.0 / math.sqrt(precision)
    a = -shift * scale
    if a > SERIES:
        t = 1.0 / (a * a)
        mean = (1.0 - t * (2.0 - t * (10.0 - t * (74.0 - 706.0 * t)))) / a
        variance = t * (1.0 - t * (6.0 - t * (50.0 - t * (518.0 - 6354.0 * t))))
        return mean * scale, variance * scale * scale, math.log(mills(a) * SQRT_2_PI * scale)
    if a >= 0.0:
        tail = mills(a)
        ratio, log_total = 1.0 / (SQRT_2_PI * tail), math.log(tail * SQRT_2_PI * scale)
    else:
        share = 0.5 * math.erfc(a / math.sqrt(2.0))  # P(Z > a)
        ratio = math.exp(-0.5 * a * a) / (SQRT_2_PI * share)
        log_total = 0.5 * a * a + math.log(share * SQRT_2_PI * scale)
    return (ratio - a) * scale, max(1.0 + ratio * (a - ratio), 1e-16) * scale * scale, log_total


@kernel
def update_rows(mean, variance, laws, normals, terms, columns, first, cycles):
    """Update ``columns`` of the rows of mean and variance (rows, K), and their laws (2, rows, K): precision and shift.

    Cell by cell, ``cycles`` times; the rows are first, first + 1, ... of the factor. Returns sum of E[log prior] +
    entropy over the cells, without the priors' constants, and sum E[w' b - w' G w / 2] over the rows: what they add to
    the bound.
    """
    rank = mean.shape[1]
    shares = normals.gram.shape[0] == 1
    own, fit = 0.0, 0.0
    for i in range(mean.shape[0]):
        gram, scale = normals.gram[0 if shares else i], normals.scale[i]
        for cycle in range(cycles):
            for k in columns:
                dot = 0.0
                for j in range(rank):
                    dot += gram[k, j] * mean[i, j]
                diagonal = gram[k, k] * scale
                shift = scale * (normals.linear[i, k] - dot) + diagonal * mean[i, k] - terms.rate[i, k]
                precision = diagonal + terms.curve[i, k]
                laws[0, i, k], laws[1, i, k] = precision, shift
                mean[i, k], variance[i, k], log_total = truncated_moments(precision, shift)
                if cycle == cycles - 1:
                    square = mean[i, k] * mean[i, k] + variance[i, k]
                    own += log_total - (shift + terms.rate[i, k]) * mean[i, k]
                    own += 0.5 * (precision - terms.curve[i, k]) * square
        for k in range(rank):
            dot = 0.0
            for j in range(rank):
                dot += gram[k, j] * mean[i, j]
            fit += scale * (mean[i, k] * (normals.linear[i, k] - 0.5 * dot) - 0.5 * gram[k, k] * variance[i, k])
    return own, fit


@kernel
def draw_approximation(out, laws, key):
    """Overwrite out (rows, K) with a draw of q, whose laws are (2, rows, K)."""
    for i in range(out.shape[0]):
        row_key = fold(key, i)
        for k in range(out.shape[1]):
            out[i, k] = draw_on(0.0, np.inf, laws[0, i, k], laws[1, i, k], fold(row_key, k))

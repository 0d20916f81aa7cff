"""Draws of a factor's cells given the other factor, under a normal likelihood; and shears of two components.

Given H and sigma the log density of a row of W is, with the row's Gram matrix G and linear term b,

    sum_k (b_k w_k + power_k log w_k - rate_k w_k - curve_k w_k^2 / 2) - w' G w / 2,      w >= 0

so that each cell given the others has the density w^power exp(l w - q w^2 / 2) with q = G_kk + curve_k and
l = b_k - sum_{j != k} G_kj w_j - rate_k: a normal truncated to [0, inf) where power is 0, as under flat, exponential,
half-normal and truncated normal priors. Other gamma shapes are slice sampled (Damien, Wakefield, Walker 1999, Gibbs
sampling for Bayesian non-conjugate and hierarchical models by using auxiliary variables): a uniform below w^power
leaves the same normal, truncated once more, from below where power > 0 and from above where it is negative.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.hmm.particles.truncated import draw_truncated
from nmf_zoo.kernels.random.draws import TINY, draw_exponential
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

SLICE, CELL = 0, 1  # children of a cell's stream


class CellTerms(NamedTuple):
    """A log prior but for its constant: power log v - rate v - curve v^2 / 2; (rows, K) each, rates of any sign."""

    power: np.ndarray
    rate: np.ndarray
    curve: np.ndarray


class NormalRows(NamedTuple):
    """What the data say of some rows of a factor.

    linear : (rows, K); gram : (rows, K, K), or (1, K, K) where all rows share one; scale : (rows,), which multiplies
    both
    """

    linear: np.ndarray
    gram: np.ndarray
    scale: np.ndarray


@kernel
def draw_on(low, high, precision, shift, key):
    """A draw between low >= 0 and high (or inf), with density proportional to exp(shift v - precision v^2 / 2).

    With precision 0 exponential; NaN where there is no such law.
    """
    if precision > 0.0:
        return low + draw_truncated(low, high - low, precision, shift, key)
    if high == np.inf:
        return low + draw_exponential(key) / -shift if shift < 0.0 else np.nan
    span = shift * (high - low)
    u = uniform(key, 0)
    if abs(span) < 1e-12:
        return low + u * (high - low)
    if span > 0.0:  # seen from the upper end, so that nothing overflows
        return high + math.log(u + (1.0 - u) * math.exp(-span)) / shift
    return low + math.log1p(u * math.expm1(span)) / shift


@kernel
def draw_cell(old, power, precision, shift, key):
    """The next value of a cell with density proportional to v^power exp(shift v - precision v^2 / 2), v > 0."""
    if power == 0.0:
        return draw_on(0.0, np.inf, precision, shift, fold(key, CELL))
    end = old * math.exp(math.log(uniform(fold(key, SLICE), 0)) / power)
    if power > 0.0:
        return draw_on(end, np.inf, precision, shift, fold(key, CELL))
    return draw_on(0.0, end, precision, shift, fold(key, CELL))


@kernel
def draw_rows(out, normals, terms, columns, first, cycles, key):
    """Overwrite ``columns`` of the rows of out (rows, K), which are the rows first, first + 1, ... of the factor.

    Each cell given all others, in turn, ``cycles`` times. Cells of a power other than 0 stay above 0.
    """
    rank = out.shape[1]
    shares = normals.gram.shape[0] == 1
    for i in range(out.shape[0]):
        gram, scale = normals.gram[0 if shares else i], normals.scale[i]
        row_key = fold(key, first + i)
        for cycle in range(cycles):
            for k in columns:
                dot = 0.0
                for j in range(rank):
                    dot += gram[k, j] * out[i, j]
                own = gram[k, k] * scale
                shift = scale * (normals.linear[i, k] - dot) + own * out[i, k] - terms.rate[i, k]
                cell_key = fold(fold(row_key, k), cycle)
                drawn = draw_cell(out[i, k], terms.power[i, k], own + terms.curve[i, k], shift, cell_key)
                out[i, k] = drawn if terms.power[i, k] == 0.0 else max(drawn, TINY)


@kernel
def move_shears(W, Ht, of_W, of_H, key):
    """w_k += e w_j and h_j -= e h_k, in place, for all ordered pairs: W H stays, and e is drawn from the priors.

    e lies where no cell falls below 0. Its density is normal and truncated there: all powers are 0.
    """
    rank = W.shape[1]
    for k in range(rank):
        for j in range(rank):
            if j == k:
                continue
            low, high, precision, shift = -np.inf, np.inf, 0.0, 0.0
            for f in range(W.shape[0]):
                if W[f, j] > 0.0:
                    low = max(low, -W[f, k] / W[f, j])
                curve = of_W.curve[f, k]
                precision += curve * W[f, j] * W[f, j]
                shift -= W[f, j] * (of_W.rate[f, k] + curve * W[f, k])
            for n in range(Ht.shape[0]):
                if Ht[n, k] > 0.0:
                    high = min(high, Ht[n, j] / Ht[n, k])
                curve = of_H.curve[n, j]
                precision += curve * Ht[n, k] * Ht[n, k]
                shift += Ht[n, k] * (of_H.rate[n, j] + curve * Ht[n, j])
            if not (-np.inf < low <= high < np.inf):
                continue
            width = high - low
            e = draw_on(0.0, width, precision, shift - precision * low, fold(fold(key, k), j)) + low
            for f in range(W.shape[0]):
                W[f, k] = max(W[f, k] + e * W[f, j], 0.0)
            for n in range(Ht.shape[0]):
                Ht[n, j] = max(Ht[n, j] - e * Ht[n, k], 0.0)

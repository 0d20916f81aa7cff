"""Steps of the cells of a factor under an Itakura-Saito divergence and a gamma, an inverse-gamma or no prior.

With the divergence's ``numerator`` and ``denominator`` (:mod:`nmf_zoo.kernels.powers.itakura_saito`) at the old w, the
objective is, up to a constant, at most, and at the old w equal to (Fevotte and Idier 2011)::

    (numerator old^2 + scale) / w + (denominator + rate) w + power log w

Its minimum is the monotone step; without a prior that is old * (numerator / denominator)^(1/2). The heuristic one
multiplies by the ratio of slopes itself, exponent 1, and never raises the objective, either. For power >= 0, log w is
at most its tangent at old, and the bound at most, and at old equal to, down old / w + up w / old, with

    up = (denominator + rate) old + power,    down = numerator old + scale / old.

That is the same at w and at old^2 down / (up w), and so at the heuristic w = old down / up as at old. For power < 0,
-log w is at most its tangent in 1 / w, and -power joins down. A step to below FLOOR ends there, between the two. A
known background is one more source that does not move, and the mode of the logarithms has other powers.

Arrays are flat; factors are long, and ``first`` is where the cells at hand begin.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import in_lanes, kernel, spliced
from nmf_zoo.kernels.numerics.special import fast_exp, fast_log

FLOOR = 1e-70  # of a factor's cell: the square of a product of two can still be divided by
LARGEST_LOG_RATIO = math.log(100.0)  # of a cell, by one push


class Slopes(NamedTuple):
    """What data and prior say of some cells, (cells,) each.

    Attributes
    ----------
    numerator, denominator : of the divergence
    power, scale, rate : minus the log prior density, up to a constant, is power log w + scale / w + rate w
    ratios : overwritten by what lowers the objective over what raises it
    squares : of the slopes of the objective in log w, added up
    """

    numerator: np.ndarray
    denominator: np.ndarray
    power: np.ndarray
    scale: np.ndarray
    rate: np.ndarray
    ratios: np.ndarray
    squares: np.ndarray


@kernel
def make_slopes(cells):
    """Zeros."""
    numerator, denominator, power, scale, rate = (
        np.zeros(cells), np.zeros(cells), np.zeros(cells), np.zeros(cells), np.zeros(cells)
    )  # fmt: skip
    return Slopes(numerator, denominator, power, scale, rate, np.zeros(cells), np.zeros(cells))


@in_lanes
def fill_ratios(slopes, old, first, size):
    """Fill in the ratios: 1 where the objective is stationary, and where nothing raises it: there nothing is known."""
    numerator, denominator, power, scale, rate, ratios = (
        slopes.numerator, slopes.denominator, slopes.power, slopes.scale, slopes.rate, slopes.ratios
    )  # fmt: skip
    for i in range(size):
        w, bend = old[first + i], power[i]
        up = (denominator[i] + rate[i]) * w + (bend if bend > 0.0 else 0.0)
        down = numerator[i] * w + scale[i] / w - (bend if bend < 0.0 else 0.0)
        ratios[i] = down / up if up > 0.0 else 1.0


@in_lanes
def add_squares(slopes, old, first, size):
    """Add the squared slopes in log w at the old w."""
    numerator, denominator, power, scale, rate, squares = (
        slopes.numerator, slopes.denominator, slopes.power, slopes.scale, slopes.rate, slopes.squares
    )  # fmt: skip
    for i in range(size):
        w = old[first + i]
        slope = (denominator[i] + rate[i] - numerator[i]) * w - scale[i] / w + power[i]
        squares[i] += slope * slope


@in_lanes
def take_step(new, old, slopes, first, size, heuristic):
    """Overwrite new with the heuristic or the monotone step, never below FLOOR."""
    numerator, denominator, power, scale, rate, ratios = (
        slopes.numerator, slopes.denominator, slopes.power, slopes.scale, slopes.rate, slopes.ratios
    )  # fmt: skip
    if heuristic:
        for i in range(size):
            value = old[first + i] * ratios[i]
            new[first + i] = value if value > FLOOR else FLOOR
        return
    for i in range(size):
        w = old[first + i]
        value = positive_root(denominator[i] + rate[i], power[i], numerator[i] * w * w + scale[i], w)
        new[first + i] = value if value > FLOOR else FLOOR


@spliced
def positive_root(a, b, c, otherwise):
    """The w >= 0 with a w^2 + b w = c, for a, c >= 0; ``otherwise`` where a is 0 and b isn't positive."""
    root = math.sqrt(b * b + 4.0 * a * c)
    top, bottom = (2.0 * c if b >= 0.0 else root - b), (b + root if b >= 0.0 else 2.0 * a)
    return top / bottom if bottom > 0.0 else otherwise


@in_lanes
def push_beyond(out, new, before, first, size, push):
    """Overwrite out with new * (new / before)^push, the ratio bounded, never below FLOOR; with new without a push."""
    if push <= 0.0:
        for i in range(first, first + size):
            out[i] = new[i]
        return
    for i in range(first, first + size):
        logs = fast_log(new[i]) - fast_log(before[i])
        logs = LARGEST_LOG_RATIO if logs > LARGEST_LOG_RATIO else logs
        value = new[i] * fast_exp(push * (-LARGEST_LOG_RATIO if logs < -LARGEST_LOG_RATIO else logs))
        out[i] = value if value > FLOOR else FLOOR


@kernel
def prior_cost(factor, power, scale, rate, first, last):
    """Minus the log prior density of some rows of a factor (rows, K), up to a constant; terms (rows or 1, K)."""
    total = 0.0
    for i in range(first, last):
        row = i if power.shape[0] > 1 else 0
        for k in range(factor.shape[1]):
            w = factor[i, k]
            total += power[row, k] * fast_log(w) + scale[row, k] / w + rate[row, k] * w
    return total

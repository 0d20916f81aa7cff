"""Draws of the hyperparameters of priors given the factors, and of scales of priors together with their factor.

Cells of a factor that share a shape and a rate are a group, and all that an unknown sees of a group is its number of
cells, their sum and the sum of their logarithms; of an inverse-gamma prior, those of the inverses, which are gamma (the
Jacobian does not depend on hyperparameters), and of a half-normal prior the sum of half the squares, which has the
density of gamma cells of shape 1/2 whose rate is the precision. All parameters lie in one vector, ``numbers``: the
entries of the unknowns, then what is known; a group says where its two stand.

A rate or precision with a gamma prior and a mean or variance with an inverse-gamma prior have conditionals of the same
kind. All others are slice sampled on the log scale, by stepping out and shrinking (Neal 2003, Slice sampling, figures 3
and 5), exact for every prior density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, kernel
from nmf_zoo.kernels.random.draws import draw_gamma
from nmf_zoo.kernels.random.keyed_rng import fold, uniform

GAMMA, INVERSE_GAMMA, HALF_NORMAL, TRUNCATED_NORMAL, FLAT = range(5)  # cells of a factor
RATE, MEAN, SIGMA, VARIANCE = range(4)  # what a group's second parameter is
FREE, OF_GAMMA, OF_INVERSE_GAMMA, OF_LOGNORMAL, OF_HALF_NORMAL, OF_UNIFORM, OF_BETA, OF_NORMAL = range(8)  # hyperpriors
SLICED, BY_GAMMA, BY_INVERSE_GAMMA = range(3)  # how an entry is drawn

WIDTH = 1.0  # of the first bracket, in log units
NARROWEST = 1e-14  # bracket, beside 1 + |start|, from which nothing else is tried
MAX_STEPS = 200  # of stepping out, split at random between the two sides, without which a limit would not be exact
MOST_LOG = 345.0  # of a number whose square, and that of its inverse, are numbers

DENSITIES: dict[type, Callable[..., float]] = {}  # by the class of what is slice sampled


class FactorCells(NamedTuple):
    """Which group a cell of a factor (rows, K) belongs to: first + row * row_stride + column * column_stride.

    Attributes
    ----------
    columns : components that are not known; a cell's column is its place among them
    family : GAMMA, ..., FLAT
    n_groups : of this factor
    is_learned : whether an unknown is a parameter of its prior
    """

    first: int
    row_stride: int
    column_stride: int
    columns: np.ndarray
    family: int
    n_groups: int
    is_learned: bool


class PriorGroups(NamedTuple):
    """(G,) of each group where its shape and its second parameter stand, and what that is: RATE, ..., VARIANCE."""

    shape_at: np.ndarray
    second_at: np.ndarray
    role: np.ndarray


class GroupSums(NamedTuple):
    """(G,) of each group its number of cells, their sum, and that of their logarithms."""

    n_cells: np.ndarray
    total: np.ndarray
    log_total: np.ndarray


class Entries(NamedTuple):
    """The entries of the unknowns.

    Attributes
    ----------
    first_use, uses : entry e is a parameter of the groups uses[first_use[e] : first_use[e + 1]]
    hyperprior, args : FREE, ..., OF_NORMAL and its parameters, (E,) and (E, 2)
    jacobian : powers of the entry beside the density of its logarithm, 1
    how : SLICED, BY_GAMMA, BY_INVERSE_GAMMA
    """

    first_use: np.ndarray
    uses: np.ndarray
    hyperprior: np.ndarray
    args: np.ndarray
    jacobian: np.ndarray
    how: np.ndarray


class SliceTarget(NamedTuple):
    """What is slice sampled: an entry given the groups' sums; or, where there is a line, log c along it.

    Attributes
    ----------
    line : (K, 4), see :func:`along_scales`; empty for an entry alone
    first, stop : components that move
    direction : the entry's power of c
    """

    entries: Entries
    groups: PriorGroups
    sums: GroupSums
    numbers: np.ndarray
    entry: int
    line: np.ndarray
    first: int
    stop: int
    direction: float


@kernel
def add_cells(sums, cells, factor):
    """Fill the sums of a factor's groups."""
    groups = slice(cells.first, cells.first + cells.n_groups)
    sums.total[groups] = 0.0
    sums.log_total[groups] = 0.0
    sums.n_cells[groups] = factor.shape[0] * cells.columns.size / cells.n_groups
    for i in range(factor.shape[0]):
        for j in range(cells.columns.size):
            g = cells.first + i * cells.row_stride + j * cells.column_stride
            v = factor[i, cells.columns[j]]
            if cells.family == HALF_NORMAL:
                sums.total[g] += v * v / 2.0
            elif cells.family == INVERSE_GAMMA:
                sums.total[g] += 1.0 / v
                sums.log_total[g] -= math.log(v)
            else:
                sums.total[g] += v
                sums.log_total[g] += math.log(v)


@kernel
def draw_entries(entries, groups, sums, numbers, line, key):
    """Draw every entry of the unknowns in turn, in its place in ``numbers``; the ``line`` is empty."""
    for e in range(entries.how.size):
        own = fold(key, e)
        if entries.how[e] == SLICED:
            target = SliceTarget(entries, groups, sums, numbers, e, line, 0, 0, 1.0)
            numbers[e] = math.exp(draw_slice(target, math.log(numbers[e]), own))
        else:
            numbers[e] = _draw_conjugate(entries, groups, sums, numbers, e, own)


@kernel
def _draw_conjugate(entries, groups, sums, numbers, e, key):
    """u or 1 / u, u ~ Gamma(a + sum s, b + sum c v), s the cells' shapes and c 1, of means s."""
    shape, rate = entries.args[e, 0], entries.args[e, 1]
    for use in range(entries.first_use[e], entries.first_use[e + 1]):
        g = entries.uses[use]
        of_cells = numbers[groups.shape_at[g]]
        shape += of_cells * sums.n_cells[g]
        rate += sums.total[g] * (of_cells if groups.role[g] == MEAN else 1.0)
    u = draw_gamma(shape, key) / rate
    return u if entries.how[e] == BY_GAMMA else 1.0 / u


@kernel
def along_scales(line, cells, groups, numbers, factor, shift):
    """Of log p(e^s v) and the change of volume, of each component's cells v: l s - a e^s - b e^-s - c e^2s.

    ``line`` (K, 4) becomes l, a, b, c; the cells are those of ``factor`` times e^shift (K,).
    """
    line[:] = 0.0
    for i in range(factor.shape[0]):
        for j in range(cells.columns.size):
            k = cells.columns[j]
            if cells.family == FLAT:
                line[k, 0] += 1.0
                continue
            g = cells.first + i * cells.row_stride + j * cells.column_stride
            v, shape, rate = factor[i, k] * math.exp(shift[k]), numbers[groups.shape_at[g]], _rate(groups, numbers, g)
            if cells.family == GAMMA:
                line[k, 0] += shape
                line[k, 1] += rate * v
            elif cells.family == INVERSE_GAMMA:
                line[k, 0] -= shape
                line[k, 2] += rate / v
            else:
                line[k, 0] += 1.0
                line[k, 3] += rate * v * v / 2.0
                if cells.family == TRUNCATED_NORMAL:  # about its mean, which stands where others have a shape
                    line[k, 1] -= shape * rate * v


@kernel
def draw_scales_along(line, entries, groups, sums, numbers, scale, log_c, key):
    """Draw log c (K,), by which a factor is multiplied and the other divided, with entries that follow as c^direction.

    ``line`` is that of the other factor; ``scale`` (first, size, direction): the entries are
    numbers[first : first + size], one for each component, or one.
    """
    (first, size, direction), rank = scale, line.shape[0]
    for j in range(size):
        start, stop = (0, rank) if size == 1 else (j, j + 1)
        target = SliceTarget(entries, groups, sums, numbers, first + j, line, start, stop, direction)
        t = draw_slice(target, 0.0, fold(key, j))
        log_c[start:stop] = t
        numbers[first + j] *= math.exp(direction * t)


@kernel
def draw_slice(target, start, key):
    """One step of slice sampling, from ``start``."""
    level = log_density(target, start) + math.log(uniform(key, 0))
    lower = start - WIDTH * uniform(key, 1)
    upper = lower + WIDTH
    steps_down = int(MAX_STEPS * uniform(key, 2))
    lower = _step_out(target, level, lower, -WIDTH, steps_down)
    upper = _step_out(target, level, upper, WIDTH, MAX_STEPS - 1 - steps_down)
    word = 3
    while upper - lower > NARROWEST * (1.0 + abs(start)):
        t = lower + (upper - lower) * uniform(key, word)
        if log_density(target, t) >= level:
            return t
        if t < start:
            lower = t
        else:
            upper = t
        word += 1
    return start


@kernel
def _step_out(target, level, end, by, steps):
    """Where the end of a bracket leaves the slice, or its steps are used up."""
    for _ in range(steps):
        if not log_density(target, end) > level:
            break
        end += by
    return end


@chosen_by("target", DENSITIES)
def log_density(target, t):
    """Of the logarithm of what is slice sampled."""


@kernel
def _log_density_of_entry(target, t):
    """Of the logarithm of an entry, in whose place in the numbers it stands then; or of log c."""
    entries, e = target.entries, target.entry
    if not abs(t) < MOST_LOG:
        return -math.inf
    if target.line.shape[0] == 0:
        target.numbers[e] = math.exp(t)
        total = _log_hyperprior_of(entries, e, target.numbers[e]) + entries.jacobian[e] * t
        for use in range(entries.first_use[e], entries.first_use[e + 1]):
            total += _log_density_of_group(target.groups, target.sums, target.numbers, entries.uses[use])
        return total
    total = _log_hyperprior_of(entries, e, target.numbers[e] * math.exp(target.direction * t)) + target.direction * t
    up, down = math.exp(t), math.exp(-t)
    for k in range(target.first, target.stop):  # the other factor is divided
        of_log, of_cells, of_inverses, of_squares = target.line[k]
        total -= of_log * t + of_cells * down + of_inverses * up + of_squares * down * down
    return total


DENSITIES[SliceTarget] = _log_density_of_entry


@kernel
def _log_density_of_group(groups, sums, numbers, g):
    shape, rate = numbers[groups.shape_at[g]], _rate(groups, numbers, g)
    constant = shape * math.log(rate) - math.lgamma(shape)
    return sums.n_cells[g] * constant + (shape - 1.0) * sums.log_total[g] - rate * sums.total[g]


@kernel
def _rate(groups, numbers, g):
    """Of gamma cells, or the precision of normal ones."""
    own, role = numbers[groups.second_at[g]], groups.role[g]
    if role == RATE:
        return own
    if role == MEAN:
        return numbers[groups.shape_at[g]] / own
    return 1.0 / own if role == VARIANCE else 1.0 / (own * own)


@kernel
def _log_hyperprior_of(entries, e, x):
    return log_hyperprior(entries.hyperprior[e], entries.args[e, 0], entries.args[e, 1], x)


@kernel
def log_hyperprior(kind, a, b, x):
    """Of a hyperparameter's value, up to a constant; ``kind`` : FREE, ..., OF_NORMAL."""
    if kind == OF_GAMMA:
        return (a - 1.0) * math.log(x) - b * x
    if kind == OF_INVERSE_GAMMA:
        return -(a + 1.0) * math.log(x) - b / x
    if kind == OF_LOGNORMAL:
        z = (math.log(x) - a) / b
        return -0.5 * z * z - math.log(x)
    if kind == OF_HALF_NORMAL:
        return -0.5 * (x / a) * (x / a)
    if kind == OF_UNIFORM:
        return 0.0 if a <= x <= b else -math.inf
    if kind == OF_BETA:
        return (a - 1.0) * math.log(x) + (b - 1.0) * math.log1p(-x) if x < 1.0 else -math.inf
    if kind == OF_NORMAL:
        return -0.5 * ((x - a) / b) * ((x - a) / b)
    return 0.0

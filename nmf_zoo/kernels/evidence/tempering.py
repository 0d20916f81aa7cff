"""Particles of W and H at one temperature: chains from resampled ancestors, and the likelihood of every state.

The target at temperature t is p(W, H) p(X | W, H)^t. The rows of a factor given the other one have the conditionals of
counts t x at exposures t times theirs, which trajectories (:mod:`nmf_zoo.kernels.hmc.poisson_rows`) leave as they are
for any real t. Moves along the orbit W A, A^-1 H do not change the likelihood, at any temperature.

What the cells of X are given their means is the target's ``law``. Poisson counts have a class of their own here; that
of :mod:`nmf_zoo.kernels.overdispersed.particles` has an unknown of its own in each particle, too.

Beside half-normal priors the scale c of a component along its orbit has no law with a name. That of t = log c is
log-concave::

    tilt t - (a e^t + b e^-t + A e^(2 t) + B e^(-2 t)) / 2

with a, b twice the sums of rate times cell of W and H, and A, B those of precision times square. It gets a slice draw
from t = 0 (Neal 2003, stepping out). Components that are known in one of the factors stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import chosen_by, kernel
from nmf_zoo.kernels.counts.gibbs import draw_scales, move_shears
from nmf_zoo.kernels.counts.joint import WeightArrays, dot, dot_log, weigh_features, weigh_samples
from nmf_zoo.kernels.counts.sweeps import apply_scales, set_rates_of_components
from nmf_zoo.kernels.hmc.adaptation import CountSide, from_blocks, to_blocks, turn
from nmf_zoo.kernels.hmc.mass import set_strides
from nmf_zoo.kernels.hmc.poisson_rows import FactorRows, RowWorkspace, Stride, move_rows
from nmf_zoo.kernels.numerics.arrays import copy_row, copy_table, flat
from nmf_zoo.kernels.random.draws import draw_factor, exponential_from
from nmf_zoo.kernels.random.keyed_rng import ONE, fold, uniform
from nmf_zoo.kernels.random.modified_half_normal import draw_half_normal_factor

ACTIVATIONS, WEIGHTS, SCALES, SHEARS, LAW = range(5)  # children of a sweep's stream
ORBIT_EVERY = 2  # sweeps, whose trajectories move along the orbit themselves if slowly
ZERO = np.uint64(0)
SMALLEST = 1e-300  # of a mean: below it the logarithm is taken of this

LAWS: dict[type, Callable[..., None]] = {}  # by the class of law, as the other
LIKELIHOODS: dict[type, Callable[..., float]] = {}


class TemperedTarget(NamedTuple):
    """What all particles share at one temperature.

    Attributes
    ----------
    temperature : (1,)
    draws : whether W and H are drawn
    free : (K,) bool, the components of W and of H that are not known
    movable : (2,) the first component that is free in both, and the one behind the last: they move along the orbit
    curves : precisions of half-normal priors, (F, K) and (N, K), or size 0
    law : of the cells of X, as they are
    weights : what cells of the factors weigh in the total mean; 0 where the law does not have it
    priors, by_component : the priors' cells, with rows and with components first
    sides : W's and H's, with counts times the temperature
    """

    temperature: np.ndarray
    draws: tuple[bool, bool]
    free: tuple[np.ndarray, np.ndarray]
    movable: np.ndarray
    curves: tuple[np.ndarray, np.ndarray]
    law: Any
    weights: WeightArrays
    priors: Any
    by_component: Any
    sides: tuple[CountSide, CountSide]


class CountLaw(NamedTuple):
    """Poisson counts, as they are."""

    layout: Any


class TemperedPopulation(NamedTuple):
    """Particles.

    Attributes
    ----------
    W, Ht : (n, F, K) and (n, N, K)
    log_likelihood : (n,) but for a constant
    alpha : (n, entries) of the law's own parameter; no entries of Poisson counts
    """

    W: np.ndarray
    Ht: np.ndarray
    log_likelihood: np.ndarray
    alpha: np.ndarray


class Pace(NamedTuple):
    """How one factor's rows walk: step (blocks, width), length (1,) of their trajectories."""

    step: np.ndarray
    length: np.ndarray


class SideScratch(NamedTuple):
    """Scratch of one factor's rows, and sums of their acceptance (blocks, width)."""

    rows: FactorRows
    stride: Stride
    block: RowWorkspace
    rate: np.ndarray
    accepted: np.ndarray


class TemperingWorkspace(NamedTuple):
    """Scratch of one chunk of chains: both sides', the particle, W and H turned, scale (5, K), means."""

    sides: tuple[SideScratch, SideScratch]
    W: np.ndarray
    Ht: np.ndarray
    alpha: np.ndarray
    turned_W: np.ndarray
    turned_H: np.ndarray
    scale: np.ndarray
    means: np.ndarray


@kernel
def draw_from_prior(target, population, scratch, first, last, key):
    """Overwrite particles first, ..., last - 1 with draws of the prior; what is known stays."""
    priors, curves, free, W, Ht = target.priors, target.curves, target.free, scratch.W, scratch.Ht
    for i in range(first, last):
        own = fold(key, i)
        if target.draws[0]:
            _draw_side(W, priors.shape_w, priors.rate_w, curves[0], fold(own, WEIGHTS))
            copy_columns(population.W[i], W, free[0], True)
        if target.draws[1]:
            _draw_side(Ht, priors.shape_h, priors.rate_h, curves[1], fold(own, ACTIVATIONS))
            copy_columns(population.Ht[i], Ht, free[1], True)
        copy_row(scratch.alpha, population.alpha[i])
        population.log_likelihood[i] = log_likelihood(target, population.W[i], population.Ht[i], scratch)


@kernel
def _draw_side(out, shape, rate, curve, key):
    """All cells, of a half-normal prior where there is a curve."""
    if curve.size > 0:
        draw_half_normal_factor(out, shape, rate, curve, 0, out.shape[0], key)
    else:
        draw_factor(out, shape, rate, 0, out.shape[0], key)


@kernel
def copy_columns(out, given, free, wanted):
    """Copy the columns of (rows, K) that are free, or that are not."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            if free[k] == wanted:
                out[i, k] = given[i, k]


@kernel
def move_chains(target, before, ancestors, after, scratch, chains, key):
    """Chains first, ..., last - 1 of ``chains``, from their ancestors: every state of a chain is a new particle.

    With n particles and m ancestors chain j makes the particles j n/m, ..., (j + 1) n/m - 1.
    """
    length = after.log_likelihood.size // ancestors.size
    for chain in range(chains[0], chains[1]):
        ancestor = ancestors[chain]
        copy_table(scratch.W, before.W[ancestor])
        copy_table(scratch.Ht, before.Ht[ancestor])
        copy_row(scratch.alpha, before.alpha[ancestor])
        for sweep in range(length):
            move = chain * length + sweep
            _move(target, scratch, sweep, fold(key, move))
            copy_columns(scratch.W, before.W[ancestor], target.free[0], False)
            copy_columns(scratch.Ht, before.Ht[ancestor], target.free[1], False)
            _keep(target, after, move, scratch)


@kernel
def _move(target, scratch, sweep, key):
    """One sweep of the particle in ``scratch``."""
    draw_law(target.law, target, scratch, fold(key, LAW))
    _run_trajectory(target, scratch, key)
    if sweep % ORBIT_EVERY == 0 and target.movable[0] < target.movable[1]:
        move_along_orbit(target, scratch, key)


@kernel
def _keep(target, population, i, scratch):
    """Make the particle in ``scratch`` the i-th of the population."""
    copy_table(population.W[i], scratch.W)
    copy_table(population.Ht[i], scratch.Ht)
    copy_row(population.alpha[i], scratch.alpha)
    population.log_likelihood[i] = log_likelihood(target, scratch.W, scratch.Ht, scratch)


@kernel
def _run_trajectory(target, scratch, key):
    """Trajectories of H's rows given W, then of W's given H."""
    W, Ht, priors, (side_W, side_H) = scratch.W, scratch.Ht, target.priors, scratch.sides
    if target.draws[1]:
        weigh_features(side_H.rate, target.weights, W)
        _set_rate(side_H.rate, priors.rate_h, target.temperature[0])
        _move_side(target.sides[1], Ht, W, target.curves[1], side_H, fold(key, ACTIVATIONS))
    if target.draws[0]:
        weigh_samples(side_W.rate, target.weights, Ht)
        _set_rate(side_W.rate, priors.rate_w, target.temperature[0])
        _move_side(target.sides[0], W, Ht, target.curves[0], side_W, fold(key, WEIGHTS))


@kernel
def _set_rate(rate, prior, temperature):
    """From the likelihood's part of a rate to all of it."""
    for i in range(rate.shape[0]):
        for k in range(rate.shape[1]):
            rate[i, k] = prior[i, k] + temperature * rate[i, k]


@kernel
def _move_side(side, factor, other, curve, scratch, key):
    """One trajectory for every row of a factor, with the mass that the other factor says."""
    rows = scratch.rows
    to_blocks(rows.values, factor)
    to_blocks(rows.rate, scratch.rate)
    if curve.size > 0:
        to_blocks(rows.curve, curve)
    set_strides(side.data, other, rows, scratch.stride, scratch.block, side.prior_rate)
    for block in range(rows.values.shape[0]):
        move_rows(side.data, other, rows, scratch.stride, scratch.block, block, fold(key, block))
        for b in range(rows.chance.shape[1]):
            scratch.accepted[block, b] += rows.chance[block, b]
    from_blocks(factor, rows.values)


@kernel
def move_along_orbit(target, scratch, key):
    """Scale and shear the particle in ``scratch``: they draw from the prior where the likelihood is the same."""
    W, Ht, turned, first, last = scratch.W, scratch.Ht, target.by_component, target.movable[0], target.movable[1]
    _draw_orbit_scales(target, scratch, fold(key, SCALES))
    apply_scales(W, Ht, scratch.scale[0])
    if last - first > 1 and target.curves[0].size == 0 and target.curves[1].size == 0:
        turn(scratch.turned_W, W)
        turn(scratch.turned_H, Ht)
        own = slice(first, last)
        by_component = scratch.turned_W[own], scratch.turned_H[own]
        move_shears(*by_component, turned[0][own], turned[1][own], turned[2][own], turned[3][own], fold(key, SHEARS))
        turn(W, scratch.turned_W)
        turn(Ht, scratch.turned_H)


@kernel
def _draw_orbit_scales(target, scratch, key):
    """Overwrite scale[0], by which W's components are multiplied and H's divided: 1 where they stay."""
    priors, scale, own = target.priors, scratch.scale, slice(target.movable[0], target.movable[1])
    of_W, of_H = target.curves
    set_rates_of_components(scale[1], priors.rate_w, scratch.W)
    set_rates_of_components(scale[2], priors.rate_h, scratch.Ht)
    scale[0] = 1.0
    if of_W.size == 0 and of_H.size == 0:
        draw_scales(scale[0, own], priors.tilt[own], scale[1, own], scale[2, own], key)
        return
    _sum_squares(scale[3], of_W, scratch.W)
    _sum_squares(scale[4], of_H, scratch.Ht)
    for k in range(target.movable[0], target.movable[1]):
        t = slice_log_scale(priors.tilt[k], (scale[1, k], scale[2, k], scale[3, k], scale[4, k]), fold(key, k))
        scale[0, k] = math.exp(t)


@kernel
def _sum_squares(out, curve, factor):
    """Overwrite out (K,): sums of curve * factor^2 over the rows; 0 of no curve."""
    out[:] = 0.0
    for i in range(curve.shape[0]):
        for k in range(out.size):
            out[k] += curve[i, k] * factor[i, k] * factor[i, k]


@kernel
def slice_log_scale(tilt, sums, key):
    """A slice draw of t from 0, ``sums`` are a, b, A and B; 0 where these are beyond all numbers."""
    drop, word = exponential_from(key, ZERO)
    level = _log_scale_density(0.0, tilt, sums) - drop
    width = 1.0 / math.sqrt(0.5 * (sums[0] + sums[1]) + 2.0 * (sums[2] + sums[3]))
    if not 0.0 < width < np.inf:
        return 0.0
    low = -width * uniform(key, word)
    high = low + width
    while _log_scale_density(low, tilt, sums) > level:
        low -= width
    while _log_scale_density(high, tilt, sums) > level:
        high += width
    while True:
        word += ONE
        t = low + (high - low) * uniform(key, word)
        if _log_scale_density(t, tilt, sums) >= level:
            return t
        low, high = (t, high) if t < 0.0 else (low, t)


@kernel
def _log_scale_density(t, tilt, sums):
    linear = sums[0] * math.exp(t) + sums[1] * math.exp(-t)
    return tilt * t - 0.5 * (linear + sums[2] * math.exp(2.0 * t) + sums[3] * math.exp(-2.0 * t))


@chosen_by("law", LAWS)
def draw_law(law, target, scratch, key):
    """Draw the law's own parameter given the factors in ``scratch``, in place, and show it to their rows."""


@kernel
def _draw_nothing(law, target, scratch, key):
    pass


@kernel
def log_likelihood(target, W, Ht, scratch):
    """log p(X | W, H) but for a constant."""
    return log_likelihood_of(target.law, target, W, Ht, scratch)


@chosen_by("law", LIKELIHOODS)
def log_likelihood_of(law, target, W, Ht, scratch):
    """The same."""


@kernel
def _log_likelihood_of_counts(law, target, W, Ht, scratch):
    """sum x log(W H + offset) - sum weight W H"""
    rate = scratch.sides[0].rate
    weigh_samples(rate, target.weights, Ht)
    return _log_means(law.layout, W, Ht, scratch.means) - dot(flat(W), flat(rate))


LAWS[CountLaw] = _draw_nothing
LIKELIHOODS[CountLaw] = _log_likelihood_of_counts


@kernel
def _log_means(layout, W, Ht, means):
    """sum x log(W H + offset) over the non-zero cells; -inf where a mean is 0."""
    major, minor = (W, Ht) if layout.by_features else (Ht, W)
    has_offset = layout.offset.size > 0
    for i in range(major.shape[0]):
        for cell in range(layout.indptr[i], layout.indptr[i + 1]):
            j, mean = layout.indices[cell], layout.offset[cell] if has_offset else 0.0
            for k in range(major.shape[1]):
                mean += major[i, k] * minor[j, k]
            means[cell] = mean
            if not mean >= SMALLEST:
                return -np.inf
    return dot_log(layout.values, means)

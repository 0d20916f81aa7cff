"""Particles of W and H at one temperature: chains from resampled ancestors, and the likelihood of every state.

The target at temperature t is p(W, H) p(X | W, H)^t. The rows of a factor given the other one have the conditionals of
counts t x at exposures t times theirs, which trajectories (:mod:`nmf_zoo.kernels.hmc.poisson_rows`) leave as they are
for any real t. Moves along the orbit W A, A^-1 H do not change the likelihood, at any temperature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.counts.gibbs import draw_scales, move_shears
from nmf_zoo.kernels.counts.joint import WeightArrays, dot, dot_log, weigh_features, weigh_samples
from nmf_zoo.kernels.counts.sweeps import apply_scales, set_rates_of_components
from nmf_zoo.kernels.hmc.adaptation import CountSide, from_blocks, to_blocks, turn
from nmf_zoo.kernels.hmc.mass import set_strides
from nmf_zoo.kernels.hmc.poisson_rows import FactorRows, RowWorkspace, Stride, move_rows
from nmf_zoo.kernels.numerics.arrays import copy_table, flat
from nmf_zoo.kernels.random.draws import draw_factor
from nmf_zoo.kernels.random.keyed_rng import fold

ACTIVATIONS, WEIGHTS, SCALES, SHEARS = range(4)  # children of a sweep's stream
ORBIT_EVERY = 2  # sweeps, whose trajectories move along the orbit themselves if slowly
SMALLEST = 1e-300  # of a mean: below it the logarithm is taken of this


class TemperedTarget(NamedTuple):
    """What all particles share at one temperature.

    Attributes
    ----------
    temperature : (1,)
    draws : whether W and H are drawn; both must be for moves along the orbit
    layout, weights : the data as they are
    priors, by_component : the priors' cells, with rows and with components first
    sides : W's and H's, with counts times the temperature
    """

    temperature: np.ndarray
    draws: tuple[bool, bool]
    layout: Any
    weights: WeightArrays
    priors: Any
    by_component: Any
    sides: tuple[CountSide, CountSide]


class TemperedPopulation(NamedTuple):
    """Particles: W (n, F, K), Ht (n, N, K), log_likelihood (n,) but for a constant."""

    W: np.ndarray
    Ht: np.ndarray
    log_likelihood: np.ndarray


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
    """Scratch of one chunk of chains: both sides', W (F, K), Ht (N, K) and turned, scale (3, K), means (non-zeros,)."""

    sides: tuple[SideScratch, SideScratch]
    W: np.ndarray
    Ht: np.ndarray
    turned_W: np.ndarray
    turned_H: np.ndarray
    scale: np.ndarray
    means: np.ndarray


@kernel
def draw_from_prior(target, population, scratch, first, last, key):
    """Overwrite particles first, ..., last - 1 with draws of the prior; a known factor stays."""
    priors = target.priors
    for i in range(first, last):
        own = fold(key, i)
        if target.draws[0]:
            draw_factor(population.W[i], priors.shape_w, priors.rate_w, 0, scratch.W.shape[0], fold(own, WEIGHTS))
        if target.draws[1]:
            draw_factor(population.Ht[i], priors.shape_h, priors.rate_h, 0, scratch.Ht.shape[0], fold(own, ACTIVATIONS))
        population.log_likelihood[i] = log_likelihood(target, population.W[i], population.Ht[i], scratch)


@kernel
def move_chains(target, before, ancestors, after, scratch, chains, key):
    """Chains first, ..., last - 1 of ``chains``, from their ancestors: every state of a chain is a new particle.

    With n particles and m ancestors chain j makes the particles j n/m, ..., (j + 1) n/m - 1.
    """
    length = after.log_likelihood.size // ancestors.size
    W, Ht = scratch.W, scratch.Ht
    for chain in range(chains[0], chains[1]):
        copy_table(W, before.W[ancestors[chain]])
        copy_table(Ht, before.Ht[ancestors[chain]])
        for sweep in range(length):
            move = chain * length + sweep
            _run_trajectory(target, scratch, fold(key, move))
            if sweep % ORBIT_EVERY == 0 and target.draws[0] and target.draws[1]:
                move_along_orbit(target, scratch, fold(key, move))
            copy_table(after.W[move], W)
            copy_table(after.Ht[move], Ht)
            after.log_likelihood[move] = log_likelihood(target, W, Ht, scratch)


@kernel
def _run_trajectory(target, scratch, key):
    """Trajectories of H's rows given W, then of W's given H."""
    W, Ht, priors, (side_W, side_H) = scratch.W, scratch.Ht, target.priors, scratch.sides
    if target.draws[1]:
        weigh_features(side_H.rate, target.weights, W)
        _set_rate(side_H.rate, priors.rate_h, target.temperature[0])
        _move_side(target.sides[1], Ht, W, side_H, fold(key, ACTIVATIONS))
    if target.draws[0]:
        weigh_samples(side_W.rate, target.weights, Ht)
        _set_rate(side_W.rate, priors.rate_w, target.temperature[0])
        _move_side(target.sides[0], W, Ht, side_W, fold(key, WEIGHTS))


@kernel
def _set_rate(rate, prior, temperature):
    """From the likelihood's part of a rate to all of it."""
    for i in range(rate.shape[0]):
        for k in range(rate.shape[1]):
            rate[i, k] = prior[i, k] + temperature * rate[i, k]


@kernel
def _move_side(side, factor, other, scratch, key):
    """One trajectory for every row of a factor, with the mass that the other factor says."""
    rows = scratch.rows
    to_blocks(rows.values, factor)
    to_blocks(rows.rate, scratch.rate)
    set_strides(side.data, other, rows, scratch.stride, scratch.block, side.prior_rate)
    for block in range(rows.values.shape[0]):
        move_rows(side.data, other, rows, scratch.stride, scratch.block, block, fold(key, block))
        for b in range(rows.chance.shape[1]):
            scratch.accepted[block, b] += rows.chance[block, b]
    from_blocks(factor, rows.values)


@kernel
def move_along_orbit(target, scratch, key):
    """Scale and shear the particle in ``scratch``: they draw from the prior where the likelihood is the same."""
    priors, W, Ht, turned = target.priors, scratch.W, scratch.Ht, target.by_component
    set_rates_of_components(scratch.scale[1], priors.rate_w, W)
    set_rates_of_components(scratch.scale[2], priors.rate_h, Ht)
    draw_scales(scratch.scale[0], priors.tilt, scratch.scale[1], scratch.scale[2], fold(key, SCALES))
    apply_scales(W, Ht, scratch.scale[0])
    if W.shape[1] > 1:
        turn(scratch.turned_W, W)
        turn(scratch.turned_H, Ht)
        move_shears(scratch.turned_W, scratch.turned_H, turned[0], turned[1], turned[2], turned[3], fold(key, SHEARS))
        turn(W, scratch.turned_W)
        turn(Ht, scratch.turned_H)


@kernel
def log_likelihood(target, W, Ht, scratch):
    """log p(X | W, H) but for a constant: sum x log(W H + offset) - sum weight W H."""
    rate = scratch.sides[0].rate
    weigh_samples(rate, target.weights, Ht)
    return _log_means(target.layout, W, Ht, scratch.means) - dot(flat(W), flat(rate))


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

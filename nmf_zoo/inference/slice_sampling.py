"""Slice sampling of hyperparameters of gamma priors, all entries of a variable at once.

Given the factors, the entries of one hyperparameter are independent, and each depends on its cells only through their
number, their sum and the sum of their logarithms. The draws are on the log scale, by stepping out and shrinking
(Neal 2003, Slice sampling, figures 3 and 5), exact for every prior density.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.structure import Array, Factor, Factorisation, GammaPrior, Unknown

WIDTH = 1.0  # of the first bracket, in log units
MAX_STEPS = 100  # of stepping out on each side: a bracket of e^100 to either side is the whole of float64's use


class Sums(NamedTuple):
    """What a gamma prior sees of a factor, per group of cells that share shape and rate."""

    prior: GammaPrior
    n_cells: Array
    total: Array
    log_total: Array


def sum_groups(factor: Factor, value: Array) -> Sums:
    """Reduce a factor (our orientation) to its groups' sums: arrays of the prior parameters' joint shape."""
    assert isinstance(factor.prior, GammaPrior)
    ties = np.broadcast_shapes((1, 1), *(p.shape for p in factor.prior.parameters.values()))
    tied = tuple(axis for axis in (0, 1) if ties[axis] == 1)
    n_cells = np.full(ties, float(np.prod([value.shape[axis] for axis in tied])))
    return Sums(factor.prior, n_cells, value.sum(tied, keepdims=True), np.log(value).sum(tied, keepdims=True))


def log_prior_of_groups(sums: Sums, values: Mapping[str, Array]) -> Array:
    """log p(factor | hyperparameters), summed over the cells of each group."""
    shape, rate = sums.prior.shape_and_rate(values)
    constant = shape * np.log(rate) - gammaln(shape)
    return sums.n_cells * constant + (shape - 1) * sums.log_total - rate * sums.total


def _reduce(array: Array, unknown: Unknown) -> Array:
    """Sum an array of groups to the entries of one hyperparameter."""
    target = (1,) * (2 - len(unknown.shape)) + unknown.shape
    axes = tuple(axis for axis in (0, 1) if target[axis] == 1)
    return array.sum(axes, keepdims=True).reshape(unknown.variable_shape)


def draw_hyperparameters(
    structure: Factorisation, W: Array, H: Array, values: dict[str, Array], generator: np.random.Generator
) -> None:
    """Draw every unknown hyperparameter of the factors' priors in turn, in place of its entry in ``values``."""
    groups = [
        (factor, sum_groups(factor, value)) for factor, value in ((structure.W, W), (structure.H, H)) if factor.unknowns
    ]
    for name, unknown in structure.unknowns.items():

        def log_density(log_value: Array, name: str = name, unknown: Unknown = unknown) -> Array:
            proposed = {**values, name: np.exp(log_value)}
            density = unknown.prior.log_density(proposed[name]) + log_value
            for factor, sums in groups:
                for use in (u for u in factor.unknowns if u.name == name):
                    density = density + _reduce(log_prior_of_groups(sums, proposed), use)
                    break  # the groups' density already holds every use within one factor
            return density

        values[name] = np.exp(slice_draw(log_density, np.log(values[name]), generator))


def slice_draw(log_density: Callable[[Array], Array], start: Array, generator: np.random.Generator) -> Array:
    """One slice-sampling step for each entry of ``start``, whose densities are independent of each other."""
    shape = np.shape(start)
    start = np.array(start, dtype=np.float64).ravel()

    def density(entries: Array) -> Array:
        return np.asarray(log_density(entries.reshape(shape))).ravel()

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        level = density(start) - generator.exponential(size=start.shape)
        lower = start - WIDTH * generator.random(start.shape)
        upper = lower + WIDTH
        _step_out(density, level, lower, -WIDTH)
        _step_out(density, level, upper, WIDTH)
        return _shrink(density, level, start, lower, upper, generator).reshape(shape)


def _step_out(density, level: Array, end: Array, by: float) -> None:
    for _ in range(MAX_STEPS):
        inside = density(end) > level
        if not inside.any():
            return
        end[inside] += by


def _shrink(density, level, start, lower, upper, generator) -> Array:
    current, pending = start.copy(), np.ones(start.shape, dtype=bool)
    while pending.any():
        proposal = np.where(pending, lower + (upper - lower) * generator.random(start.shape), current)
        accepted = pending & (density(proposal) >= level)
        current[accepted] = proposal[accepted]
        pending &= ~accepted & (upper - lower > 1e-14 * (1 + np.abs(start)))
        below = proposal < start
        lower[pending & below] = proposal[pending & below]
        upper[pending & ~below] = proposal[pending & ~below]
    return current

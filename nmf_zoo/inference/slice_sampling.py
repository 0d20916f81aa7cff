"""Slice sampling of hyperparameters of gamma and inverse-gamma priors, all entries of a variable at once.

Given the factors, the entries of one hyperparameter are independent, and each depends on its cells only through their
number, their sum and the sum of their logarithms; of an inverse-gamma prior, those of the cells' inverses, which are
gamma (the Jacobian does not depend on hyperparameters). The draws are on the log scale, by stepping out and shrinking
(Neal 2003, Slice sampling, figures 3 and 5), exact for every prior density.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.sides import sum_to
from nmf_zoo.structure import Array, Factor, Factorisation, GammaPrior, InverseGammaPrior, Unknown

WIDTH = 1.0  # of the first bracket, in log units
MAX_STEPS = 200  # of stepping out, split at random between the two sides, without which a limit would not be exact


class Sums(NamedTuple):
    """What a gamma prior sees of a factor (or of its inverses), per group of cells that share shape and rate."""

    prior: GammaPrior
    n_cells: Array
    total: Array
    log_total: Array


def sum_groups(factor: Factor, value: Array) -> Sums:
    """Reduce a factor (our orientation) to its groups' sums: arrays of the prior parameters' joint shape."""
    prior = factor.prior
    if isinstance(prior, InverseGammaPrior):
        prior, value = prior.of_inverses, 1.0 / value
    assert isinstance(prior, GammaPrior)
    ties = np.broadcast_shapes((1, 1), *(p.shape for p in prior.parameters.values()))
    n_cells = np.full(ties, value.size / np.prod(ties))
    return Sums(prior, n_cells, sum_to(value, ties), sum_to(np.log(value), ties))


def log_prior_of_groups(sums: Sums, values: Mapping[str, Array]) -> Array:
    """log p(factor | hyperparameters), summed over the cells of each group, up to the Jacobian of inverses."""
    shape, rate = sums.prior.shape_and_rate(values)
    constant = shape * np.log(rate) - gammaln(shape)
    return sums.n_cells * constant + (shape - 1) * sums.log_total - rate * sums.total


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
                    of_entries = sum_to(log_prior_of_groups(sums, proposed), use.shape)
                    density = density + of_entries.reshape(use.variable_shape)
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
        steps_down = np.floor(MAX_STEPS * generator.random(start.shape))
        _step_out(density, level, lower, -WIDTH, steps_down)
        _step_out(density, level, upper, WIDTH, MAX_STEPS - 1 - steps_down)
        return _shrink(density, level, start, lower, upper, generator).reshape(shape)


def _step_out(density, level: Array, end: Array, by: float, steps: Array) -> None:
    """Move each end outwards, in place, until it leaves the slice or its steps are used up."""
    for step in range(MAX_STEPS):
        inside = (density(end) > level) & (step < steps)
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

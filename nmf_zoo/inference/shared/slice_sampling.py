"""Slice sampling of entries whose densities are independent of each other, all at once.

By stepping out and shrinking (Neal 2003, Slice sampling, figures 3 and 5), exact for every density. And what priors say
of the hyperparameters of W beside a chain, and of scales along the orbit of equal W H.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.kernels.random.hyperparameter_draws import MAX_STEPS, NARROWEST, WIDTH
from nmf_zoo.structure import (
    Array,
    Factor,
    Factorisation,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    LogLinearGammaPrior,
    TruncatedNormalPrior,
)

FEW = 8  # entries


class PriorSums(NamedTuple):
    """What a gamma prior sees of a factor (or of its inverses), per group of cells that share shape and rate."""

    prior: GammaPrior
    n_cells: Array
    total: Array
    log_total: Array


def sum_groups(factor: Factor, value: Array) -> PriorSums:
    """Reduce a factor (our orientation) to its groups' sums: arrays of the prior parameters' joint shape."""
    prior, value = factor.prior, value if factor.known is None else factor.known.part(value)
    if isinstance(prior, InverseGammaPrior):
        prior, value = prior.of_inverses, 1.0 / value
    assert isinstance(prior, GammaPrior)
    ties = np.broadcast_shapes((1, 1), *(p.shape for p in prior.parameters.values()))
    n_cells = np.full(ties, value.size / prod(ties))
    return PriorSums(prior, n_cells, sum_to(value, ties), sum_to(np.log(value), ties))


def log_prior_of_groups(sums: PriorSums, values: Mapping[str, Array]) -> Array:
    """log p(factor | hyperparameters), summed over the cells of each group, up to the Jacobian of inverses."""
    shape, rate = sums.prior.shape_and_rate(values)
    constant = shape * np.log(rate) - gammaln(shape)
    return sums.n_cells * constant + (shape - 1) * sums.log_total - rate * sums.total


def slice_draw(log_density: Callable[[Array], Array], start: Array, generator: np.random.Generator) -> Array:
    """One slice-sampling step for each entry of ``start``, whose densities are independent of each other."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return (_draw_few if np.size(start) <= FEW else _draw_many)(log_density, start, generator)


def _draw_few(log_density, start: Array, generator: np.random.Generator) -> Array:
    """The same draws as by :func:`_draw_many`, entry by entry: operations on whole arrays cost more than a few."""
    entries = np.array(start, dtype=np.float64)
    flat, n = entries.reshape(-1), entries.size
    old = flat.tolist()

    def density(values: list[float]) -> list[float]:
        flat[:] = values
        return np.asarray(log_density(entries)).ravel().tolist()

    def step_out(end: list[float], by: float, steps: list[int]) -> None:
        for step in range(MAX_STEPS):
            found = density(end)
            inside = [i for i in range(n) if found[i] > level[i] and step < steps[i]]
            if not inside:
                return
            for i in inside:
                end[i] += by

    level = [top - fall for top, fall in zip(density(old), generator.exponential(size=n).tolist(), strict=True)]
    lower = [own - WIDTH * u for own, u in zip(old, generator.random(n).tolist(), strict=True)]
    upper = [own + WIDTH for own in lower]
    steps_down = [int(MAX_STEPS * u) for u in generator.random(n).tolist()]
    step_out(lower, -WIDTH, steps_down)
    step_out(upper, WIDTH, [MAX_STEPS - 1 - steps for steps in steps_down])
    drawn, pending = list(old), list(range(n))
    while pending:
        u, tried = generator.random(n).tolist(), list(drawn)
        for i in pending:
            tried[i] = lower[i] + (upper[i] - lower[i]) * u[i]
        found, left = density(tried), []
        for i in pending:
            if found[i] >= level[i]:
                drawn[i] = tried[i]
            elif upper[i] - lower[i] > NARROWEST * (1 + abs(old[i])):
                left.append(i)
                (lower if tried[i] < old[i] else upper)[i] = tried[i]
        pending = left
    flat[:] = drawn
    return entries


def _draw_many(log_density, start: Array, generator: np.random.Generator) -> Array:
    shape = np.shape(start)
    start = np.array(start, dtype=np.float64).ravel()

    def density(entries: Array) -> Array:
        return np.asarray(log_density(entries.reshape(shape))).ravel()

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
        if not np.count_nonzero(inside):  # a fifth of any()'s time where entries are few
            return
        np.add(end, by, out=end, where=inside)


def _shrink(density, level, start, lower, upper, generator) -> Array:
    current, pending, narrowest = start, np.True_, NARROWEST * (1 + np.abs(start))
    while True:
        width = upper - lower
        proposal = np.where(pending, lower + width * generator.random(start.shape), current)
        accepted = density(proposal) >= level
        if np.count_nonzero(accepted) == accepted.size:  # those that were before among them
            return proposal
        current = np.where(pending & accepted, proposal, current)
        pending = pending & ~accepted & (width > narrowest)
        if not np.count_nonzero(pending):
            return current
        below = proposal < start
        np.copyto(lower, proposal, where=pending & below)
        np.copyto(upper, proposal, where=pending & ~below)


# -- along the orbit of equal W H --------------------------------------------------------------------------------------


def draw_orbit_scales(
    structure: Factorisation, W: Array, H: Array, values: Mapping[str, Array], generator: np.random.Generator
) -> Array:
    """(K,) by which W is to be multiplied and H divided: W H stays, and the priors say how likely each is."""
    of_W, of_H = log_prior_scaled(structure.W, W, 0, values), log_prior_scaled(structure.H, H, 1, values)
    return np.exp(slice_draw(lambda s: of_W(s) + of_H(-s), np.zeros(structure.rank), generator))


def log_prior_scaled(factor: Factor, value: Array, axis: int, values: Mapping[str, Array]) -> Callable[[Array], Array]:
    """log p(e^s v), with the change of volume, of each component's cells v, which lie along ``axis``.

    s is (K,), or (1,) for all components; the densities are (K,).
    """
    n_cells = np.full(factor.shape[1 - axis], float(factor.shape[axis]))
    if isinstance(factor.prior, GammaPrior | LogLinearGammaPrior):
        shape, rate = factor.prior.shape_and_rate(values)
        shapes, total = np.broadcast_to(shape, factor.shape).sum(axis=axis), (rate * value).sum(axis=axis)
        return lambda s: shapes * s - total * np.exp(s)
    if isinstance(factor.prior, HalfNormalPrior):
        halves = (factor.prior.precision_of(values) * np.square(value) / 2).sum(axis=axis)
        return lambda s: n_cells * s - halves * np.exp(2 * s)
    if isinstance(factor.prior, TruncatedNormalPrior):
        mu, precision = factor.prior.mu.value, factor.prior.sigma.value**-2.0
        linear = (mu * precision * value).sum(axis=axis)
        halves = (precision * np.square(value) / 2).sum(axis=axis)
        return lambda s: n_cells * s + linear * np.exp(s) - halves * np.exp(2 * s)
    return lambda s: n_cells * s

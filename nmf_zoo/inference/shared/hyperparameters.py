"""Free hyperparameters of gamma priors, moved to where the variational bound is highest (Cemgil 2009, A.5).

A factor's cells v ~ Gamma(s, r) add to the bound, with E[v] and E[log v] under q,

    s log r - log Gamma(s) + (s - 1) E[log v] - r E[v],

and a free parameter t may be the shape s, the rate r, or the mean m in r = s / m, of cells of one factor or of both.
All these functions have a single peak in log t, found by Newton steps on log t between brackets: t stays positive.
A shape and a second parameter shared by the same cells move together; all others one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, polygamma, psi

from nmf_zoo.inference.shared.factor_view import Side, sum_to
from nmf_zoo.structure import Array, Factor, GammaPrior, Unknown

NEWTON_STEPS = 60  # from anywhere; a warm start needs two or three
LARGEST_STEP = 4.0  # of log t
LIMIT = 46.0  # |log t|: a hyperparameter that runs away stops at 1e20


class Moments(NamedTuple):
    """E[v] and E[log v] of a factor's cells that are not known, in the factor's own orientation."""

    factor: Factor
    mean: Array
    log: Array


class Use(NamedTuple):
    """Where a parameter enters: sums over cells that share shape and rate, so that Newton's work is small."""

    prior: GammaPrior
    unknown: Unknown
    in_shape: float  # d log s / d log t
    in_rate: float  # d log r / d log t
    cells: float
    mean: Array
    log: Array


def update_hyperparameters(moments: list[Moments], values: Mapping[str, Array]) -> dict[str, Array]:
    """The free hyperparameters' new values, by name."""
    values = dict(values)
    names = {unknown.name: None for part in moments for unknown in part.factor.unknowns if unknown.prior.is_flat}
    for part in moments:
        if _moves_together(part, moments):
            for name in _update_pair(part, values):
                names.pop(name)
    for name in names:
        values[name] = _climb(name, moments, values)
    return values


def untied(factor: Factor) -> list[str]:
    """Free hyperparameters with one value per cell of the factor: they follow the data and regularise nothing."""
    size = factor.free_shape[0] * factor.free_shape[1]
    free = [unknown for unknown in factor.unknowns if unknown.prior.is_flat]
    return [unknown.name for unknown in free if size > 1 and int(np.prod(unknown.shape)) == size]


def _moves_together(part: Moments, moments: list[Moments]) -> bool:
    """Shape and second parameter are both free, shared by the same cells, and used nowhere else."""
    unknowns = part.factor.unknowns
    if len(unknowns) < 2 or unknowns[0].name == unknowns[1].name or unknowns[0].shape != unknowns[1].shape:
        return False
    elsewhere = {unknown.name for other in moments if other is not part for unknown in other.factor.unknowns}
    return not elsewhere & {unknown.name for unknown in unknowns}


def _update_pair(part: Moments, values: dict[str, Array]) -> list[str]:
    """mean = average of E[v], best whatever the shape; then the shape at that mean; then rate = shape / mean."""
    prior, shape = part.factor.prior, part.factor.prior.shape
    second = prior.mean or prior.rate
    cells = np.prod(part.mean.shape) / max(np.prod(shape.shape), 1)
    mean = (sum_to(part.mean, shape.shape) / cells).reshape(second.variable_shape)
    factor = replace(part.factor, prior=GammaPrior(shape=shape, mean=second))
    best = _climb(shape.name, [part._replace(factor=factor)], {**values, second.name: mean})
    values[shape.name] = best
    rate = best.reshape(shape.shape) / mean.reshape(second.shape)
    values[second.name] = mean if prior.mean is not None else rate.reshape(second.variable_shape)
    return [shape.name, second.name]


def _climb(name: str, moments: list[Moments], values: Mapping[str, Array]) -> Array:
    """The value of one hyperparameter at which the bound is highest, all others as they are."""
    uses = [use for part in moments for use in _uses(name, part, values)]
    value = np.asarray(values[name], dtype=np.float64)
    log_t = np.clip(np.log(value), -LIMIT, LIMIT)
    below, above = np.full(value.shape, -LIMIT), np.full(value.shape, LIMIT)
    for _ in range(NEWTON_STEPS):
        slope, bend = _derivatives(uses, {**values, name: np.exp(log_t)}, value.shape)
        below, above = np.where(slope > 0, log_t, below), np.where(slope < 0, log_t, above)
        newton = np.where(bend < 0, -slope / np.where(bend < 0, bend, 1.0), LARGEST_STEP * np.sign(slope))
        step = np.clip(newton, -LARGEST_STEP, LARGEST_STEP)
        new = np.where((log_t + step < below) | (log_t + step > above), (below + above) / 2, log_t + step)
        moved, log_t = np.max(np.abs(new - log_t), initial=0.0), new
        if moved < 1e-13:
            break
    return np.exp(log_t)


def _uses(name: str, part: Moments, values: Mapping[str, Array]) -> list[Use]:
    prior = part.factor.prior
    mine = [unknown for unknown in part.factor.unknowns if unknown.name == name]
    if not mine or not isinstance(prior, GammaPrior):
        return []
    roles = {
        role
        for role, parameter in prior.parameters.items()
        if isinstance(parameter, Unknown) and parameter.name == name
    }
    in_shape = float("shape" in roles)
    in_rate = float("rate" in roles) if prior.mean is None else in_shape - float("mean" in roles)
    shared = np.broadcast_shapes(*(np.shape(array) for array in prior.shape_and_rate(values)), mine[0].shape, (1, 1))
    cells = float(part.mean.size / np.prod(shared))
    return [Use(prior, mine[0], in_shape, in_rate, cells, sum_to(part.mean, shared), sum_to(part.log, shared))]


def _derivatives(uses: list[Use], values: Mapping[str, Array], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """First and second derivative of the bound in log t."""
    slope, bend = np.zeros(shape), np.zeros(shape)
    for use in uses:
        s, r = use.prior.shape_and_rate(values)
        by_shape = s * (use.cells * (np.log(r) - psi(s)) + use.log)
        by_rate = use.cells * s - r * use.mean
        curved = use.in_shape**2 * (by_shape - use.cells * s * s * polygamma(1, s))
        first = use.in_shape * by_shape + use.in_rate * by_rate
        second = curved + 2.0 * use.in_shape * use.in_rate * use.cells * s - use.in_rate**2 * r * use.mean
        slope += sum_to(np.broadcast_to(first, use.mean.shape), use.unknown.shape).reshape(shape)
        bend += sum_to(np.broadcast_to(second, use.mean.shape), use.unknown.shape).reshape(shape)
    return slope, bend


def moments_of(side: Side, mean: Array, log: Array) -> Moments:
    """Moments from (rows, K) arrays."""
    return Moments(side.factor, side.turn(mean[:, side.free]), side.turn(log[:, side.free]))


# -- divergence ------------------------------------------------------------------------------------------------------


LARGE = 1e4  # shapes whose log Gamma is so large that the difference of two has lost digits
FAR = 1e-6  # a rate this small relative to q's


def gamma_divergence(q_shape: Array, q_rate: Array, shape: Array, rate: Array) -> Array:
    """KL(Gamma(q_shape, q_rate) || Gamma(shape, rate)) of cells that broadcast against each other.

    The terms of the usual formula grow like shape * log shape and cancel; here they are differences from the start,
    that of log Gamma(q_shape) and log Gamma(shape) by Stirling's series where both are large.
    """
    more, slack = q_shape - shape, (rate - q_rate) / q_rate
    is_large = np.minimum(q_shape, shape) > LARGE
    a, b = np.where(is_large, shape, LARGE), np.where(is_large, q_shape, LARGE)
    rise = (a - 0.5) * np.log1p((b - a) / a) + (b - a) * (np.log(b) - 1.0) + (1 / b - 1 / a) / 12
    rise = np.where(is_large, rise, gammaln(q_shape) - gammaln(shape))
    near = slack > -1.0 + FAR  # else rate / q_rate has lost its digits in 1 + slack
    log_ratio = np.where(near, np.log1p(np.where(near, slack, 0.0)), np.log(rate) - np.log(q_rate))
    return more * psi(q_shape) - rise - shape * log_ratio + q_shape * slack

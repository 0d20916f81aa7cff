"""Unknown scales of a prior, moved together with the factor that has it.

Given H, its prior mean m can only take a step as small as H's many cells allow, and given m neither can H: together
they creep. But W H stays as it is on the line m -> c m, H -> c H, W -> W / c, and so does H's prior density against the
change of volume; what is left is the prior of W, and that of m. This move draws c from there: log c is slice sampled,
one for each component where m has one, one for all where m is common. So it goes for a rate (m -> m / c) and for the
scale of an inverse-gamma prior, of W as of H. It is a partial resampling in the sense of Liu and Sabatti (2000),
Generalised Gibbs sampler and multigrid Monte Carlo, Biometrika 87(2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.slice_sampling import slice_draw
from nmf_zoo.structure import Array, Factor, Factorisation, Fixed, GammaPrior, InverseGammaPrior, Unknown

DIRECTIONS = {"mean": 1.0, "scale": 1.0, "rate": -1.0}  # how a parameter follows its factor


class Scale(NamedTuple):
    """An unknown that is the scale of a factor: of which (0 is W, 1 is H), and how it follows it."""

    unknown: Unknown
    of: int
    direction: float


def scales_of(structure: Factorisation) -> list[Scale]:
    """The unknowns that scale one factor and do nothing else, where the other factor can make up for it."""
    factors, found = (structure.W, structure.H), []
    if any(isinstance(factor.prior, Fixed) for factor in factors):
        return []
    names = [unknown.name for factor in factors for unknown in factor.unknowns]
    for of, factor in enumerate(factors):
        for role, parameter in factor.prior.parameters.items() if factor.unknowns else ():
            if role not in DIRECTIONS or not isinstance(parameter, Unknown) or not _is_by_component(parameter, of):
                continue
            if names.count(parameter.name) == 1:
                found.append(Scale(parameter, of, DIRECTIONS[role]))
    return found


def _is_by_component(unknown: Unknown, of: int) -> bool:
    """One value, or one for each component."""
    shape = (1,) * (2 - len(unknown.shape)) + tuple(unknown.shape)
    return shape[of] == 1


def draw_scale_moves(
    structure: Factorisation, W: Array, H: Array, values: dict[str, Array], generator: np.random.Generator
) -> Iterator[Array]:
    """Move each unknown scale, in ``values``; yields (K,) by which W (F, K) is to be multiplied and H (K, N) divided.

    W and H are read again for the next one, so that the caller has to have moved them by then.
    """
    for scale in scales_of(structure):
        name, start = scale.unknown.name, np.zeros(scale.unknown.variable_shape)
        log_c = slice_draw(log_density_along(structure, scale, W, H, values), start, generator)
        values[name] = values[name] * np.exp(scale.direction * log_c)
        c = np.broadcast_to(np.exp(log_c).ravel(), structure.rank)
        yield c if scale.of == 0 else 1.0 / c


def log_density_along(
    structure: Factorisation, scale: Scale, W: Array, H: Array, values: dict[str, Array]
) -> Callable[[Array], Array]:
    """Log density of log c, entry by entry of the unknown, up to a constant."""
    unknown, of, direction = scale
    other, value = ((structure.H, H), (structure.W, W))[of]
    of_components = log_prior_scaled(other, value, 1 - of, values)

    def log_density(log_c: Array) -> Array:
        cells = of_components(np.broadcast_to(-log_c.ravel(), structure.rank))
        cells = cells.reshape(log_c.shape) if log_c.size == structure.rank else cells.sum()
        return unknown.prior.log_density(values[unknown.name] * np.exp(direction * log_c)) + direction * log_c + cells

    return log_density


def log_prior_scaled(factor: Factor, value: Array, axis: int, values: dict[str, Array]) -> Callable[[Array], Array]:
    """log p(e^s v), with the change of volume, of each component's cells v, which lie along ``axis``; s is (K,)."""
    if isinstance(factor.prior, GammaPrior):
        shape, rate = factor.prior.shape_and_rate(values)
        shapes, pull = np.broadcast_to(shape, factor.shape).sum(axis=axis), (rate * value).sum(axis=axis)
        return lambda s: shapes * s - pull * np.exp(s)
    if isinstance(factor.prior, InverseGammaPrior):
        shape, scale = factor.prior.shape_and_scale(values)
        shapes, pull = np.broadcast_to(shape, factor.shape).sum(axis=axis), (scale / value).sum(axis=axis)
        return lambda s: -shapes * s - pull * np.exp(-s)
    return lambda s: factor.shape[axis] * s

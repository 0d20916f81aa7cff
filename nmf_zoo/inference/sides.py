"""A factor as engines see it: (rows, K), one row per feature or sample, whichever side of the product it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from nmf_zoo.structure import Array, Factor, Factorisation, Flat, GammaPrior, InverseGammaPrior


@dataclass(frozen=True)
class Side:
    """A factor and which side of the product it is on."""

    factor: Factor
    is_right: bool

    @property
    def is_fixed(self) -> bool:
        return self.factor.is_fixed

    @property
    def is_flat(self) -> bool:
        return isinstance(self.factor.prior, Flat)

    @property
    def is_gamma(self) -> bool:
        return isinstance(self.factor.prior, GammaPrior)

    @property
    def gamma(self) -> GammaPrior:
        """The prior of a side that ``is_gamma``."""
        return cast(GammaPrior, self.factor.prior)

    @property
    def is_inverse_gamma(self) -> bool:
        return isinstance(self.factor.prior, InverseGammaPrior)

    def turn(self, array: Array) -> Array:
        """From (rows, K) to the structure's orientation, or back; leading axes stay."""
        return np.swapaxes(array, -1, -2) if self.is_right else array

    def as_variable(self, array: Array) -> Array:
        """From (rows, K) to the model variable's orientation."""
        return self.factor.orient(self.turn(array))

    def prior(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """(shape, rate) of a gamma prior, two-dimensional, broadcasting to (rows, K)."""
        shape, rate = self.gamma.shape_and_rate(values)
        return self.turn(np.atleast_2d(shape)), self.turn(np.atleast_2d(rate))

    def shape_and_scale(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """(shape, scale) of an inverse-gamma prior, two-dimensional, broadcasting to (rows, K).

        A factor without a prior has shape -1 and scale 0: that is the density it adds to an inverse-gamma conditional.
        """
        if self.is_flat:
            return np.full((1, 1), -1.0), np.zeros((1, 1))
        shape, scale = cast(InverseGammaPrior, self.factor.prior).shape_and_scale(values)
        return self.turn(np.atleast_2d(shape)), self.turn(np.atleast_2d(scale))


def two_sides(structure: Factorisation) -> tuple[Side, Side]:
    """(W's side, H's side)"""
    return Side(structure.W, False), Side(structure.H, True)


def sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Sum an array over the axes along which ``shape``, which broadcasts to it, has length 1 or no axis."""
    padded = (1,) * (array.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, length in enumerate(padded) if length == 1)
    return array.sum(axis=axes, keepdims=True).reshape(shape)


def as_one_draw(
    structure: Factorisation, sides: tuple[Side, Side], factors: tuple[Array, Array], values: Mapping[str, Array]
) -> dict[str, Array]:
    """Factors (W, Ht) and free parameters by name, with an axis of one draw; missing cells are at their point."""
    found = {name: value[None] for name, value in values.items()}
    for side, array in zip(sides, factors, strict=True):
        if not side.is_fixed:
            found[side.factor.name] = side.as_variable(array)[None].copy()
    if structure.imputed is not None:
        mean = structure.mean_at(factors[0], factors[1].T, structure.imputed.rows, structure.imputed.cols)
        found[structure.imputed.name] = structure.likelihood.point(mean)[None]
    return found

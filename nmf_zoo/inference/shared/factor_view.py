"""A factor as engines see it: (rows, K), one row per feature or sample, whichever side of the product it is.

And what engines hand back: the model's variables, with the cells that it leaves unobserved as draws or at a point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, cast

import numpy as np

from nmf_zoo.errors import RunFailed
from nmf_zoo.kernels.random.predictions import DrawnCells, draw_cells
from nmf_zoo.structure import (
    Array,
    Factor,
    Factorisation,
    Flat,
    GammaPrior,
    HalfNormalPrior,
    InverseGammaPrior,
    LogLinearGammaPrior,
    broadcast,
)

ONE, ZERO = np.ones(()), np.zeros(())


class Terms(NamedTuple):
    """A log prior but for its constant: power log v - rate v - curve v^2 / 2, each broadcasting to (rows, K)."""

    power: Array
    rate: Array
    curve: Array


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
    def free(self) -> slice:
        """The columns of (rows, K) that are not known: all, unless some components are."""
        return slice(None) if self.factor.known is None else self.factor.known.free

    @property
    def are_free(self) -> Array:
        """(K,) bool"""
        known = self.factor.known
        rank = self.turn(np.empty(self.factor.shape)).shape[1]
        return np.full(rank, not self.is_fixed) if known is None else known.are_free

    def with_free(self, whole: Array, part: Array) -> Array:
        """``whole`` (rows, K) with its free columns replaced; ``part`` itself where all are free."""
        if self.factor.known is None:
            return part
        out = whole.copy()
        out[:, self.free] = part
        return out

    def whole(self, part: Array) -> Array:
        """(..., rows, K) of its free columns, known ones as they are; ``part`` itself where all are free."""
        known = self.factor.known
        return part if known is None else np.ascontiguousarray(self.turn(known.whole(self.turn(part))))

    @property
    def is_gamma(self) -> bool:
        return isinstance(self.factor.prior, GammaPrior)

    @property
    def gamma(self) -> GammaPrior:
        """The prior of a side that ``is_gamma``."""
        return cast(GammaPrior, self.factor.prior)

    @property
    def has_gamma_cells(self) -> bool:
        """Whether its cells are gamma given the hyperparameters, with covariates of samples or without."""
        return isinstance(self.factor.prior, GammaPrior | LogLinearGammaPrior)

    @property
    def is_half_normal(self) -> bool:
        return isinstance(self.factor.prior, HalfNormalPrior)

    @property
    def has_terms(self) -> bool:
        """Whether it has gamma cells or a half-normal prior."""
        return self.has_gamma_cells or self.is_half_normal

    def terms(self, mode: str, values: Mapping[str, Array]) -> Terms:
        """Of the density of a flat, gamma or half-normal factor, or in the mode "log" of that of its logarithms.

        A factor without a prior has none in either.
        """
        nothing = np.zeros((1, 1))
        if self.has_gamma_cells:
            shape, rate = self.prior(values)
            return Terms(shape if mode == "log" else shape - 1.0, rate, nothing)
        if self.is_half_normal:
            return Terms(np.full((1, 1), float(mode == "log")), nothing, self.curve(values))
        return Terms(nothing, nothing, nothing)

    def curve(self, values: Mapping[str, Array]) -> Array:
        """1 / sigma^2 of a half-normal prior, two-dimensional, broadcasting to (rows, K), or to its free columns."""
        return self.turn(np.atleast_2d(cast(HalfNormalPrior, self.factor.prior).precision_of(values)))

    @property
    def is_inverse_gamma(self) -> bool:
        return isinstance(self.factor.prior, InverseGammaPrior)

    def turn(self, array: Array) -> Array:
        """From (rows, K) to the structure's orientation, or back; leading axes stay."""
        return array.swapaxes(-1, -2) if self.is_right else array

    def as_variable(self, array: Array) -> Array:
        """From (rows, K) to the model variable's orientation."""
        return self.factor.orient(self.turn(array))

    def prior(self, values: Mapping[str, Array]) -> tuple[Array, Array]:
        """(shape, rate) of gamma cells, two-dimensional, broadcasting to (rows, K), or to its free columns."""
        shape, rate = cast(GammaPrior | LogLinearGammaPrior, self.factor.prior).shape_and_rate(values)
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


def flat_and_other(structure: Factorisation) -> list[tuple[Side, Side]]:
    """A factor without a prior beside one with a gamma or half-normal prior."""
    W, H = two_sides(structure)
    pairs = [(flat, other) for flat, other in ((W, H), (H, W)) if flat.is_flat]
    return [(flat, other) for flat, other in pairs if other.is_gamma or other.is_half_normal]


def sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Sum an array over the axes along which ``shape``, which broadcasts to it, has length 1 or no axis.

    Where there is nothing to sum it is the array itself: for callers that write into neither.
    """
    if array.shape == shape:
        return array
    return np.add.reduce(array, axis=_axes_to_sum(array.ndim, tuple(shape)), keepdims=True).reshape(shape)


@cache
def _axes_to_sum(n_axes: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    padded = (1,) * (n_axes - len(shape)) + shape
    return tuple(axis for axis, length in enumerate(padded) if length == 1)


def as_variables(structure: Factorisation, W: Array, Ht: Array) -> dict[str, Array]:
    """The factors (..., F, K) and (..., N, K) that are unknown, by name, in the model's orientation."""
    sides = zip(two_sides(structure), (W, Ht), strict=True)
    found: dict[str, Array] = {}
    for side, array in sides:
        found |= side.factor.variables(side.turn(array))
    return found


# -- cells of the priors ---------------------------------------------------------------------------------------------


class PriorCells(NamedTuple):
    """shape_w, rate_w (F, K) and shape_h, rate_h (N, K), read-only views; tilt (K,): sum of W's shapes minus H's.

    A factor without a prior, and a known component, has shape 1 and rate 0: that is the density it adds to a gamma
    conditional.
    """

    shape_w: Array
    rate_w: Array
    shape_h: Array
    rate_h: Array
    tilt: Array


def prior_cells(structure: Factorisation, values: Mapping[str, Array]) -> PriorCells:
    """The priors' cells, given the values of the unknown hyperparameters."""
    W, H = two_sides(structure)
    shape_w, rate_w = _cells(W, structure.W.shape, values)
    shape_h, rate_h = _cells(H, structure.H.shape[::-1], values)
    return PriorCells(shape_w, rate_w, shape_h, rate_h, shape_w.sum(axis=0) - shape_h.sum(axis=0))


def _cells(side: Side, shape: tuple[int, int], values: Mapping[str, Array]) -> tuple[Array, Array]:
    pair = side.prior(values) if side.has_gamma_cells else (ONE, ZERO)
    free = side.factor.free_shape[::-1] if side.is_right else side.factor.free_shape
    shapes, rates = (broadcast(array, free) for array in pair)
    if side.factor.known is None:
        return shapes, rates
    return side.with_free(np.ones(shape), shapes), side.with_free(np.zeros(shape), rates)


# -- what engines hand back ------------------------------------------------------------------------------------------


def impute(
    structure: Factorisation,
    Ws: Array,
    Hts: Array,
    generators: Iterable[np.random.Generator],
    values: Mapping[str, Array] | None = None,
) -> Array:
    """(draws, cells), one of every missing cell at each draw of the factors (draws, F, K) and (draws, N, K).

    ``values`` : of the likelihood's unknowns, where it has some
    """
    assert structure.imputed is not None
    rows, cols = structure.imputed.rows, structure.imputed.cols
    draws, law = [], structure.likelihood_at(rows, cols)
    for W, Ht, generator in zip(Ws, Hts, generators, strict=False):  # of which there may be more
        mean = structure.mean_at(W, Ht.T, rows, cols)
        law.require_drawable(mean)
        draws.append(law.draw(mean, values or {}, generator))
    return np.stack(draws)


def impute_counts(structure: Factorisation, Ws: Array, Hts: Array, keys: Iterable[np.uint64]) -> Array:
    """The same of Poisson counts, int64, each cell from a stream of its own of the draw's key."""
    assert structure.imputed is not None
    rows, cols = (np.array(places, np.int64) for places in (structure.imputed.rows, structure.imputed.cols))
    cells = DrawnCells(rows, cols, structure.exposure_at(rows, cols), structure.background_at(rows, cols))
    out = np.empty((len(Ws), len(rows)), np.int64)
    for drawn, W, Ht, key in zip(out, Ws, Hts, keys, strict=True):
        draw_cells(drawn, W, Ht, cells, key)
    if np.any(out < 0):
        raise RunFailed(f"the mean of a missing cell of {structure.imputed.name} is too large to draw it")
    return out


def as_one_draw(structure: Factorisation, W: Array, Ht: Array, values: Mapping[str, Array]) -> dict[str, Array]:
    """Factors and free parameters by name, with an axis of one draw; missing cells are at their point."""
    found = {name: value[None] for name, value in values.items()}
    found |= {name: value[None].copy() for name, value in as_variables(structure, W, Ht).items()}
    if structure.imputed is not None:
        mean = structure.mean_at(W, Ht.T, structure.imputed.rows, structure.imputed.cols)
        law = structure.likelihood_at(structure.imputed.rows, structure.imputed.cols)
        found[structure.imputed.name] = law.point(law.expected(mean, values))[None]
    return found

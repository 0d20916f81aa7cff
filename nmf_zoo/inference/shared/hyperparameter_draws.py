"""Draws of hyperparameters of gamma, inverse-gamma and half-normal priors given the factors, laid out for the kernels.

Given the factors, the entries of one hyperparameter are independent, and each depends on its cells only through sums.
A rate or precision with a gamma prior and a mean or variance with an inverse-gamma prior are drawn from their
conditionals, all others are slice sampled: :mod:`nmf_zoo.kernels.random.hyperparameter_draws`.

Unknown scales of a prior, moved together with the factor that has it.

Given H, its prior mean m can only take a step as small as H's many cells allow, and given m neither can H: together
they creep. But W H stays as it is on the line m -> c m, H -> c H, W -> W / c, and so does H's prior density against the
change of volume; what is left is the prior of W, and that of m. This move draws c from there: log c is slice sampled,
one for each component where m has one, one for all where m is common. So it goes for a rate (m -> m / c) and for the
scale of an inverse-gamma or half-normal prior, of W as of H. It is a partial resampling in the sense of Liu and Sabatti
(2000), Generalised Gibbs sampler and multigrid Monte Carlo, Biometrika 87(2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from nmf_zoo.inference.shared.conjugate import CONJUGATE
from nmf_zoo.inference.shared.factor_view import Side, two_sides
from nmf_zoo.kernels.random.hyperparameter_draws import (
    BY_GAMMA,
    BY_INVERSE_GAMMA,
    FLAT,
    FREE,
    GAMMA,
    HALF_NORMAL,
    INVERSE_GAMMA,
    MEAN,
    OF_BETA,
    OF_GAMMA,
    OF_HALF_NORMAL,
    OF_INVERSE_GAMMA,
    OF_LOGNORMAL,
    OF_NORMAL,
    OF_UNIFORM,
    RATE,
    SIGMA,
    SLICED,
    TRUNCATED_NORMAL,
    VARIANCE,
    Entries,
    FactorCells,
    GroupSums,
    PriorGroups,
    add_cells,
    along_scales,
    draw_entries,
    draw_scales_along,
)
from nmf_zoo.kernels.random.keyed_rng import child
from nmf_zoo.structure import Array, Factorisation, Known, Parameter, PartlyKnown, Unknown

FAMILIES = {
    "gamma": GAMMA,
    "inverse-gamma": INVERSE_GAMMA,
    "half-normal": HALF_NORMAL,
    "truncated normal": TRUNCATED_NORMAL,
    "free": FLAT,
}
ROLES = {"rate": RATE, "precision": RATE, "scale": RATE, "mean": MEAN, "sigma": SIGMA, "variance": VARIANCE}
HYPERPRIORS = {
    "flat": FREE,
    "gamma": OF_GAMMA,
    "inverse_gamma": OF_INVERSE_GAMMA,
    "lognormal": OF_LOGNORMAL,
    "half_normal": OF_HALF_NORMAL,
    "uniform": OF_UNIFORM,
    "beta": OF_BETA,
    "normal": OF_NORMAL,
}
HOW = {"gamma": BY_GAMMA, "inverse_gamma": BY_INVERSE_GAMMA}
# how a parameter follows its factor, as powers of it
DIRECTIONS = {"mean": 1.0, "scale": 1.0, "rate": -1.0, "sigma": 1.0, "variance": 2.0, "precision": -2.0}
NO_LINE = np.empty((0, 4))


class Scale(NamedTuple):
    """An unknown that is the scale of a factor: of which (0 is W, 1 is H), and how it follows it."""

    unknown: Unknown
    of: int
    direction: float


@dataclass(frozen=True)
class Hyperparameters:
    """The unknowns of the factors' priors, as the kernels take them.

    Attributes
    ----------
    unknowns : where each stands in ``numbers``
    numbers : a template: entries of the unknowns, to be filled, then what is known
    cells : of W and of H
    scales : unknowns to be moved with their factor
    """

    unknowns: Mapping[str, tuple[Unknown, slice]]
    numbers: Array
    cells: tuple[FactorCells, FactorCells]
    groups: PriorGroups
    entries: Entries
    scales: tuple[Scale, ...]


def lay_out_hyperparameters(structure: Factorisation, moves: tuple[str, ...]) -> Hyperparameters | None:
    """What draws of the unknowns of the factors' priors need; None where nothing in them is unknown.

    With "scale" among the ``moves`` they include those of the unknowns that scale a factor.
    """
    sides = two_sides(structure)
    uses = [(role, own) for side in sides for role, own in _parameters(side).items() if isinstance(own, Unknown)]
    if not uses:
        return None
    unknowns: dict[str, tuple[Unknown, slice]] = {}
    n_entries = 0
    for _, own in uses:
        if own.name not in unknowns:
            unknowns[own.name] = own, slice(n_entries, n_entries + prod(own.variable_shape))
            n_entries += prod(own.variable_shape)
    numbers = _Numbers(unknowns, n_entries)
    first, cells, groups = 0, [], []
    for side in sides:
        of_side, of_groups = _lay_out_cells(side, numbers, first)
        first += of_side.n_groups
        cells.append(of_side)
        groups.append(of_groups)
    whole = PriorGroups(*map(np.concatenate, zip(*groups, strict=True)))
    return Hyperparameters(
        unknowns=unknowns,
        numbers=np.concatenate(numbers.parts),
        cells=(cells[0], cells[1]),
        groups=whole,
        entries=_lay_out_entries(unknowns, uses, whole, n_entries),
        scales=tuple(scales_of(structure)) if "scale" in moves else (),
    )


def _parameters(side: Side) -> Mapping[str, Parameter]:
    """By role; a shape of all is the first."""
    return getattr(side.factor.prior, "parameters", {})


class _Numbers:
    """The vector of all parameters while it is made."""

    def __init__(self, unknowns: Mapping[str, tuple[Unknown, slice]], n_entries: int):
        self._unknowns, self.parts = unknowns, [np.full(n_entries, np.nan)]

    def places(self, parameter: Parameter) -> Array:
        """Where its entries stand, in a shape that broadcasts to the factor; those of a known one are added."""
        if isinstance(parameter, Known):
            return self._add(parameter.value)
        own = self._unknowns[parameter.name][1]
        if not isinstance(parameter, PartlyKnown):
            return np.arange(own.start, own.stop).reshape(parameter.shape)
        places = self._add(parameter.known)
        places[parameter.are_free] = np.arange(own.start, own.stop)
        return places

    def _add(self, value: Array) -> Array:
        first = sum(map(len, self.parts))
        self.parts.append(np.array(value, dtype=np.float64).ravel())
        return np.arange(first, first + np.size(value)).reshape(np.shape(value))


def _lay_out_cells(side: Side, numbers: _Numbers, first: int) -> tuple[FactorCells, PriorGroups]:
    """A factor's cells and their groups, of which ``first`` is the first. A known factor has none."""
    parameters, columns = _parameters(side), np.flatnonzero(side.are_free)
    family = FAMILIES.get(side.factor.prior.family, FLAT)
    if not parameters:
        at, none = numbers.places(Known(value=np.ones((1, 1)))).ravel(), np.zeros(1, np.int64)
        return FactorCells(first, 0, 0, columns, family, 1, False), PriorGroups(at, at, none)
    *_, (role, second) = parameters.items()
    shape = parameters.get("shape", parameters.get("mu", Known(value=np.array(0.5))))
    places = [np.atleast_2d(numbers.places(own)) for own in (shape, second)]
    ties = np.broadcast_shapes((1, 1), *(own.shape for own in places))
    shape_at, second_at = (np.ascontiguousarray(side.turn(np.broadcast_to(own, ties))) for own in places)
    n_rows, n_columns = shape_at.shape
    strides = n_columns * (n_rows > 1), int(n_columns > 1)
    is_learned = any(isinstance(own, Unknown) for own in parameters.values())
    cells = FactorCells(first, *strides, columns, family, shape_at.size, is_learned)
    return cells, PriorGroups(shape_at.ravel(), second_at.ravel(), np.full(shape_at.size, ROLES[role]))


def _lay_out_entries(
    unknowns: Mapping[str, tuple[Unknown, slice]], uses: list[tuple[str, Unknown]], groups: PriorGroups, n_entries: int
) -> Entries:
    """Where each entry is used, its prior, and how it is drawn."""
    places = [
        np.union1d(np.flatnonzero(groups.shape_at == e), np.flatnonzero(groups.second_at == e))
        for e in range(n_entries)
    ]
    hyperprior, how = np.empty(n_entries, np.int64), np.empty(n_entries, np.int64)
    args = np.zeros((n_entries, 2))
    for name, (own, at) in unknowns.items():
        kind, roles = own.prior.kind, [role for role, use in uses if use.name == name]
        hyperprior[at] = HYPERPRIORS[kind]
        how[at] = HOW[kind] if {CONJUGATE.get(role) for role in roles} == {kind} else SLICED
        for column, arg in enumerate(own.prior.args):
            args[at, column] = np.broadcast_to(arg, own.variable_shape).ravel()
    return Entries(
        first_use=np.concatenate([[0], np.cumsum([len(own) for own in places])]).astype(np.int64),
        uses=np.concatenate(places).astype(np.int64),
        hyperprior=hyperprior,
        args=args,
        jacobian=np.ones(n_entries),
        how=how,
    )


def sum_groups(given: Hyperparameters, W: Array, Ht: Array) -> GroupSums:
    """What the unknowns see of the factors (F, K) and (N, K)."""
    sums = GroupSums(*np.zeros((3, given.groups.role.size)))
    for cells, factor in zip(given.cells, (W, Ht), strict=True):
        if cells.is_learned:
            add_cells(sums, cells, factor)
    return sums


class GammaSums(NamedTuple):
    """What a gamma prior that all samples share sees of H: how many samples, sums (K,) of h and of log h over them."""

    n_samples: int
    total: Array
    log_total: Array

    def plus(self, other: GammaSums) -> GammaSums:
        """Those of this and of other samples."""
        total, log_total = self.total + other.total, self.log_total + other.log_total
        return GammaSums(self.n_samples + other.n_samples, total, log_total)

    def over(self, scale: Array) -> GammaSums:
        """Those of h / scale."""
        return GammaSums(self.n_samples, self.total / scale, self.log_total - self.n_samples * np.log(scale))


def sum_groups_over(given: Hyperparameters, W: Array, of_H: GammaSums) -> GroupSums:
    """:func:`sum_groups` where H, all of it unknown, is there as its sums alone."""
    sums, cells = sum_groups(given, W, of_H.total[None]), given.cells[1]
    if cells.is_learned:
        own = slice(cells.first, cells.first + cells.n_groups)
        sums.n_cells[own] *= of_H.n_samples
        sums.log_total[own] = 0.0
        np.add.at(sums.log_total, cells.first + cells.column_stride * np.arange(len(of_H.total)), of_H.log_total)
    return sums


def draw_hyperparameters(
    given: Hyperparameters | None, W: Array, H: Array | GammaSums, values: dict[str, Array], key: np.uint64
) -> Array | None:
    """Draw all unknowns in turn, and move those that scale a factor with it, in place of their entries in ``values``.

    ``H`` : Ht (N, K), or its sums where the prior is one of gammas that all samples share

    Returns (K,) by which W (F, K) is to be multiplied and H divided; None where they stay.
    """
    if given is None:
        return None
    numbers = given.numbers.copy()
    for name, (_, at) in given.unknowns.items():
        numbers[at] = np.ravel(values[name])
    sums = sum_groups_over(given, W, H) if isinstance(H, GammaSums) else sum_groups(given, W, H)
    draw_entries(given.entries, given.groups, sums, numbers, NO_LINE, child(key, 0))
    log_c = move_scales(given, W, H, sums, numbers, key) if given.scales else None
    for name, (unknown, at) in given.unknowns.items():
        values[name] = numbers[at].reshape(unknown.variable_shape)
    return None if log_c is None else np.exp(log_c)


def move_scales(
    given: Hyperparameters, W: Array, H: Array | GammaSums, sums: GroupSums, numbers: Array, key: np.uint64
) -> Array:
    """Log c (K,) of W -> c W, H -> H / c after each unknown scale has moved, in ``numbers``."""
    shift, drawn, line = np.zeros(W.shape[1]), np.empty(W.shape[1]), np.empty((W.shape[1], 4))
    rows, n_each = (H.total[None], H.n_samples) if isinstance(H, GammaSums) else (H, 1)
    for place, (unknown, of, direction) in enumerate(given.scales):
        sign = 1.0 if of == 0 else -1.0
        other, factor = given.cells[1 - of], (rows, W)[of]
        along_scales(line, other, given.groups, numbers, factor, -sign * shift)
        line[:, 0] *= n_each if of == 0 else 1  # one shape for each sample, whose cells are one sum
        at = given.unknowns[unknown.name][1]
        scale = at.start, at.stop - at.start, direction
        draw_scales_along(line, given.entries, given.groups, sums, numbers, scale, drawn, child(key, 1, place))
        shift += sign * drawn
    return shift


def scales_of(structure: Factorisation) -> list[Scale]:
    """The unknowns that scale one factor and do nothing else, where the other factor can make up for it.

    Beside known components none, nor one that is known of some components: what is known can't follow.
    """
    factors, found = (structure.W, structure.H), []
    if not structure.free_in_both.all():
        return []
    names = [unknown.name for factor in factors for unknown in factor.unknowns]
    for of, factor in enumerate(factors):
        for role, parameter in factor.prior.parameters.items() if factor.unknowns else ():
            if role not in DIRECTIONS or not isinstance(parameter, Unknown) or not _is_by_component(parameter, of):
                continue
            if names.count(parameter.name) == 1 and not isinstance(parameter, PartlyKnown):
                found.append(Scale(parameter, of, DIRECTIONS[role]))
    return found


def _is_by_component(unknown: Unknown, of: int) -> bool:
    """One value, or one for each component."""
    shape = (1,) * (2 - len(unknown.shape)) + tuple(unknown.shape)
    return shape[of] == 1

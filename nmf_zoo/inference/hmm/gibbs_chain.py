"""Draws of the hyperparameters given W and H: in closed form where the prior allows, else by slice sampling.

Given their paths the chains depend on their parameters through few sums, which each chain's formulas name
(:mod:`nmf_zoo.inference.hmm.chains`)::

    basis        n(0->0), n(0->1), n(1->0), n(1->1), and whether it begins on
    unit         steps towards the nearer end, steps away from it
    log-normal   z_1, and sums of z, z', z z, z z', z' z'                       z = log h, z' the step after it

In closed form go probabilities with beta or whole uniform priors, where the chain does not begin from its stationary
law, and the mean of a log-normal chain with a normal prior; one number for all components, or one for each. Everything
else is drawn on the real line, by the logit, artanh or logarithm that its role asks for, entry by entry: whatever the
prior, and also where one variable serves several roles, those of W's prior among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.special import expit, logit

from nmf_zoo.inference.hmm.chains import entries
from nmf_zoo.inference.shared.slice_sampling import log_prior_of_groups, slice_draw, sum_groups
from nmf_zoo.structure import Array, ChainPrior, Factor, Factorisation, Unknown
from nmf_zoo.structure.chains import POSITIVE, PROBABILITY, REAL, SYMMETRIC, supports_of


class Coordinate(NamedTuple):
    """A support's way to the real line and back, and log |d value / d coordinate|."""

    to_real: Callable[[Array], Array]
    back: Callable[[Array], Array]
    log_jacobian: Callable[[Array], Array]


COORDINATES = {
    PROBABILITY: Coordinate(logit, expit, lambda v: np.log(v) + np.log1p(-v)),
    SYMMETRIC: Coordinate(np.arctanh, np.tanh, lambda v: np.log1p(-v) + np.log1p(v)),
    POSITIVE: Coordinate(np.log, np.exp, np.log),
    REAL: Coordinate(np.asarray, np.asarray, np.zeros_like),
}


def chain_of(structure: Factorisation) -> ChainPrior:
    """The prior of an H that is a chain."""
    return cast(ChainPrior, structure.H.prior)


def draw_parameters(
    structure: Factorisation,
    formulas: Any,
    W: Array,
    sums: Any,
    values: dict[str, Array],
    generator: np.random.Generator,
) -> None:
    """Draw every unknown hyperparameter in turn, in place of its entry in ``values``.

    ``formulas`` : of the chain, of which ``draw`` and ``log_paths`` are asked; ``sums`` : what these know its paths by
    """
    prior, groups = chain_of(structure), sum_groups(structure.W, W) if structure.W.unknowns else None
    for name, unknown in structure.unknowns.items():
        drawn = None
        if _use(structure.W, name) is None:
            drawn = formulas.draw(prior, unknown, sums, values, generator)
        if drawn is None:
            drawn = _draw_by_slice(structure, formulas, unknown, groups, sums, values, generator)
        values[name] = drawn


def _use(factor: Factor, name: str) -> Unknown | None:
    """The hyperparameter as the factor's prior uses it, if it does."""
    return next((unknown for unknown in factor.unknowns if unknown.name == name), None)


def _draw_by_slice(
    structure: Factorisation, formulas: Any, unknown: Unknown, groups, sums: Any, values: Mapping[str, Array], generator
) -> Array:
    """One slice-sampling step for every entry."""
    name, own, prior = unknown.name, COORDINATES[_support(structure, unknown)], chain_of(structure)
    use_H, use_W = _use(structure.H, name), _use(structure.W, name)

    def log_density(u: Array) -> Array:
        value = own.back(u)
        proposed = {**values, name: value}
        total = unknown.prior.log_density(value) + own.log_jacobian(value)
        if use_H is not None:
            total = total + entries(formulas.log_paths(prior, sums, proposed), use_H)
        if use_W is not None:
            total = total + entries(log_prior_of_groups(groups, proposed), use_W)
        return np.where(np.isnan(total), -np.inf, total)

    return np.asarray(own.back(slice_draw(log_density, own.to_real(values[name]), generator)))


def _support(structure: Factorisation, unknown: Unknown) -> tuple[float, float]:
    """What all its roles allow."""
    low, high = supports_of(chain_of(structure)).get(unknown.name, REAL)
    if _use(structure.W, unknown.name) is not None:
        low = max(low, POSITIVE[0])
    return low, high

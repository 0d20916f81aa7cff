"""Momentum for iterations that never lose: each step starts a little beyond where the last one led.

With x_i the iterates of any update F that never loses, the next one starts at y = x_i + push (x_i - x_{i-1}), or, for
cells that F can only scale, at y = x_i (x_i / x_{i-1})^push. The push grows while this goes well. When the objective is
worse than before, even by rounding, the point is dropped, F is applied to the last iterate instead, and the push and
its bound shrink (Ang and Gillis 2019, algorithm 3). So the objective is monotone, and fixed points are those of F.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.inference.shared.multiplicative import FLOOR
from nmf_zoo.kernels.numerics.momentum import BOUND_GROWTH, FASTEST, GROWTH, LARGEST_RATIO, SHRINK
from nmf_zoo.structure import Array

LEAST_SHARE = 0.1  # of a cell, after one push by differences
ROUNDING = 1e-12  # of an objective, relative


class Momentum(NamedTuple):
    """How hard to push, and the bound of it."""

    push: float = 0.5
    bound: float = FASTEST

    def faster(self) -> Momentum:
        """After a push that went well."""
        return Momentum(min(self.bound, GROWTH * self.push), min(FASTEST, BOUND_GROWTH * self.bound))

    def slower(self) -> Momentum:
        """After one that did not."""
        return Momentum(self.push / SHRINK, self.push)


def push_or_retreat(
    momentum: Momentum, pushed: Callable[[], Any] | None, plain: Callable[[], Any], is_gain: Callable[[Any], bool]
) -> tuple[Any, Momentum]:
    """(``pushed()``, or ``plain()`` where that is no gain or there is no push, the momentum from then on)"""
    if pushed is not None:
        found = pushed()
        if is_gain(found):
            return found, momentum.faster()
        momentum = momentum.slower()
        del found  # it may be large
    return plain(), momentum


def raise_bound(state: Any, updated: Any, pushes: bool, pushed: Callable[[], Any], plain: Callable[[], Any]) -> Any:
    """The next state of an engine whose ``bound`` never falls, beyond what it is ``updated`` to or where that led.

    ``state`` keeps that too, as ``updated`` (None at first), and its ``momentum``; ``pushes``: it is to go beyond.
    """
    new, momentum = push_or_retreat(
        state.momentum,
        pushed if pushes and state.updated is not None else None,
        plain,
        lambda new: new.bound >= state.bound,
    )
    return new._replace(momentum=momentum, updated=updated)


def ahead(new: Array, old: Array, push: float) -> Array:
    """Beyond ``new``, seen from ``old``, by differences; only an update sends a cell to 0."""
    beyond, least = new - old, LEAST_SHARE * new
    beyond *= push
    beyond += new
    return np.maximum(beyond, np.maximum(least, FLOOR, out=least), out=beyond)


def ahead_by_ratio(new: Array, old: Array, push: float) -> Array:
    """Beyond ``new``, seen from ``old``, by ratios of positive cells."""
    ratio = new / old
    np.maximum(ratio, 1.0 / LARGEST_RATIO, out=ratio)
    np.minimum(ratio, LARGEST_RATIO, out=ratio)
    np.power(ratio, push, out=ratio)
    ratio *= new
    return np.maximum(ratio, FLOOR, out=ratio)


def is_no_worse(objective: float, before: float) -> bool:
    """Whether an objective that is to fall did not rise, but for rounding; False where it is not finite."""
    return bool(np.isfinite(objective) and objective <= before + (ROUNDING * abs(before) if np.isfinite(before) else 0))

"""What a chain with auxiliary variables tells the engines of this folder: one class and one file each.

Arrays have one row per time, as a factor's rows: activations Ht (N, K), auxiliaries (N - 1, K), one for each step from
a time to the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nmf_zoo.runtime.workers import Workers
from nmf_zoo.structure import Array, Unknown

Values = Mapping[str, Array]  # of the unknowns, by name


class DataTerms(NamedTuple):
    """What the sources of the data say of the activations: power log h - rate h - scale / h, each cell.

    Of Poisson counts power is the counts of a component and scale 0; of powers, shared out, power is minus the number
    of observed cells and rate 0. Arrays (N, K), or None for 0.
    """

    power: Array
    rate: Array | None
    scale: Array | None


class AugmentedChain(ABC):
    """One kind of chain: conditionals of Gibbs sampling."""

    @abstractmethod
    def start(self, prior: Any, Ht: Array, values: Values) -> Array:
        """Auxiliaries that are possible beside these activations."""

    @abstractmethod
    def draw_auxiliary(
        self, prior: Any, Ht: Array, auxiliary: Array, values: Values, workers: Workers, key: np.uint64
    ) -> None:
        """Draw the auxiliaries given the activations, in place."""

    @abstractmethod
    def draw_activations(
        self, prior: Any, Ht: Array, auxiliary: Array, values: Values, data: DataTerms, workers: Workers, key: np.uint64
    ) -> None:
        """Draw the activations given the auxiliaries and the data, in place; all times are independent then."""

    @abstractmethod
    def move_levels(
        self, prior: Any, Ht: Array, auxiliary: Array, values: Values, data: DataTerms, workers: Workers, key: np.uint64
    ) -> None:
        """Move many times of a row together, in place; auxiliaries that ought to move are drawn anew before use."""

    @abstractmethod
    def law_of_scale(self, prior: Any, Ht: Array, auxiliary: Array, values: Values) -> tuple[Array, Array]:
        """(power, rate), (K,): the density of rows scaled by c, with the change of volume, is c^power e^(-rate c)."""

    # -- hyperparameters, as :mod:`nmf_zoo.inference.hmm.gibbs_chain` asks for them

    @abstractmethod
    def sums(self, Ht: Array, auxiliary: Array) -> Any:
        """What hyperparameters see of the paths."""

    @abstractmethod
    def log_paths(self, prior: Any, sums: Any, values: Values) -> Array:
        """log p(paths | parameters) of every component, (K, 1)."""

    def draw(
        self, prior: Any, unknown: Unknown, sums: Any, values: Values, generator: np.random.Generator
    ) -> Array | None:
        """A draw of a parameter from a conditional with a closed form: here of none."""
        return None


def in_rows(parameter: Array) -> Array:
    """A chain's parameter, () or (K, 1), as it broadcasts against (N, K)."""
    return parameter if parameter.ndim == 0 else parameter.T

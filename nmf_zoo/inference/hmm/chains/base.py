"""What engines need of one kind of chain: its law as the kernels take it, its M-step, and its draws in Gibbs sampling.

A chain is one class here, one file with its formulas, beside its prior in :mod:`nmf_zoo.structure.chains` and its
kernels in :mod:`nmf_zoo.kernels.hmm.particles`. Engines ask `formulas_of` a prior, and compare nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from nmf_zoo.inference.hmm.m_step import ChainCounts, Entries, rules_of
from nmf_zoo.inference.shared.factor_view import sum_to
from nmf_zoo.kernels.hmm.chain_updates import ChainRules
from nmf_zoo.kernels.hmm.particles.laws import Law
from nmf_zoo.structure import Array, ChainPrior, Factorisation, Unknown

INSIDE = 1e-300, 1.0 - 2.0**-53  # where a beta draw has rounded to an end
Values = Mapping[str, Array]  # of the unknowns, by name


class ChainSums(NamedTuple):
    """What the parameters of a chain see of its paths.

    first : (K, 1) of the first time; steps : (S, K, 1) sums over the transitions; n_steps; centre : (K, 1) that
    logarithms are taken from
    """

    first: Array
    steps: Array
    n_steps: int
    centre: Array


class ChainFormulas(ABC):
    """One kind of chain.

    Notes
    -----
    Of the class:

    code : of its law, in :mod:`nmf_zoo.kernels.hmm.particles.laws`
    learned : the roles that the steps of a stream update, as the rows of the law's parameters
    moves_levels : Gibbs has moves along what the data can't see, see :meth:`move_levels`
    """

    code: ClassVar[int]
    learned: ClassVar[tuple[str, ...]]
    moves_levels: ClassVar[bool] = False

    # -- its law

    @abstractmethod
    def law_rows(self, prior: Any, values: Values) -> tuple[Sequence[Array], Sequence[Array]]:
        """The rows of the law's parameters and of its first time's, () or (K, 1) each."""

    def in_the_middle(self, law: Law) -> Law:
        """The law with a first time that is like any other: stationary, where that is known."""
        return law

    # -- its paths

    @abstractmethod
    def with_companion(self, h: Array) -> tuple[Array, Array]:
        """Activations moved inside their support, and what stands beside them (`kernels.hmm.particles.laws.Cloud`)."""

    def inside(self, h: Array) -> Array:
        """Activations that have a density: those of particles may have rounded to an end."""
        return h

    @abstractmethod
    def start_path(self, law: Law, k: int, n_times: int, generator: np.random.Generator) -> Array:
        """A row of H to begin at, (T,), possible whatever was counted."""

    @abstractmethod
    def sum_paths(self, h: Array, aux: Array) -> ChainSums:
        """The sums of paths (K, T) and their exact companions."""

    @abstractmethod
    def log_paths(self, prior: Any, sums: ChainSums, values: Values) -> Array:
        """log p(paths | parameters) of every component, (K, 1), up to a constant."""

    # -- its parameters

    @abstractmethod
    def update(self, prior: Any, unknowns: Mapping[str, Unknown], counts: ChainCounts, old: Values) -> dict[str, Array]:
        """The M-step: the values of the hyperparameters, those of the chain at their best."""

    def rules(self, prior: ChainPrior, rank: int) -> tuple[ChainRules, Entries]:
        """How a stream updates them."""
        return rules_of(prior, self.learned, rank)

    def events(self, sums: ChainSums) -> dict[str, Any]:
        """Of roles that are probabilities: how often the event came about, and how often it did not, (K, 1) each."""
        return {}

    def draw(
        self, prior: Any, unknown: Unknown, sums: ChainSums, values: Values, generator: np.random.Generator
    ) -> Array | None:
        """A draw of a parameter from its conditional if that has a closed form, else None.

        Here: of probabilities, where their prior is a beta and the chain does not begin from its stationary law.
        """
        kind, args = unknown.prior.kind, unknown.prior.args
        if kind == "uniform" and np.all(args[0] <= 0.0) and np.all(args[1] >= 1.0):
            kind, args = "beta", (np.ones(()), np.ones(()))
        counts = self.events(sums)
        if kind != "beta" or prior.is_stationary or not counts:
            return None
        stays, leaves = np.sum([counts[role] for role in roles_of(prior, unknown)], axis=0)
        a, b = (entries(count, unknown) + arg for count, arg in zip((stays, leaves), args, strict=True))
        return np.asarray(np.clip(generator.beta(a, b), *INSIDE))

    # -- its scale

    def fixes_scale(self, prior: Any) -> bool:
        """Whether a known parameter says at what level activations are, so that a free scale of W can follow them."""
        return False

    def move_levels(
        self,
        structure: Factorisation,
        W: Array,
        z: Array,
        sums: ChainSums,
        values: dict[str, Array],
        generator: np.random.Generator,
    ) -> ChainSums:
        """Move W (F, K) and z = log h (K, T) along what leaves W H alone, in place; returns the sums of the new z."""
        return sums


def roles_of(prior: ChainPrior, unknown: Unknown) -> list[str]:
    """The parameters that an unknown is."""
    own = prior.parameters.items()
    return [role for role, parameter in own if isinstance(parameter, Unknown) and parameter.name == unknown.name]


def entries(of_components: Array, unknown: Unknown) -> Array:
    """(K, 1) summed over the components that share an entry, in the variable's shape."""
    return sum_to(of_components, unknown.shape).reshape(unknown.variable_shape)


def row_sums(parts: Sequence[Array]) -> Array:
    """(S, K, 1) of S arrays (K, T)."""
    return np.stack([part.sum(axis=1, keepdims=True, dtype=np.float64) for part in parts])

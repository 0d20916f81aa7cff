"""What a chain in time is: the law of a row of H, in one class that is asked for all of it.

Parameters are () or (K, 1), one for each component. A chain that starts from its own stationary law has no parameters
of the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.parameters import Array, Parameter, Unknown

Support = tuple[float, float]  # where a parameter lies: strictly inside
PROBABILITY, SYMMETRIC, POSITIVE, REAL = (0.0, 1.0), (-1.0, 1.0), (0.0, np.inf), (-np.inf, np.inf)


class ChainPrior:
    """What every chain is: a dataclass whose fields are its parameters, by role; None where the first time has none.

    Notes
    -----
    Of the class:

    family : what it is called in texts, "binary chain"
    distribution : what it is called in code, "BasisChain"
    supports : where the parameter of each role lies; the roles, in the order of the fields
    of_first : the roles that belong to the first time, and are left out where that has the stationary law
    is_binary : H is 0 or 1
    is_bounded : H is at most 1
    never : what a component may be for so long that nothing is said of its weights, "off at all times"; "" where
        chains say enough of every component, since all moments of 1 / h are finite
    no_gradient : why NUTS can't draw it; "" when it can
    """

    family: ClassVar[str]
    distribution: ClassVar[str]
    supports: ClassVar[Mapping[str, Support]]
    of_first: ClassVar[tuple[str, ...]] = ()
    is_binary: ClassVar[bool] = False
    is_bounded: ClassVar[bool] = True
    never: ClassVar[str] = ""
    no_gradient: ClassVar[str] = ""

    @property
    def is_stationary(self) -> bool:
        """It starts from its own stationary law, which its parameters decide."""
        return bool(self.of_first) and getattr(self, self.of_first[0]) is None

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by role."""
        found = {role: getattr(self, role) for role in self.supports}
        return {role: parameter for role, parameter in found.items() if parameter is not None}

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        """Log density of H (K, N), given the values of the unknowns."""
        raise NotImplementedError

    def draw_next(self, last: Array, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """The activations (K,) of the time after those of ``last``, given the values of the unknowns."""
        raise NotImplementedError

    def typical(self, values: Mapping[str, Array]) -> Array:
        """What an activation is about, () or (K, 1), for the scale of a start."""
        return np.asarray(0.5)


def of_each(last: Array, law: Iterable[Array]) -> Iterator[Array]:
    """A chain's parameters, () or (K, 1) each, as they broadcast to ``last`` (K,)."""
    return (np.broadcast_to(np.ravel(own), last.shape) for own in law)


def supports_of(prior: ChainPrior) -> dict[str, Support]:
    """Of each unknown of a chain, by name, what all its roles allow."""
    found: dict[str, Support] = {}
    for role, parameter in prior.parameters.items():
        if isinstance(parameter, Unknown):
            (low, high), before = prior.supports[role], found.get(parameter.name, REAL)
            found[parameter.name] = max(low, before[0]), min(high, before[1])
    return found

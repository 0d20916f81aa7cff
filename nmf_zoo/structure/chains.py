"""Priors of activations that are Markov chains in time: each row of H is one chain.

Parameters are () or (K, 1), one for each component. A chain that starts from its own stationary law has no ``initial``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nmf_zoo.structure.parameters import Array, Parameter, Unknown

PROBABILITY, SYMMETRIC, POSITIVE, REAL = (0.0, 1.0), (-1.0, 1.0), (0.0, np.inf), (-np.inf, np.inf)
# Where the parameter of each role lies: strictly inside.
SUPPORTS = {
    "p": PROBABILITY,
    "q": PROBABILITY,
    "initial": PROBABILITY,
    "alpha": PROBABILITY,
    "mean": REAL,
    "persistence": SYMMETRIC,
    "scale": POSITIVE,
    "initial_mean": REAL,
    "initial_scale": POSITIVE,
}


class ChainPrior:
    """What every chain is.

    Attributes
    ----------
    family : what it is called
    no_gradient : why NUTS can't draw it; "" when it can
    is_stationary : it starts from its own stationary law, which its parameters decide
    parameters : the parameters by role
    """

    family: ClassVar[str]
    no_gradient: ClassVar[str] = ""

    @property
    def is_stationary(self) -> bool:
        return False

    @property
    def parameters(self) -> dict[str, Parameter]:
        raise NotImplementedError

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        """Log density of H (K, N), given the values of the unknowns."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BasisChainPrior(ChainPrior):
    """Binary chains: components are switched on and off.

    Attributes
    ----------
    p, q : probabilities of staying off and of staying on, inside (0, 1)
    initial : P(on) at the first time; None: stationary, (1 - p) / (2 - p - q)
    """

    family: ClassVar[str] = "binary chain"
    no_gradient: ClassVar[str] = "is discrete"
    p: Parameter
    q: Parameter
    initial: Parameter | None

    @property
    def is_stationary(self) -> bool:
        return self.initial is None

    @property
    def parameters(self) -> dict[str, Parameter]:
        return _given(p=self.p, q=self.q, initial=self.initial)

    def law(self, values: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """(p, q, initial), each () or (K, 1), given the values of the unknowns."""
        p, q = self.p.resolve(values), self.q.resolve(values)
        return p, q, (1 - p) / (2 - p - q) if self.initial is None else self.initial.resolve(values)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        if not np.all((factor == 0) | (factor == 1)):
            return -np.inf
        p, q, initial = self.law(values)
        on, before, after = factor == 1, factor[:, :-1] == 1, factor[:, 1:] == 1
        stay = np.where(before, q, p)
        first = np.where(on[:, :1], initial, 1 - initial)
        return float(np.sum(np.log(first)) + np.sum(np.log(np.where(before == after, stay, 1 - stay))))


@dataclass(frozen=True, kw_only=True)
class UnitChainPrior(ChainPrior):
    """Chains inside (0, 1) that move towards the nearer end with probability alpha.

    Attributes
    ----------
    alpha : inside (0, 1)
    """

    family: ClassVar[str] = "bounded chain"
    no_gradient: ClassVar[str] = "has a density that jumps: use slice or Metropolis steps of pm.sample"
    alpha: Parameter

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {"alpha": self.alpha}

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        if not np.all((factor > 0) & (factor < 1)):
            return -np.inf
        alpha, before, after = self.alpha.resolve(values), factor[:, :-1], factor[:, 1:]
        down, towards_0 = after < before, np.where(before <= 0.5, alpha, 1 - alpha)
        chance, room = np.where(down, towards_0, 1 - towards_0), np.where(down, before, 1 - before)
        return float(np.sum(np.log(chance) - np.log(room)))


@dataclass(frozen=True, kw_only=True)
class LogNormalARPrior(ChainPrior):
    """Positive chains whose logarithm is an autoregression of order one.

    Attributes
    ----------
    mean, persistence, scale : of log h: where it returns to, how slowly, and the standard deviation of a step
    initial_mean, initial_scale : of log h at the first time; None: stationary, (mean, scale / sqrt(1 - persistence^2))
    """

    family: ClassVar[str] = "log-normal chain"
    mean: Parameter
    persistence: Parameter
    scale: Parameter
    initial_mean: Parameter | None
    initial_scale: Parameter | None

    @property
    def is_stationary(self) -> bool:
        return self.initial_mean is None

    @property
    def parameters(self) -> dict[str, Parameter]:
        own = {"mean": self.mean, "persistence": self.persistence, "scale": self.scale}
        return own | _given(initial_mean=self.initial_mean, initial_scale=self.initial_scale)

    def law(self, values: Mapping[str, Array]) -> tuple[Array, Array, Array, Array, Array]:
        """(mean, persistence, scale, mean and scale at the first time), each () or (K, 1)."""
        mean, persistence, scale = (part.resolve(values) for part in (self.mean, self.persistence, self.scale))
        if self.initial_mean is None or self.initial_scale is None:
            return mean, persistence, scale, mean, scale / np.sqrt(1 - persistence**2)
        return mean, persistence, scale, self.initial_mean.resolve(values), self.initial_scale.resolve(values)

    def log_density(self, factor: Array, values: Mapping[str, Array]) -> float:
        if not np.all(factor > 0):
            return -np.inf
        mean, persistence, scale, first_mean, first_scale = self.law(values)
        z = np.log(factor)
        first = _log_normal(z[:, :1], first_mean, first_scale)
        steps = _log_normal(z[:, 1:], mean + persistence * (z[:, :-1] - mean), scale)
        return float(np.sum(first) + np.sum(steps) - np.sum(z))


def supports_of(prior: ChainPrior) -> dict[str, tuple[float, float]]:
    """Of each unknown of a chain, by name, what all its roles allow."""
    found: dict[str, tuple[float, float]] = {}
    for role, parameter in prior.parameters.items():
        if isinstance(parameter, Unknown):
            (low, high), before = SUPPORTS[role], found.get(parameter.name, REAL)
            found[parameter.name] = max(low, before[0]), min(high, before[1])
    return found


def _given(**parameters: Parameter | None) -> dict[str, Parameter]:
    return {role: parameter for role, parameter in parameters.items() if parameter is not None}


def _log_normal(v: Array, mean: Array, scale: Array) -> Array:
    return -0.5 * ((v - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)

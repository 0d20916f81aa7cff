"""Looking up a random variable's recogniser by its PyMC distribution, and naming what a registry holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pymc.distributions.distribution import Distribution
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable

Registry = Mapping[type[Distribution], Callable]


def operation(distribution: type[Distribution]) -> type:
    """The class of the random operation behind a distribution."""
    op = distribution.rv_op
    return type(op) if isinstance(op, RandomVariable) else distribution.rv_type


def find(registry: Registry, variable: Variable) -> Callable | None:
    """The recogniser registered for the distribution of ``variable``; a subclass may mean another distribution."""
    for distribution, recogniser in registry.items():
        if type(variable.owner.op) is operation(distribution):
            return recogniser
    return None


def parameters(variable: Variable) -> list[Variable]:
    """The parameters of the distribution, as its operation has them."""
    return list(variable.owner.op.dist_params(variable.owner))


def distribution_name(variable: Variable) -> str:
    """For messages: ``Weibull``."""
    return getattr(variable.owner.op, "_print_name", (type(variable.owner.op).__name__,))[0]


def names(registry: Registry) -> str:
    """For messages: ``Gamma, Exponential or HalfFlat``."""
    *first, last = [distribution.__name__ for distribution in registry]
    return f"{', '.join(first)} or {last}" if first else last

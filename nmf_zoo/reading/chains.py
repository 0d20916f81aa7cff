"""Chains as priors of H: their parameters, known or free, one for all components or one for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from nmf_zoo.distributions.chains import CHAINS, ChainDistribution
from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import ModelGraph, View, name_of, spell
from nmf_zoo.reading.hyperparameters import HYPER_PRIOR_READERS, read_hyper_prior
from nmf_zoo.reading.registry import parameters
from nmf_zoo.structure import ChainPrior, HyperPrior, Known, Parameter, Unknown
from nmf_zoo.structure.chains import Support

KNOWN_OR_FREE = "a known value or a free variable, one number or one for each component"

CHAIN_HYPER_PRIORS: dict[type, Callable[..., HyperPrior | None]] = {
    **HYPER_PRIOR_READERS,
    pm.Uniform: lambda lower, upper: HyperPrior(kind="uniform", args=(lower, upper)),
    pm.Beta: lambda alpha, beta: HyperPrior(kind="beta", args=(alpha, beta)),
    pm.Normal: lambda mu, sigma: HyperPrior(kind="normal", args=(mu, sigma)),
    pm.Flat: lambda: HyperPrior(kind="flat"),
}


def read_chain(
    distribution: type[ChainDistribution], graph: ModelGraph, variable: Variable, transposed: bool
) -> ChainPrior:
    refuse_transposed(variable, transposed)
    make: Callable[..., ChainPrior] = distribution.prior
    supports, given = distribution.prior.supports, parameters(variable)[:-1]  # the last is the times
    left_out = distribution.prior.of_first if getattr(variable.owner.op, "stationary", False) else ()
    read = {
        role: None if role in left_out else chain_parameter(graph, variable, role, support, parameter)
        for (role, support), parameter in zip(supports.items(), given, strict=True)
    }
    return make(**read)


CHAIN_PRIORS: dict[type, Callable[[ModelGraph, Variable, bool], ChainPrior]] = {
    own: partial(read_chain, own) for own in CHAINS
}


def refuse_transposed(variable: Variable, transposed: bool) -> None:
    """A chain runs along the last axis of its variable, which must be the samples."""
    if transposed:
        expected, do = "its last axis, time, to be the samples of X", "write W @ H with H (component, obs)"
        raise UnreadableModel(name_of(variable), "a transposed chain", expected, do)


def chain_parameter(
    graph: ModelGraph, variable: Variable, role: str, support: Support, parameter: Variable
) -> Parameter:
    """A chain's parameter as it broadcasts against H: () or (K, 1)."""
    word, view, rank = role.replace("_", " "), View.of(parameter), graph.shapes[name_of(variable)][0]
    do = "make it a variable of its own, or use pm.sample"
    if ModelGraph.is_known(view.source):
        value = np.asarray(view.value, dtype=np.float64)
        if not np.all((value > support[0]) & (value < support[1])):
            got, expected = f"{word} from {value.min()} to {value.max()} in its chain", f"inside {support}"
            raise UnreadableModel(name_of(variable), got, expected, "check the parameters of the chain")
        if (shape := column_shape(value.shape, rank)) is not None:
            return Known(value=value.reshape(shape))
    elif graph.is_free(view.source):
        variable_shape = graph.shapes[name_of(view.source)]
        entries = np.arange(np.prod(variable_shape, dtype=int)).reshape(variable_shape)
        if (shape := column_shape(view.apply(entries).shape, rank)) is not None:
            prior = read_hyper_prior(view.source, CHAIN_HYPER_PRIORS)
            return Unknown(name=name_of(view.source), variable_shape=variable_shape, shape=shape, prior=prior)
    raise UnreadableModel(name_of(variable), f"{word} = {spell(view.source)}", KNOWN_OR_FREE, do)


def column_shape(batch: tuple[int, ...], rank: int) -> tuple[int, ...] | None:
    """The shape against H of a parameter whose shape in the chain is ``batch``; None when it is of neither kind."""
    if np.prod(batch, dtype=int) == 1:
        return ()
    return (rank, 1) if batch == (rank,) else None

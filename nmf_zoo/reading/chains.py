"""Chains as priors of H: their parameters, known or free, one for all components or one for each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from nmf_zoo.distributions.chains import BasisChain, LogNormalAR, UnitChain
from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import ModelGraph, View, name_of, spell
from nmf_zoo.reading.hyperparameters import HYPER_PRIOR_READERS, read_hyper_prior
from nmf_zoo.reading.registry import parameters
from nmf_zoo.structure import HyperPrior, Known, Parameter, Unknown
from nmf_zoo.structure.chains import SUPPORTS, BasisChainPrior, ChainPrior, LogNormalARPrior, UnitChainPrior

KNOWN_OR_FREE = "a known value or a free variable, one number or one for each component"

CHAIN_HYPER_PRIORS: dict[type, Callable[..., HyperPrior | None]] = {
    **HYPER_PRIOR_READERS,
    pm.Uniform: lambda lower, upper: HyperPrior(kind="uniform", args=(lower, upper)),
    pm.Beta: lambda alpha, beta: HyperPrior(kind="beta", args=(alpha, beta)),
    pm.Normal: lambda mu, sigma: HyperPrior(kind="normal", args=(mu, sigma)),
    pm.Flat: lambda: HyperPrior(kind="flat"),
}


def read_basis_chain(graph: ModelGraph, variable: Variable, transposed: bool) -> BasisChainPrior:
    refuse_transposed(variable, transposed)
    p, q, initial, _ = parameters(variable)
    first = None if variable.owner.op.stationary else chain_parameter(graph, variable, "initial", initial)
    return BasisChainPrior(
        p=chain_parameter(graph, variable, "p", p),
        q=chain_parameter(graph, variable, "q", q),
        initial=first,
    )


def read_unit_chain(graph: ModelGraph, variable: Variable, transposed: bool) -> UnitChainPrior:
    refuse_transposed(variable, transposed)
    alpha, _ = parameters(variable)
    return UnitChainPrior(alpha=chain_parameter(graph, variable, "alpha", alpha))


def read_log_normal_ar(graph: ModelGraph, variable: Variable, transposed: bool) -> LogNormalARPrior:
    refuse_transposed(variable, transposed)
    mean, persistence, scale, first_mean, first_scale, _ = parameters(variable)
    stationary = variable.owner.op.stationary
    return LogNormalARPrior(
        mean=chain_parameter(graph, variable, "mean", mean),
        persistence=chain_parameter(graph, variable, "persistence", persistence),
        scale=chain_parameter(graph, variable, "scale", scale),
        initial_mean=None if stationary else chain_parameter(graph, variable, "initial_mean", first_mean),
        initial_scale=None if stationary else chain_parameter(graph, variable, "initial_scale", first_scale),
    )


CHAIN_PRIORS: dict[type, Callable[[ModelGraph, Variable, bool], ChainPrior]] = {
    BasisChain: read_basis_chain,
    UnitChain: read_unit_chain,
    LogNormalAR: read_log_normal_ar,
}


def refuse_transposed(variable: Variable, transposed: bool) -> None:
    """A chain runs along the last axis of its variable, which must be the samples."""
    if transposed:
        expected, do = "its last axis, time, to be the samples of X", "write W @ H with H (component, obs)"
        raise UnreadableModel(name_of(variable), "a transposed chain", expected, do)


def chain_parameter(graph: ModelGraph, variable: Variable, role: str, parameter: Variable) -> Parameter:
    """A chain's parameter as it broadcasts against H: () or (K, 1)."""
    word, support = role.replace("_", " "), SUPPORTS[role]
    view, rank = View.of(parameter), graph.shapes[name_of(variable)][0]
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

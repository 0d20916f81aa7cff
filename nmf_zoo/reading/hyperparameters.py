"""Hyperparameters: known values, and unknown variables with their prior and tying.

To accept another hyperprior, add its density to :data:`nmf_zoo.structure.HYPER_PRIORS` and a line to
:data:`HYPER_PRIOR_READERS`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.scalar import Reciprocal

from nmf_zoo.errors import UnreadableModel
from nmf_zoo.reading.graph import ModelGraph, View, as_joined, is_elemwise, name_of, spell
from nmf_zoo.reading.registry import Registry, distribution_name, find, names, parameters
from nmf_zoo.structure import HyperPrior, Known, Parameter, PartlyKnown, Unknown

Array = np.ndarray


def as_gamma(shape: Array, scale: Array) -> HyperPrior | None:
    return HyperPrior(kind="gamma", args=(shape, np.asarray(1.0 / scale)))


def as_exponential(scale: Array) -> HyperPrior | None:
    return HyperPrior(kind="gamma", args=(np.ones(()), np.asarray(1.0 / scale)))


def as_inverse_gamma(shape: Array, scale: Array) -> HyperPrior | None:
    return HyperPrior(kind="inverse_gamma", args=(shape, scale))


def as_half_normal(loc: Array, sigma: Array) -> HyperPrior | None:
    return HyperPrior(kind="half_normal", args=(sigma,)) if np.all(loc == 0) else None


def as_uniform(lower: Array, upper: Array) -> HyperPrior | None:
    return HyperPrior(kind="uniform", args=(lower, upper)) if np.all(lower >= 0) else None


HYPER_PRIOR_READERS: dict[type, Callable[..., HyperPrior | None]] = {
    pm.HalfFlat: lambda: HyperPrior(kind="flat"),
    pm.Gamma: as_gamma,
    pm.Exponential: as_exponential,
    pm.InverseGamma: as_inverse_gamma,
    pm.LogNormal: lambda mu, sigma: HyperPrior(kind="lognormal", args=(mu, sigma)),
    pm.HalfNormal: as_half_normal,
    pm.Uniform: as_uniform,
}


def read_hyper_prior(variable: Variable, readers: Registry | None = None) -> HyperPrior:
    """The prior of an unknown hyperparameter; ``readers`` where others than non-negative ones are allowed."""
    allowed, where = (HYPER_PRIOR_READERS, " on the non-negative numbers") if readers is None else (readers, "")
    reader = find(allowed, variable)
    expected = f"one of {names(allowed)}{where}, with known parameters"
    if reader is None:
        found = distribution_name(variable)
        raise UnreadableModel(name_of(variable), f"a {found} prior", expected, "change this prior or use pm.sample")
    for parameter in parameters(variable):
        if not ModelGraph.is_known(parameter):
            found = f"a prior that depends on {spell(parameter)}"
            raise UnreadableModel(name_of(variable), found, expected, "give it known parameters or use pm.sample")
    prior = reader(*(parameter_value(p) for p in parameters(variable)))
    if prior is None:
        found = f"a {distribution_name(variable)} prior that can be negative"
        raise UnreadableModel(name_of(variable), found, expected, "restrict it to the non-negative numbers")
    return prior


def parameter_value(variable: Variable) -> Array:
    """A known parameter; 1/x in double precision where PyMC would invert a single-precision constant."""
    view = View.of(variable)
    return np.asarray(1.0 / view.inside().value if is_elemwise(view.source, Reciprocal) else view.value)


def as_parameter(graph: ModelGraph, view: View, transposed: bool) -> Parameter | None:
    """A factor's hyperparameter in our orientation: known, or a free variable seen through dimension shuffles."""
    if ModelGraph.is_known(view.source):
        return Known(value=orient(view.value, transposed))
    if (terms := as_joined(view.source)) is not None:
        return as_partly_known(graph, view, transposed, *terms)
    if not graph.is_free(view.source):
        return None
    variable_shape = graph.shapes[name_of(view.source)]
    entries = np.arange(np.prod(variable_shape, dtype=int)).reshape(variable_shape)
    seen = orient(view.apply(entries), transposed)
    if seen.ndim > 2 or not np.array_equal(seen.ravel(), entries.ravel()):
        return None  # a reshape can't bring the entries into this order
    prior = read_hyper_prior(view.source)
    return Unknown(name=name_of(view.source), variable_shape=variable_shape, shape=seen.shape, prior=prior)


def as_partly_known(
    graph: ModelGraph, view: View, transposed: bool, axis: int, terms: list[Variable]
) -> PartlyKnown | None:
    """Known values joined to one free variable with a prior: ``pt.concatenate([known, relevance])[:, None]``."""
    parts = [View.of(term) for term in terms]
    free = [part for part in parts if not ModelGraph.is_known(part.source)]
    if len(free) != 1 or not graph.is_free(free[0].source):
        return None
    name, prior = name_of(free[0].source), read_hyper_prior(free[0].source)
    if prior.is_flat:
        raise UnreadableModel(name, "no prior, joined to known values", "one with a prior", "give it one")
    variable_shape = graph.shapes[name]
    entries = np.arange(np.prod(variable_shape, dtype=int)).reshape(variable_shape)
    own = free[0].apply(entries)
    places = [own if part is free[0] else np.full(part.value.shape, -1) for part in parts]
    seen = orient(view.apply(np.concatenate(places, axis)), transposed)
    if seen.ndim > 2 or not np.array_equal(seen[seen >= 0], entries.ravel()):
        return None
    values = [np.ones(own.shape) if part is free[0] else part.value for part in parts]
    known = orient(view.apply(np.concatenate(values, axis)), transposed)
    return PartlyKnown(
        name=name, variable_shape=variable_shape, shape=seen.shape, prior=prior, known=known, are_free=seen >= 0
    )


def orient(array: Array, transposed: bool) -> Array:
    """As it broadcasts against our factor; one entry becomes a scalar."""
    if array.size == 1:
        return array.reshape(())
    array = array if array.ndim > 1 else array[None, :]
    return array.T if transposed else array

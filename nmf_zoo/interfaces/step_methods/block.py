"""The conjugate block of a model: X ~ Poisson(W H), W and H gamma given whatever else is in the model.

The priors' parameters may be any expression of other variables: they are evaluated at each step. Given them, W and H
are drawn as in :mod:`nmf_zoo.inference.counts.gibbs`, which is right as long as nothing else in the model depends on W
or H.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from nmf_zoo.errors import UnsupportedModel
from nmf_zoo.reading.data import read_data
from nmf_zoo.reading.graph import ModelGraph, name_of
from nmf_zoo.reading.likelihoods import LIKELIHOODS, Observation, read_likelihood
from nmf_zoo.reading.priors import read_factor
from nmf_zoo.reading.registry import find, operation, parameters
from nmf_zoo.structure import Array, Factorisation, Poisson

Gammas = dict[str, tuple[Array, Array]]  # factor -> (shape, rate) of its cells, in the variable's orientation


@dataclass(frozen=True)
class Block:
    """What is drawn together.

    Attributes
    ----------
    structure : the factorisation, its priors as they are at the model's initial point
    factors : the free variables among W and H
    gammas : function of a point that gives shapes and rates by factor; None where they are known
    """

    structure: Factorisation
    factors: tuple[Variable, ...]
    gammas: Callable[[Mapping[str, Array]], Gammas] | None


def find_block(model: pm.Model, wanted: Sequence[str] | None) -> Block:
    """The block of the factors ``wanted`` (names), or the only one there is."""
    seen = _observation(model, wanted)
    factors = tuple(operand.variable for operand in (seen.mean.left, seen.mean.right))
    free = tuple(variable for variable in factors if variable in model.free_RVs)
    if wanted is not None and set(wanted) != {name_of(variable) for variable in free}:
        expected = ", ".join(name_of(variable) for variable in free)
        _refuse(f"got {', '.join(wanted)}; the block of {seen.name} is {expected}: give these, or none")
    _refuse_other_uses(model, seen, free)
    return Block(_structure(model, seen, free), free, _gammas(model, free))


def _refuse(reason: str) -> None:
    raise UnsupportedModel(f"ConjugateGibbs: {reason}")


def _observation(model: pm.Model, wanted: Sequence[str] | None) -> Observation:
    """The observed Poisson variable whose mean is a product with gamma factors."""
    found = [seen for rv in model.observed_RVs if (seen := _as_block(model, rv)) is not None]
    if wanted is not None:
        found = [seen for seen in found if set(wanted) & set(_names(seen))] or found
    if not found:
        _refuse("no observed Poisson variable has a mean W @ H of Gamma or Exponential variables")
    if len(found) > 1:
        several = " and ".join(", ".join(_names(seen)) for seen in found)
        _refuse(f"there are {len(found)} blocks, {several}: name the variables of one, and add a step for each")
    return found[0]


def _names(seen: Observation) -> list[str]:
    return [name_of(operand.variable) for operand in (seen.mean.left, seen.mean.right)]


def _as_block(model: pm.Model, rv: Variable) -> Observation | None:
    recogniser = find(LIKELIHOODS, rv)
    seen = None if recogniser is None else recogniser(rv)
    if seen is None or seen.likelihood is not Poisson:
        return None
    operands = [operand.variable for operand in (seen.mean.left, seen.mean.right)]
    free = [variable for variable in operands if variable in model.free_RVs]
    others_known = all(variable in free or ModelGraph.is_known(variable) for variable in operands)
    return seen if free and others_known and all(map(_is_gamma, free)) else None


def _is_gamma(variable: Variable) -> bool:
    return type(variable.owner.op) in (operation(pm.Gamma), operation(pm.Exponential))


def _refuse_other_uses(model: pm.Model, seen: Observation, free: Sequence[Variable]) -> None:
    """Nothing but X may depend on the factors: their conditional would not be gamma."""
    variables = [*model.free_RVs, *model.observed_RVs]
    for user in [*variables, *model.potentials]:
        if user is seen.variable:
            continue
        others = [variable for variable in variables if variable is not user]
        inputs = user.owner.inputs if user in variables else [user]
        used = [rv for rv in free if rv is not user and rv in set(ancestors(inputs, blockers=others))]
        if used:
            is_factor = "its prior" if user in free else "it"
            _refuse(f"{name_of(used[0])} is used in {name_of(user)}, too, and {is_factor} would change its conditional")


def _structure(model: pm.Model, seen: Observation, free: Sequence[Variable]) -> Factorisation:
    """The factorisation with everything else at the model's initial point."""
    others = {name: value for name, value in _initial_values(model).items() if name not in map(name_of, free)}
    fixed = pm.do(model, others) if others else model
    graph = ModelGraph(fixed)
    variable = fixed[seen.name]
    recogniser = find(LIKELIHOODS, variable)
    assert recogniser is not None
    again = recogniser(variable)
    W, H = read_factor(graph, again.mean.left), read_factor(graph, again.mean.right)
    shape = (W.shape[0], H.shape[1])
    data, cells = read_data(graph, again, shape)
    likelihood = read_likelihood(graph, again, shape, data, cells)
    return Factorisation(likelihood=likelihood, W=W, H=H, data=data, cells=cells)


def _initial_values(model: pm.Model) -> dict[str, Array]:
    """The free variables, not transformed, where sampling would start."""
    variables = model.unobserved_value_vars
    evaluate = model.compile_fn(variables, inputs=model.value_vars, on_unused_input="ignore")
    values = dict(zip(map(name_of, variables), evaluate(model.initial_point()), strict=True))
    return {name_of(rv): values[name_of(rv)] for rv in model.free_RVs}


def _gammas(model: pm.Model, free: Sequence[Variable]) -> Callable[[Mapping[str, Array]], Gammas] | None:
    """Shapes and rates of the factors' priors as a function of a point."""
    pairs = [_shape_and_scale(variable) for variable in free]
    if all(ModelGraph.is_known(part) for pair in pairs for part in pair):
        return None
    flat = model.replace_rvs_by_values([part for pair in pairs for part in pair])
    evaluate = model.compile_fn(flat, inputs=model.value_vars, on_unused_input="ignore")

    def gammas(point: Mapping[str, Array]) -> Gammas:
        values = evaluate(point)
        return {name_of(rv): (values[2 * i], 1.0 / values[2 * i + 1]) for i, rv in enumerate(free)}

    return gammas


def _shape_and_scale(variable: Variable) -> tuple[Variable, Variable]:
    if type(variable.owner.op) is operation(pm.Exponential):
        (scale,) = parameters(variable)
        return pt.ones_like(scale), scale
    shape, scale = parameters(variable)
    return shape, scale

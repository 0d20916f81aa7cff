"""Recipes of chains as declarations take them: parameters known, free, or variables of the same model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.distributions.chains import CHAINS, ChainDistribution, Recipe
from nmf_zoo.errors import InputError, did_you_mean
from nmf_zoo.models.hyperparameters import Free, free, is_symbolic, variable_shape
from nmf_zoo.models.inputs import Inputs
from nmf_zoo.models.matrices import as_float_array, span
from nmf_zoo.structure.chains import POSITIVE, PROBABILITY, REAL, SYMMETRIC, Support

FREE: dict[tuple[float, float], Callable[..., TensorVariable]] = {
    PROBABILITY: lambda name, **dims: pm.Uniform(name, 0, 1, **dims),
    SYMMETRIC: lambda name, **dims: pm.Uniform(name, -1, 1, **dims),
    POSITIVE: pm.HalfFlat,
    REAL: pm.Flat,
}


def with_free_parameters(distribution: type[ChainDistribution]) -> Recipe:
    """A chain whose parameters are all free, but for those of the first time."""
    required = [role for role in distribution.prior.supports if role not in distribution.prior.of_first]
    return Recipe(distribution, distribution.arguments(**{role: free() for role in required}))


NAMED: dict[str, Callable[[], Recipe]] = {own.word: partial(with_free_parameters, own) for own in CHAINS}


def check_chain(chain: Any, inputs: Inputs) -> Recipe:
    """``chain=``: a recipe, or the name of one whose parameters are all free. Its parameters are checked."""
    if isinstance(chain, str) and chain in NAMED:
        chain = NAMED[chain]()
    if not isinstance(chain, Recipe):
        got = repr(chain) if isinstance(chain, str | type(None)) else f"{type(chain).__name__} {str(chain)[:60]}"
        expected = f"a chain such as nz.BasisChain(0.9, 0.8), or one of {', '.join(map(repr, NAMED))}"
        do = did_you_mean(chain, NAMED) or "give it its parameters, no name, and no .dist"
        raise InputError("chain", got, expected, do)
    checked = {name: check_parameter(chain.distribution, name, own, inputs) for name, own in chain.arguments.items()}
    return Recipe(chain.distribution, checked)


def check_positive_chain(chain: Any, inputs: Inputs, others: Mapping[str, Any]) -> Recipe:
    """The same of a chain without an upper end, in the place of ``others``, which are to be left out."""
    for name, value in others.items():
        if value is not None and not (isinstance(value, float) and value == 1.0):
            raise InputError(name, "a value beside chain=", "one prior of H", f"drop {name} or chain")
    recipe = check_chain(chain, inputs)
    if recipe.distribution.prior.is_bounded:
        got = f"a {recipe.distribution.prior.family}"
        raise InputError("chain", got, "a chain of any positive numbers, such as nz.GammaChain(9.0, 9.0)")
    return recipe


def check_parameter(chain: type[ChainDistribution], name: str, value: Any, inputs: Inputs) -> Any:
    """A number, or one for each component, inside the support; a variable of the model; or free."""
    if value is None or isinstance(value, str):
        if name in chain.stationary and value == chain.stationary[name]:
            return value
        raise InputError(name, repr(value), "numbers" + ' or "stationary"' * chain.takes_stationary(name))
    if isinstance(value, Free):
        if value.tie not in ("all", "obs"):
            expected = "tie 'all', or 'obs' for one value for each component"
            raise InputError(name, f"free(tie={value.tie!r})", expected)
        return value
    array = None if is_symbolic(value) else as_float_array(name, value)
    check_components(name, variable_shape(name, value) if array is None else array.shape, inputs.rank)
    if array is None:
        return value
    low, high = chain.prior.supports[name]
    if not np.all((array > low) & (array < high)):
        raise InputError(
            name, span(array), "finite numbers" if (low, high) == REAL else f"numbers inside ({low:g}, {high:g})"
        )
    return pt.constant(array, dtype="float64")


def check_components(name: str, shape: tuple[int | None, ...], rank: int) -> None:
    """One number, or as many as there are components."""
    if len(shape) > 1 or (len(shape) == 1 and shape[0] not in (rank, None)):
        raise InputError(name, f"shape {shape}", f"() or ({rank},): one number, or one for each component")


def declare_chain(name: str, recipe: Recipe, dims: tuple[str, str]) -> TensorVariable:
    """The variable, with variables for its free parameters."""
    distribution, supports = recipe.distribution, recipe.distribution.prior.supports
    given = {role: declare_parameter(role, value, supports[role], dims[0]) for role, value in recipe.arguments.items()}
    return distribution(name, **distribution.of_roles(given), dims=dims)


def declare_parameter(name: str, value: Any, support: Support, dim: str) -> Any:
    if not isinstance(value, Free):
        return value
    return FREE[support](name, **({} if value.tie == "all" else {"dims": dim}))

"""Hyperparameters of a declaration: known numbers, variables of the same model, or recipes for free ones.

A shape that broadcasts to the factor says which cells share a value, by NumPy's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from nmf_zoo.errors import InputError, not_one_of
from nmf_zoo.labels import OBS, are_counted, hint_of
from nmf_zoo.models.inputs import Inputs, current_model
from nmf_zoo.models.matrices import (
    COLUMNS,
    ROWS,
    as_float_array,
    by_its_labels,
    check_broadcast,
    in_place,
    read_along,
    span,
)
from nmf_zoo.options import names_checked

WEIGHTS = ("feature", "component")
ACTIVATIONS = ("component", OBS)
TIES = ("all", "feature", "component", OBS, None)


@dataclass(frozen=True)
class Free:
    """A recipe for an unknown hyperparameter; made by :func:`free`."""

    tie: str | None


@names_checked
def free(tie: str | None = "all") -> Free:
    """An unknown hyperparameter without a prior: the declaration makes it a ``HalfFlat`` named like the argument.

    Parameters
    ----------
    tie : which cells share one value

        - "all": one value for the whole factor
        - "obs" (for H) or "feature" (for W): tied over samples or features, so one value per component
        - "component": tied over components, so one value per sample (of H) or per feature (of W)
        - None: every cell has its own

    Examples
    --------
    >>> import nmf_zoo as nz
    >>> model = nz.gamma_nmf([[1, 0], [2, 3]], rank=1, alpha_h=nz.free(tie="obs"))
    >>> model["alpha_h"].type.ndim
    1
    """
    if tie not in TIES:
        raise not_one_of("tie", tie, TIES, do=hint_of(tie))
    return Free(tie)


@dataclass(frozen=True)
class Hyperparameter:
    """A checked hyperparameter, not yet part of a model.

    Attributes
    ----------
    name : of the argument, and of the variable when it is free
    value : constant tensor, a model variable, or a recipe
    dims : dims of what it belongs to; () for a single number
    """

    name: str
    value: TensorVariable | Free
    dims: tuple[str, ...]

    def declare(self) -> TensorVariable:
        """The tensor to use in the model, broadcasting to ``dims``; declares it when it is free."""
        if not isinstance(self.value, Free):
            return self.value
        kept = {"all": (), None: self.dims}.get(self.value.tie, tuple(d for d in self.dims if d != self.value.tie))
        variable = pm.HalfFlat(self.name, dims=kept) if kept else pm.HalfFlat(self.name)
        return variable[tuple(slice(None) if d in kept else None for d in self.dims)] if len(kept) == 1 else variable


@dataclass(frozen=True)
class GammaParameters:
    """Shape alpha with the rate beta, or with the mean."""

    alpha: Hyperparameter
    second: Hyperparameter
    is_mean: bool

    def declare(self, times: TensorVariable | None = None) -> dict[str, TensorVariable]:
        """``alpha`` and ``beta`` for ``pm.Gamma``; a given mean enters as beta = alpha / mean.

        ``times`` multiplies the means.
        """
        alpha, second = self.alpha.declare(), self.second.declare()
        if times is not None:
            second = second * times if self.is_mean else second / times
        return {"alpha": alpha, "beta": alpha / second if self.is_mean else second}

    def given(self, second: TensorVariable, is_mean: bool) -> GammaParameters:
        """The same shape with a rate or mean of the model."""
        return replace(self, second=replace(self.second, value=second), is_mean=is_mean)


@dataclass(frozen=True)
class HalfNormalOrFlat:
    """A half-normal prior of this scale, or none."""

    sigma: Hyperparameter | None

    def declare(self, name: str, dims: tuple[str, ...]) -> TensorVariable:
        """The factor."""
        if self.sigma is None:
            return pm.HalfFlat(name, dims=dims)
        return pm.HalfNormal(name, sigma=self.sigma.declare(), dims=dims)


def check_half_normal(suffix: str, inputs: Inputs, sigma: Any, dims: tuple[str, str] | None = None) -> HalfNormalOrFlat:
    """The prior of W (suffix "w") or H (suffix "h"); none where sigma is None."""
    if sigma is None:
        return HalfNormalOrFlat(None)
    dims = dims or (WEIGHTS if suffix == "w" else ACTIVATIONS)
    return HalfNormalOrFlat(check_hyperparameter(f"sigma_{suffix}", sigma, dims, inputs))


def check_inverse_gamma(
    names: tuple[str, str], alpha: Any, beta: Any, dims: tuple[str, ...], inputs: Inputs
) -> tuple[Hyperparameter, Hyperparameter]:
    """Shape alpha and scale beta of an inverse-gamma prior on the factor with these dims."""
    shape, scale = zip(names, (alpha, beta), strict=True)
    return check_hyperparameter(*shape, dims, inputs), check_hyperparameter(*scale, dims, inputs)


def check_gamma(
    suffix: str, inputs: Inputs, alpha: Any, beta: Any, mean: Any, dims: tuple[str, str] | None = None
) -> GammaParameters:
    """The parameters of W (suffix "w") or H (suffix "h"): shape, and mean or rate (1 when neither is given)."""
    dims = dims or (WEIGHTS if suffix == "w" else ACTIVATIONS)
    rate_name, mean_name = f"beta_{suffix}", f"mean_{suffix}"
    if beta is not None and mean is not None:
        raise InputError(
            rate_name, f"{rate_name} and {mean_name} both", "one of them", f"beta = alpha / mean: drop {rate_name}"
        )
    is_mean = mean is not None
    name, value = (mean_name, mean) if is_mean else (rate_name, 1.0 if beta is None else beta)
    shape = check_hyperparameter(f"alpha_{suffix}", alpha, dims, inputs)
    return GammaParameters(shape, check_hyperparameter(name, value, dims, inputs), is_mean)


def check_hyperparameter(name: str, value: Any, dims: tuple[str, ...], inputs: Inputs) -> Hyperparameter:
    """A number or array > 0 that broadcasts to ``dims``, a variable of the enclosing model, or :func:`free`."""
    shape = tuple(len(inputs.coords[dim]) for dim in dims)
    if isinstance(value, Free):
        check_tie(name, value, dims)
        return Hyperparameter(name, value, dims)
    if is_symbolic(value):
        check_broadcast(name, variable_shape(name, value), shape)
        require_named(name, value)
        return Hyperparameter(name, value, dims)
    array = labelled_numbers(name, value, dims, inputs)
    check_broadcast(name, array.shape, shape)
    require_positive(name, array)
    # Not a Python float: PyMC stores those as float32 when they fit, which moves the log-density by 1e-7.
    return Hyperparameter(name, pt.constant(array, dtype="float64"), dims)


def labelled_numbers(name: str, value: Any, dims: tuple[str, ...], inputs: Inputs) -> np.ndarray:
    """Numbers along these dims, which have the model's labels in its order if they are labelled."""
    value = by_its_labels(name, value, dims, inputs.coords, "the model")
    own = {dim: labels for dim, labels in read_along(value, dims)[1].items() if len(labels) > 1}
    for dim in (ROWS, COLUMNS) if inputs.observed is None else ():
        if dim in own and are_counted(inputs.coords[dim]) and not are_counted(own[dim]):
            expected = "none where neither data nor coords= have some: data to come could not be held against them"
            raise InputError(name, f"labels of {dim!r}", expected, f"give coords={{{dim!r}: ...}} as well")
    return as_float_array(name, in_place(name, value, dims, inputs.coords))


def require_positive(name: str, array: np.ndarray) -> None:
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise InputError(name, span(array), "finite numbers > 0")


def require_named(name: str, variable: TensorVariable) -> None:
    """A random variable is one of the model: ``pm.Gamma.dist(...)`` is drawn anew whenever it is looked at."""
    is_random = variable.owner is not None and isinstance(variable.owner.op, RandomVariable)
    if is_random and variable.name is None:
        do = f'give it a name: pm.Gamma("{name}", ...), say, instead of pm.Gamma.dist(...)'
        raise InputError(name, "a distribution without a name", "a variable of the model, or numbers > 0", do)


def is_symbolic(value: Any) -> bool:
    """A PyMC variable, ``pm.Data``, or an expression of them."""
    return isinstance(value, Variable)


def check_tie(name: str, recipe: Free, dims: tuple[str, ...]) -> None:
    allowed = ("all", *dims, None) if dims else ("all",)
    if recipe.tie not in allowed:
        raise InputError(name, f"free(tie={recipe.tie!r})", f"tie to be one of {', '.join(map(repr, allowed))}")


def variable_shape(name: str, variable: TensorVariable) -> tuple[int, ...]:
    """Shape of a model variable; with dims only the enclosing model knows it."""
    if current_model() is None:
        raise InputError(
            name, "a variable outside of a model", "one of the same model", "build both inside one `with pm.Model()`"
        )
    if None not in variable.type.shape:
        return variable.type.shape
    return tuple(int(size) for size in pytensor.function([], list(variable.shape), mode=Mode("py", "fast_run"))())


def renamed(**new_names: str) -> Callable[[Callable[..., pm.Model]], Callable[..., pm.Model]]:
    """A declaration that answers the names which its arguments once had, old=new, with one line."""

    def decorate(declare: Callable[..., pm.Model]) -> Callable[..., pm.Model]:
        @wraps(declare)
        def answering(*args: Any, **arguments: Any) -> pm.Model:
            for old, new in new_names.items():
                if old in arguments:
                    raise InputError(old, "the name that it once had", f"{new}=")
            return declare(*args, **arguments)

        return answering

    return decorate

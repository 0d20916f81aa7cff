"""What all chains share: their name decides between a variable and a recipe, and their times come from the shape."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import Distribution
from pymc.distributions.shape_utils import convert_shape
from pymc.logprob.transforms import LogOddsTransform, LogTransform

from nmf_zoo.errors import InputError
from nmf_zoo.kernels.random import chain_draws
from nmf_zoo.structure.chains import ChainPrior

# PyTensor keeps compiled graphs on disk and can't see the kernels' source; a changed source must not meet old code.
CACHE_VERSION = zlib.crc32(Path(chain_draws.__file__).read_bytes())
STATIONARY = "stationary"


@dataclass(frozen=True)
class Recipe:
    """A chain with its parameters, not yet a variable of a model: what ``hmm_nmf(chain=...)`` takes."""

    distribution: type[ChainDistribution]
    arguments: Mapping[str, Any]


class ChainDistribution(Distribution):
    """Independent Markov chains in time: a matrix (component, obs), or a single row (obs,).

    ``Chain("H", ..., dims=("component", "obs"))`` declares a variable of the model, ``Chain.dist(..., shape=...)``
    makes one without a model, and ``Chain(...)`` without a name is a recipe for :func:`~nmf_zoo.hmm_nmf`. Parameters
    are numbers, shared by all components, or vectors, one for each.

    Notes
    -----
    Of the class:

    prior : what it is read as; the inputs of its operation are that prior's parameters, in its order, and the times
    word : ``hmm_nmf(chain=word)``
    stationary : by role of the first time, what stands among the arguments where that has the stationary law
    example : arguments to try it with
    transform : its own transform, which does not narrow the support
    """

    prior: ClassVar[type[ChainPrior]]
    word: ClassVar[str]
    stationary: ClassVar[Mapping[str, str | None]] = {}
    example: ClassVar[tuple[float, ...]]
    transform: ClassVar[type | None] = None

    def __new__(cls, *args, **kwargs):
        if args and isinstance(args[0], str):
            if pm.Model.get_context(error_if_none=False) is None:
                expected = "numbers, or a name inside `with pm.Model():`"
                raise InputError(cls.__name__, f"{args[0]!r} outside a model", expected)
            return super().__new__(cls, *args, **kwargs)
        try:
            inspect.signature(cls.arguments).bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(inspect.signature(cls.arguments).parameters)
            raise TypeError(f"{cls.__name__}: {error}; expected {cls.__name__}({names})") from None
        return Recipe(cls, cls.arguments(*args, **kwargs))

    @classmethod
    def arguments(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The parameters by role, defaults filled in."""
        raise NotImplementedError

    @classmethod
    def takes_stationary(cls, role: str) -> bool:
        """Whether "stationary" may stand in the place of this parameter."""
        return cls.stationary.get(role) == STATIONARY

    @classmethod
    def of_roles(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What ``dist`` takes, from :meth:`arguments` or from a prior's parameters, without those of the first time
        where that has the stationary law.
        """
        return dict(values)


class RowLog(LogTransform):
    """The logarithm of positive rows, whose log-density is one number for each row."""

    ndim_supp = 1

    def log_jac_det(self, value, *inputs):
        return pt.sum(value, axis=-1)


class RowLogOdds(LogOddsTransform):
    """The log-odds of rows inside (0, 1), whose log-density is one number for each row."""

    ndim_supp = 1

    def log_jac_det(self, value, *inputs):
        return -pt.sum(pt.softplus(value) + pt.softplus(-value), axis=-1)


def times_like(shape: Any, n_times: Any) -> pt.TensorVariable:
    """A vector as long as the chain, by which its operation knows the number of times."""
    if shape is None and n_times is None:
        expected = "shape=, dims= or n_times=: how many times the chain has"
        raise InputError("chain", "no length", expected, 'give dims=("component", "obs")')
    return pt.zeros(n_times if shape is None else convert_shape(shape)[-1], dtype="int8")


def as_tensor(parameter: Any) -> pt.TensorVariable:
    """A parameter in double precision: PyTensor keeps a bare Python float in single precision."""
    return pt.as_tensor_variable(np.asarray(parameter, np.float64) if isinstance(parameter, int | float) else parameter)


def in_time(parameter: pt.TensorVariable) -> pt.TensorVariable:
    """A parameter (batch,) as it broadcasts against values (batch, T)."""
    return pt.shape_padright(parameter, 1)


def size_of(size: Any, value: pt.TensorVariable) -> pt.TensorVariable:
    """``value`` (batch, T) at the batch ``size``, as support points must have."""
    if pm.distributions.shape_utils.rv_size_is_none(size):
        return value
    return pt.full(pt.concatenate([size, value.shape[-1:]]), value)
